"""Checkpoint stores: the thirteen methods, v1 and v2."""

from holdfast.store.base import CheckpointStore, RecoveryReport, ValidationResult
from holdfast.store.numbered import (
    FileSystemCheckpointStore,
    MemoryCheckpointStore,
    NumberedCheckpointStore,
    ObjectStoreCheckpointStore,
)
from holdfast.store.partitioned import PartitionedCheckpointStore
from holdfast.store.writing import CheckpointWriter

__all__ = [
    "CheckpointStore",
    "CheckpointWriter",
    "FileSystemCheckpointStore",
    "MemoryCheckpointStore",
    "NumberedCheckpointStore",
    "ObjectStoreCheckpointStore",
    "PartitionedCheckpointStore",
    "RecoveryReport",
    "ValidationResult",
]
