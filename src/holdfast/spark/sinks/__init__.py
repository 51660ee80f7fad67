"""Sinks that Holdfast brings along. A user's own needs nothing of it, only the protocol."""

from holdfast.spark.sinks.database import Database
from holdfast.spark.sinks.epoch_index import ShownEpoch, ShownFile, read_index, shown_files
from holdfast.spark.sinks.files import Files

__all__ = ["Database", "Files", "ShownEpoch", "ShownFile", "read_index", "shown_files"]
