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
from holdfast.manifest.v1 import CheckpointManifest, ManifestValidationError
from holdfast.manifest.v2 import CheckpointManifestV2

__all__ = [
    "CheckpointManifest",
    "CheckpointManifestV2",
    "ConnectorCheckpoint",
    "Engine",
    "InFlightRecord",
    "JsonValue",
    "LogArtifact",
    "ManifestValidationError",
    "OperatorCheckpoint",
    "OperatorSnapshotEntry",
    "PartitionSnapshotEntry",
    "Receipt",
    "SinkCommitStatus",
    "SourceOffsetEntry",
    "StoredObject",
    "ValidationIssue",
]
