"""What a checkpoint means, as it is written down. Nothing here reads or writes a store."""

from holdfast.manifest.checks import ValidationIssue
from holdfast.manifest.codec import JsonValue
from holdfast.manifest.parts import (
    ConnectorCheckpoint,
    Engine,
    InFlightRecord,
    LogArtifact,
    OperatorCheckpoint,
    OperatorSnapshotEntry,
    PartitionSnapshotEntry,
    Receipt,
    SinkCommitStatus,
    SourceOffsetEntry,
    StoredObject,
)
from holdfast.manifest.v2 import CheckpointManifestV2

__all__ = [
    "CheckpointManifestV2",
    "ConnectorCheckpoint",
    "Engine",
    "InFlightRecord",
    "JsonValue",
    "LogArtifact",
    "OperatorCheckpoint",
    "OperatorSnapshotEntry",
    "PartitionSnapshotEntry",
    "Receipt",
    "SinkCommitStatus",
    "SourceOffsetEntry",
    "StoredObject",
    "ValidationIssue",
]
