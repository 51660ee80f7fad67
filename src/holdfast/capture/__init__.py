"""From Spark's checkpoint directory into a store."""

from holdfast.capture.batch import Captured, capture_batch, epoch_logs
from holdfast.capture.directory import capture_directory

__all__ = ["Captured", "capture_batch", "capture_directory", "epoch_logs"]
