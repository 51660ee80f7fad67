"""The exactly-once protocol, start to end: what happens in which order, and what follows when it does not.

No Spark, and no I/O of its own: everything goes through the store, its ledger, and the sinks.
"""

from __future__ import annotations

from holdfast.coordinator.epochs import Capture, Identity, Limits, Run
from holdfast.coordinator.sink import (
    Decided,
    Epoch,
    Outcome,
    Sink,
    SinkFlow,
    SinkOutcomeUnknownError,
    StagedOutputGoneError,
)
from holdfast.coordinator.starting import Coordinator, Started, StartPlan
from holdfast.coordinator.steps import Observer, Step, ignore, observed, of_flow

__all__ = [
    "Capture",
    "Coordinator",
    "Decided",
    "Epoch",
    "Identity",
    "Limits",
    "Observer",
    "Outcome",
    "Run",
    "Sink",
    "SinkFlow",
    "SinkOutcomeUnknownError",
    "StagedOutputGoneError",
    "StartPlan",
    "Started",
    "Step",
    "ignore",
    "observed",
    "of_flow",
]
