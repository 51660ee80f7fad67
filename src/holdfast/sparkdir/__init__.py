"""Spark's checkpoint directory as data: read it, know what it needs, make a new one. No Spark, no JVM."""

from holdfast.sparkdir.index import FileEntry, FileIndex
from holdfast.sparkdir.positions import SourcePosition, read_position
from holdfast.sparkdir.reading import Commit, IncompleteBatchError, Offsets, Operator, SparkCheckpoint
from holdfast.sparkdir.required import BatchPlan, RequiredFile, plan_batch, required_files

__all__ = [
    "BatchPlan",
    "Commit",
    "FileEntry",
    "FileIndex",
    "IncompleteBatchError",
    "Offsets",
    "Operator",
    "RequiredFile",
    "SourcePosition",
    "SparkCheckpoint",
    "plan_batch",
    "read_position",
    "required_files",
]
