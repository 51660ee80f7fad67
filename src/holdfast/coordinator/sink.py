"""What the protocol asks of a sink. A user can implement it in 30 lines; nothing here knows Spark.

A sink shows an epoch's output only when told to ``commit``, and can say afterwards whether it did:

    begin ─► prepare ─► (the decision) ─► commit ─► shown
                │
                └─► abort, or sweep at a later start: gone without a trace
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol, TypeAlias

from holdfast.errors import NotFoundError, OutcomeUnknownError
from holdfast.ids import CheckpointId
from holdfast.manifest import Receipt

#: Says whether an attempt (epoch number and checkpoint id) was decided.
Decided: TypeAlias = Callable[[int, CheckpointId], bool]


class Outcome(Enum):
    """What a sink knows of one epoch's commit."""

    COMMITTED = "committed"
    NOT_COMMITTED = "not committed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Epoch:
    """One attempt at one epoch. Whatever a sink stages is keyed by all three, so leftovers can't mix (I6)."""

    number: int
    id: CheckpointId
    generation: int


@dataclass(frozen=True, slots=True)
class SinkFlow:
    """Whose output a sink is about to receive: the flow as ``pipeline/flow``, and the sink's name in it."""

    flow: str
    sink: str


class Sink(Protocol):
    """Where an epoch's rows go. Raise what you like: before the decision it ends the attempt, after it
    the flow stops and the next start tells the sink again."""

    def open(self, flow: SinkFlow) -> Epoch | None:
        """Check that output can be taken, changing nothing, and say which epoch of this flow is shown newest.

        None: nothing is shown yet, or this sink cannot tell. It is compared with the ledger: an
        epoch that nobody decided is a conflict, never something to skip because numbers look equal.
        """

    def begin(self, epoch: Epoch) -> None:
        """Get ready for one attempt. Called once for each, before anything is prepared."""

    def prepare(self, batch: Any, epoch: Epoch, part: int) -> Receipt:
        """Make the rows of one micro-batch durable and invisible.

        What is returned (JSON without floats) must be enough to commit in another process, on
        another day, without the rows.
        """

    def commit(self, epoch: Epoch, receipts: Sequence[Receipt]) -> None:
        """Show the epoch. May come twice, late, or from two processes at once: it is shown once.

        Raises StagedOutputGoneError when what the receipts name is neither staged nor shown.
        """

    def abort(self, epoch: Epoch, receipts: Sequence[Receipt]) -> None:
        """Drop what this attempt staged. ``receipts`` may be fewer than the prepares that were begun."""

    def outcome(self, epoch: Epoch, receipts: Sequence[Receipt]) -> Outcome:
        """Is the epoch shown? Never guess: UNKNOWN stops the flow and asks a person."""

    def sweep(self, generation: int, decided: Decided) -> None:
        """Drop what attempts of generations older than ``generation`` staged and ``decided`` denies."""


class StagedOutputGoneError(NotFoundError):
    """What ``prepare`` staged for a decided epoch is not there any more, and is not shown either."""

    hint = "start the flow again: the epoch is decided, and is run once more into this sink alone"

    def __init__(self, sink: str, epoch: int, what: str) -> None:
        super().__init__(sink, epoch, what)
        self.sink = sink
        self.epoch = epoch
        self.what = what

    def __str__(self) -> str:
        return f"sink {self.sink!r} no longer has what it staged for epoch {self.epoch}: {self.what}"


class SinkOutcomeUnknownError(OutcomeUnknownError):
    """A sink cannot tell whether a decided epoch is shown. A person has to look."""

    def __init__(self, sink: str, epoch: int) -> None:
        super().__init__(sink, epoch)
        self.sink = sink
        self.epoch = epoch
        self.hint = (
            f"look whether the output of epoch {epoch} is in {sink!r}, then say so: "
            f"holdfast recover --sink {sink} --outcome committed|not"
        )

    def __str__(self) -> str:
        return f"sink {self.sink!r} cannot tell whether epoch {self.epoch}, which is decided, was committed"
