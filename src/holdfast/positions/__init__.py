"""Where every source stands, in one transaction with what it fed. No Spark in it, and no JVM."""

from holdfast.positions.base import (
    KEEP,
    MAX_SOURCE_POSITION_BYTES,
    Marker,
    SourceCheckpoint,
    SourceCheckpointStore,
)
from holdfast.positions.config_hash import config_hash
from holdfast.positions.memory import MemorySourceCheckpointStore
from holdfast.positions.opening import open_positions
from holdfast.positions.resume import (
    ResumeDecision,
    ResumePlan,
    SequenceDedup,
    SourceAbility,
    plan_resume,
)
from holdfast.positions.session import Session

__all__ = [
    "KEEP",
    "MAX_SOURCE_POSITION_BYTES",
    "Marker",
    "MemorySourceCheckpointStore",
    "ResumeDecision",
    "ResumePlan",
    "SequenceDedup",
    "Session",
    "SourceAbility",
    "SourceCheckpoint",
    "SourceCheckpointStore",
    "config_hash",
    "open_positions",
    "plan_resume",
]
