"""The append-only log of a flow. A checkpoint is committed when the ledger says so, and only then."""

from holdfast.ledger.admitting import StalePlanError
from holdfast.ledger.appending import Ledger, new_writer
from holdfast.ledger.history import Gap, History, is_decision
from holdfast.ledger.logs import INLINE_BYTES, store_logs
from holdfast.ledger.reading import Boundary
from holdfast.ledger.records import (
    Author,
    CheckpointRecord,
    Decision,
    EpochRecord,
    HoldRecord,
    LogObject,
    OutcomeRecord,
    PruneRecord,
    Record,
    RestoreRecord,
    SavepointRecord,
    StartRecord,
    StopRecord,
)

__all__ = [
    "INLINE_BYTES",
    "Author",
    "Boundary",
    "CheckpointRecord",
    "Decision",
    "EpochRecord",
    "Gap",
    "History",
    "HoldRecord",
    "Ledger",
    "LogObject",
    "OutcomeRecord",
    "PruneRecord",
    "Record",
    "RestoreRecord",
    "SavepointRecord",
    "StalePlanError",
    "StartRecord",
    "StopRecord",
    "is_decision",
    "new_writer",
    "store_logs",
]
