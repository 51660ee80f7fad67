"""One generation of a flow, epoch by epoch, from its ``start`` record to its ``stop``.

Invariants, cited by the code and the tests by number:

    I1  An epoch is committed iff a decision (a ``checkpoint`` or ``epoch`` record) holds it.
    I2  Everything a record refers to is durable before the record is written.
    I3  No sink output becomes visible before its decision; after it, every sink is driven to committed.
    I4  The source positions of an epoch are exactly what its state and its sink output include.
    I5  A fenced generation can write nothing that anyone reads, and can take nothing away.
    I6  A decided epoch number is never used again, a checkpoint id never at all.
    I7  Nothing reachable from a kept checkpoint or record is ever deleted.

One epoch:  admit ─► begin ─► prepare ─► capture ─► manifest ─► publish ─► commit ─► finish
                     └────────── a failure here: abort ─────┘    │          └─ only forward from here
                                                        the decision
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from holdfast.coordinator.parallel import TookTooLongError, side_by_side
from holdfast.coordinator.sink import Epoch, Sink, StagedOutputGoneError
from holdfast.coordinator.steps import Observer, observed
from holdfast.errors import ConflictError, HoldfastError, StoreUnavailableError
from holdfast.ids import CheckpointId
from holdfast.ledger import Author, Decision, OutcomeRecord, StopRecord
from holdfast.manifest import Receipt, SinkCommitStatus
from holdfast.store import CheckpointWriter, PartitionedCheckpointStore

log = logging.getLogger(__name__)

#: Fills a writer with everything that makes a batch resumable: state, offsets, logs, engine facts.
Capture: TypeAlias = Callable[[CheckpointWriter], None]

COMMIT_ATTEMPTS = 3
#: The pointer is a hint that no recovery needs; a flow moves it this seldom, and when it stops.
POINTER_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Limits:
    """How long a step may take. None: as long as it needs."""

    commit_seconds: float | None = 60.0
    abort_seconds: float | None = 30.0
    prepare_warning_seconds: float = 30.0


@dataclass(frozen=True, slots=True)
class Identity:
    """What this flow is declared to be; recorded in starts and manifests, compared on the next start."""

    pipeline_hash: int
    topology: Mapping[str, Any]


class Run:
    """One generation at work. Made by ``Coordinator.start``; used by one thread."""

    def __init__(
        self,
        store: PartitionedCheckpointStore,
        sinks: Mapping[str, Sink],
        *,
        author: Author,
        last: Decision | None,
        highest_epoch: int,
        parent: CheckpointId | None,
        identity: Identity,
        limits: Limits,
        observe: Observer,
    ) -> None:
        self.author = author
        #: What the next capture continues: the checkpoint this run was restored from, then its own newest.
        self.parent = parent
        self.last = last
        self._store = store
        self._sinks = sinks
        self._highest_epoch = highest_epoch
        self._identity = identity
        self._limits = limits
        self._observe = observe
        self._broken = False
        self._committed_here = False
        self._pointed_at = time.monotonic()

    # --- admit -------------------------------------------------------------------------------

    def is_decided(self, batch: int) -> bool:
        """True for a micro-batch whose epoch is decided: its rows must go nowhere again (I1)."""
        return batch < self.next_batch

    @property
    def next_batch(self) -> int:
        return 0 if self.last is None or self.last.batches is None else self.last.batches[1] + 1

    @property
    def next_epoch(self) -> int:
        return self._highest_epoch + 1

    # --- one epoch ---------------------------------------------------------------------------

    def run_epoch(self, batch: int, computed: AbstractContextManager[Any], capture: Capture) -> Decision:
        """Carry one micro-batch from prepared to committed. Raises, and then this run is over.

        ``computed`` is entered once the batch is admitted: it gives the rows, which every sink may
        read any number of times, and on leaving frees whatever holds them. What fails before the
        decision leaves no trace; after it, the epoch is real and the next start finishes what is
        left. An unknown outcome of the decision itself aborts nothing.
        """
        self._admit(batch)
        self._broken = True  # until this epoch is through, nothing else may begin
        number = self.next_epoch
        writer = self._store.writer(number, self.parent, author=self.author)
        epoch = Epoch(number, writer.id, self.author.generation)
        receipts: dict[str, list[Receipt]] = {}
        try:
            self._begin(epoch)
            with computed as rows:
                self._prepare(rows, epoch, receipts)
            with observed(self._observe, "capture", epoch=number) as facts:
                capture(writer)
                facts.update(objects=len(writer.manifest.operators))
            self._fill_in(writer, batch, receipts)
            with observed(self._observe, "manifest", epoch=number) as facts:
                facts.update(bytes=writer.write().total_size_bytes)
        except BaseException as error:
            self._abort(epoch, receipts, error)
            raise
        decision = self._publish(writer, epoch, receipts)
        self._commit(decision, epoch)
        self._finish(decision)
        self._broken = False
        return decision

    def _admit(self, batch: int) -> None:
        if self._broken:
            raise ConflictError("this run already stopped at an epoch; only a new start may go on")
        if batch != self.next_batch:
            raise ConflictError(
                f"batch {batch} does not follow the last decided one: batch {self.next_batch} is next"
            ).with_hint(
                "the scratch directory is not of this run; start again, it is made anew from the store"
            )
        with observed(self._observe, "admit", epoch=self.next_epoch) as facts:
            facts.update(batch=batch)

    def _begin(self, epoch: Epoch) -> None:
        for name, sink in self._sinks.items():
            with observed(self._observe, "begin", epoch=epoch.number, sink=name):
                sink.begin(epoch)

    def _prepare(self, rows: Any, epoch: Epoch, receipts: dict[str, list[Receipt]]) -> None:
        def prepare(name: str, sink: Sink) -> Receipt:
            with observed(self._observe, "prepare", epoch=epoch.number, sink=name):
                return sink.prepare(rows, epoch, 0)

        results = side_by_side(
            {name: partial(prepare, name, sink) for name, sink in self._sinks.items()},
            warn_after_seconds=self._limits.prepare_warning_seconds,
            warn=lambda name: log.warning("sink %s is still preparing epoch %d", name, epoch.number),
        )
        receipts.update({name: [receipt] for name, receipt in results.values.items()})
        for name, error in results.errors.items():
            error.add_note(f"sink {name!r} could not prepare epoch {epoch.number}; nothing of it is visible")
            raise error

    def _fill_in(self, writer: CheckpointWriter, batch: int, receipts: dict[str, list[Receipt]]) -> None:
        manifest = writer.manifest
        manifest.pipeline_hash = self._identity.pipeline_hash
        manifest.topology = dict(self._identity.topology)
        manifest.sink_names = sorted(self._sinks)
        manifest.sink_epochs = dict.fromkeys(self._sinks, manifest.epoch)
        manifest.sink_commit_statuses = dict.fromkeys(self._sinks, SinkCommitStatus.PENDING)
        manifest.sink_receipts = dict(receipts)
        writer.receipts = dict(receipts)
        writer.batches = (batch, batch)

    def _publish(
        self, writer: CheckpointWriter, epoch: Epoch, receipts: dict[str, list[Receipt]]
    ) -> Decision:
        try:
            with observed(self._observe, "publish", epoch=epoch.number) as facts:
                writer.publish()
                decision = writer.record
                assert decision is not None  # publish returned, so it is written
                facts.update(record=decision.n)
        except ConflictError as error:
            # Another record has our number: this attempt is known to be undecided, and only then may
            # it be taken back. Any other error leaves that open, and aborts nothing.
            self._abort(epoch, receipts, error)
            raise
        self.last = decision
        self.parent = writer.id
        self._highest_epoch = epoch.number
        self._committed_here = False
        return decision

    def _abort(self, epoch: Epoch, receipts: Mapping[str, list[Receipt]], cause: BaseException) -> None:
        results = side_by_side(
            {name: partial(sink.abort, epoch, receipts.get(name, [])) for name, sink in self._sinks.items()},
            seconds=self._limits.abort_seconds,
        )
        for name, error in results.errors.items():
            # Invisible either way (I3); the next start sweeps it.
            cause.add_note(f"sink {name!r} could not abort epoch {epoch.number}: {error}")

    # --- after the decision: only forward ------------------------------------------------------

    def _commit(self, decision: Decision, epoch: Epoch) -> None:
        commit_all(
            self._sinks, decision.receipts, epoch, seconds=self._limits.commit_seconds, observe=self._observe
        )
        self._committed_here = True

    def _finish(self, decision: Decision) -> None:
        with observed(self._observe, "finish", epoch=decision.epoch):
            if time.monotonic() - self._pointed_at >= POINTER_SECONDS:
                self._point(decision)

    def _point(self, decision: Decision) -> None:
        self._store.point_to(decision.checkpoint_id)
        self._pointed_at = time.monotonic()

    def feed_again(self, names: tuple[str, ...], decision: Decision, rows: Any) -> None:
        """Give the rows of a decided epoch, computed once more, to sinks whose staged output is gone (I3).

        The new receipts go on record after the commit: until then the sink itself knows best.
        """
        epoch = Epoch(decision.epoch, decision.checkpoint_id, self.author.generation)
        receipts: dict[str, list[Receipt]] = {}
        for name in names:
            sink = self._sinks[name]
            with observed(self._observe, "feed", epoch=epoch.number, sink=name):
                sink.begin(epoch)
                receipts[name] = [sink.prepare(rows, epoch, 0)]
                sink.commit(epoch, receipts[name])
        self._store.ledger.append(
            OutcomeRecord(
                epoch=epoch.number,
                statuses=dict.fromkeys(names, SinkCommitStatus.COMMITTED),
                receipts=receipts,
            ),
            author=self.author,
        )

    def stop(self) -> None:
        """End this generation in good order: say what the sinks did, then that nobody is at work."""
        with observed(self._observe, "stop"):
            if self.last is not None and self._committed_here:
                self._store.ledger.append(
                    OutcomeRecord(
                        epoch=self.last.epoch,
                        statuses=dict.fromkeys(self._sinks, SinkCommitStatus.COMMITTED),
                    ),
                    author=self.author,
                )
                self._point(self.last)
            self._store.ledger.append(
                StopRecord(epoch=self.last.epoch if self.last else 0), author=self.author
            )


def commit_all(
    sinks: Mapping[str, Sink],
    receipts: Mapping[str, list[Receipt]],
    epoch: Epoch,
    *,
    seconds: float | None,
    observe: Observer,
) -> None:
    """Drive ``sinks`` to committed for a decided epoch, side by side; one that fails stops no other (I3)."""

    def commit(name: str, sink: Sink) -> None:
        with observed(observe, "commit", epoch=epoch.number, sink=name) as facts:
            facts.update(attempts=_commit_with_patience(sink, epoch, receipts[name]))

    results = side_by_side(
        {name: partial(commit, name, sink) for name, sink in sinks.items()}, seconds=seconds
    )
    for name, error in results.errors.items():
        if isinstance(error, (TookTooLongError, Exception)) and not isinstance(error, HoldfastError):
            raise _not_committed(name, epoch.number, error) from error
        raise error


def _commit_with_patience(sink: Sink, epoch: Epoch, receipts: Any) -> int:
    """Tell a sink to commit until it has, a few times. Safe: a commit that comes twice shows once."""
    for attempt in range(1, COMMIT_ATTEMPTS + 1):
        try:
            sink.commit(epoch, receipts)
        except (StagedOutputGoneError, ConflictError):
            raise  # asking again changes nothing
        except Exception as error:
            if attempt == COMMIT_ATTEMPTS:
                raise
            log.warning("commit of epoch %d failed, trying again: %s", epoch.number, error)
        else:
            return attempt
    raise AssertionError("unreachable")


def _not_committed(sink: str, epoch: int, error: BaseException) -> StoreUnavailableError:
    return StoreUnavailableError(
        f"sink {sink!r} did not commit epoch {epoch}: {error}. The epoch is decided and safe"
    ).with_hint("mend the sink and start again: the epoch is committed first, then the flow goes on")
