"""The exactly-once protocol, start to end: what happens in which order, and what follows when it does not.

No Spark, and no I/O of its own: everything goes through the store, its ledger, and the sinks.
"""

from __future__ import annotations

from holdfast.coordinator.sink import (
    Decided,
    Epoch,
    Outcome,
    Sink,
    SinkFlow,
    SinkOutcomeUnknownError,
    StagedOutputGoneError,
)
from holdfast.coordinator.steps import Observer, Step, ignore, observed

__all__ = [
    "Decided",
    "Epoch",
    "Observer",
    "Outcome",
    "Sink",
    "SinkFlow",
    "SinkOutcomeUnknownError",
    "StagedOutputGoneError",
    "Step",
    "ignore",
    "observed",
]
