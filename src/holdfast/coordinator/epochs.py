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

from holdfast.coordinator.parallel import side_by_side
from holdfast.coordinator.retaining import Retention
from holdfast.coordinator.sink import Epoch, Sink, StagedOutputGoneError
from holdfast.coordinator.steps import Observer, observed
from holdfast.errors import ConflictError, HoldfastError, InvalidInputError, StoreUnavailableError
from holdfast.ids import CheckpointId
from holdfast.ledger import Author, Decision, EpochRecord, History, OutcomeRecord, StopRecord, store_logs
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
    """How long a step may take (None: as long as it needs), and how many checkpoints are kept."""

    commit_seconds: float | None = 60.0
    abort_seconds: float | None = 30.0
    prepare_warning_seconds: float = 30.0
    #: Retention: how many of the newest checkpoints stay, at least. None: all of them.
    keep_checkpoints: int | None = 10


@dataclass(frozen=True, slots=True)
class Identity:
    """What this flow is declared to be; recorded in starts and manifests, compared on the next start."""

    pipeline_hash: int
    topology: Mapping[str, Any]


@dataclass(slots=True)
class OpenEpoch:
    """An attempt under way, admitted and not decided: one or more consecutive micro-batches."""

    epoch: Epoch
    writer: CheckpointWriter
    first: int
    last: int
    receipts: dict[str, list[Receipt]]

    @property
    def parts(self) -> int:
        return self.last - self.first + 1


class Feeding:
    """A decided epoch on its way, once more, into sinks that lost what they had staged of it."""

    def __init__(self, sinks: Mapping[str, Sink], epoch: Epoch, observe: Observer) -> None:
        self.sinks = dict(sinks)
        self.epoch = epoch
        self.receipts: dict[str, list[Receipt]] = {name: [] for name in sinks}
        self._observe = observe

    def begin(self) -> None:
        for sink in self.sinks.values():
            sink.begin(self.epoch)

    def take(self, rows: Any) -> None:
        """Prepare the rows of the epoch's next micro-batch."""
        for name, sink in self.sinks.items():
            with observed(self._observe, "feed", epoch=self.epoch.number, sink=name):
                part = len(self.receipts[name])
                self.receipts[name].append(sink.prepare(rows, self.epoch, part))


class Run:
    """One generation at work. Made by ``Coordinator.start``; used by one thread at a time."""

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
        #: The epoch under way, between two of its micro-batches.
        self.open: OpenEpoch | None = None
        self._store = store
        self._sinks = sinks
        self._highest_epoch = highest_epoch
        self._identity = identity
        self._limits = limits
        self._observe = observe
        self._broken = False
        self._committed_here = False
        self._pointed_at = time.monotonic()
        self._retention = Retention(store, limits.keep_checkpoints, author)

    # --- admit -------------------------------------------------------------------------------

    def is_decided(self, batch: int) -> bool:
        """True for a micro-batch whose epoch is decided: its rows must go nowhere again (I1)."""
        return self.last is not None and self.last.batches is not None and batch <= self.last.batches[1]

    @property
    def next_batch(self) -> int:
        if self.open is not None:
            return self.open.last + 1
        return 0 if self.last is None or self.last.batches is None else self.last.batches[1] + 1

    @property
    def next_epoch(self) -> int:
        """The number of the epoch under way, or of the one that comes next."""
        return self._highest_epoch + 1

    # --- one epoch ---------------------------------------------------------------------------

    def run_epoch(self, batch: int, computed: AbstractContextManager[Any], capture: Capture) -> Decision:
        """Carry one micro-batch from admitted to committed: ``take``, then ``decide``."""
        self.take(batch, computed)
        return self.decide(capture)

    def take(self, batch: int, computed: AbstractContextManager[Any]) -> None:
        """Admit one micro-batch into the epoch under way, or a new one, and prepare its rows in every sink.

        ``computed`` is entered once the batch is admitted: it gives the rows, which every sink may
        read any number of times, and on leaving frees whatever holds them. If it raises, the epoch
        is aborted, all of its batches, and this run is over.
        """
        self._admit(batch)
        self._broken = True  # until this is through, nothing else may begin
        attempt = self.open or self._new_attempt(batch)
        try:
            if self.open is None:
                self._begin(attempt.epoch)
            with computed as rows:
                self._prepare(rows, attempt, batch - attempt.first)
        except BaseException as error:
            self._abort(attempt, error)
            raise
        attempt.last = batch
        self.open = attempt
        self._broken = False

    def decide(self, capture: Capture) -> Decision:
        """Make the epoch under way real, with a checkpoint, and drive every sink to committed.

        What fails before the decision leaves no trace; after it, the epoch is real and the next
        start finishes what is left. An unknown outcome of the decision itself aborts nothing.
        """
        attempt = self._take_attempt()
        try:
            with observed(self._observe, "capture", epoch=attempt.epoch.number):
                capture(attempt.writer)
            self._fill_in(attempt)
            with observed(self._observe, "manifest", epoch=attempt.epoch.number) as facts:
                facts.update(bytes=attempt.writer.write().total_size_bytes)
        except BaseException as error:
            self._abort(attempt, error)
            raise
        decision = self._publish(attempt, partial(_publish_checkpoint, attempt.writer))
        self.parent = attempt.epoch.id
        return self._go_forward(attempt, decision)

    def decide_light(self, logs: Mapping[str, str]) -> Decision:
        """Make the epoch under way real by one record. A replay of ``logs`` rebuilds its state."""
        attempt = self._take_attempt()
        try:
            stored = store_logs(self._store.blobs, attempt.epoch.number, attempt.epoch.id, logs)
        except BaseException as error:
            self._abort(attempt, error)
            raise
        draft = EpochRecord(
            epoch=attempt.epoch.number,
            checkpoint_id=attempt.epoch.id,
            batches=(attempt.first, attempt.last),
            receipts=attempt.receipts,
            logs=stored,
        )
        append = partial(self._store.ledger.append, draft, author=self.author)
        return self._go_forward(attempt, self._publish(attempt, append))

    def abandon(self) -> None:
        """Give up the epoch under way: its rows stay unread, and come again in the next run."""
        if self.open is not None:
            attempt = self._take_attempt()
            self._abort(attempt, ConflictError("the epoch was given up"))

    def _admit(self, batch: int) -> None:
        if self._broken:
            raise ConflictError("this run already stopped at an epoch; only a new start may go on")
        if batch != self.next_batch:
            raise ConflictError(
                f"batch {batch} does not follow the last one taken: batch {self.next_batch} is next"
            ).with_hint(
                "the scratch directory is not of this run; start again, it is made anew from the store"
            )
        with observed(self._observe, "admit", epoch=self.next_epoch) as facts:
            facts.update(batch=batch)

    def _new_attempt(self, batch: int) -> OpenEpoch:
        writer = self._store.writer(self.next_epoch, self.parent, author=self.author)
        epoch = Epoch(self.next_epoch, writer.id, self.author.generation)
        return OpenEpoch(epoch, writer, first=batch, last=batch, receipts={})

    def _take_attempt(self) -> OpenEpoch:
        if self.open is None:
            raise InvalidInputError("no epoch is under way: take a micro-batch first")
        attempt, self.open = self.open, None
        self._broken = True
        return attempt

    def _begin(self, epoch: Epoch) -> None:
        for name, sink in self._sinks.items():
            with observed(self._observe, "begin", epoch=epoch.number, sink=name):
                sink.begin(epoch)

    def _prepare(self, rows: Any, attempt: OpenEpoch, part: int) -> None:
        epoch = attempt.epoch

        def prepare(name: str, sink: Sink) -> Receipt:
            with observed(self._observe, "prepare", epoch=epoch.number, sink=name):
                return sink.prepare(rows, epoch, part)

        results = side_by_side(
            {name: partial(prepare, name, sink) for name, sink in self._sinks.items()},
            warn_after_seconds=self._limits.prepare_warning_seconds,
            warn=lambda name: log.warning("sink %s is still preparing epoch %d", name, epoch.number),
        )
        for name, receipt in results.values.items():
            attempt.receipts.setdefault(name, []).append(receipt)
        for name, error in results.errors.items():
            error.add_note(f"sink {name!r} could not prepare epoch {epoch.number}; nothing of it is visible")
            results.note_others(error, "sink")
            raise error

    def _fill_in(self, attempt: OpenEpoch) -> None:
        manifest = attempt.writer.manifest
        manifest.pipeline_hash = self._identity.pipeline_hash
        manifest.topology = dict(self._identity.topology)
        manifest.sink_names = sorted(self._sinks)
        manifest.sink_epochs = dict.fromkeys(self._sinks, manifest.epoch)
        manifest.sink_commit_statuses = dict.fromkeys(self._sinks, SinkCommitStatus.PENDING)
        manifest.sink_receipts = dict(attempt.receipts)
        attempt.writer.receipts = dict(attempt.receipts)
        attempt.writer.batches = (attempt.first, attempt.last)

    def _publish(self, attempt: OpenEpoch, append: Callable[[], Decision]) -> Decision:
        try:
            with observed(self._observe, "publish", epoch=attempt.epoch.number) as facts:
                decision = append()
                facts.update(record=decision.n, parts=attempt.parts)
        except ConflictError as error:
            # Another record has our number: this attempt is known to be undecided, and only then may
            # it be taken back. Any other error leaves that open, and aborts nothing.
            self._abort(attempt, error)
            raise
        self.last = decision
        self._highest_epoch = attempt.epoch.number
        self._committed_here = False
        return decision

    def _abort(self, attempt: OpenEpoch, cause: BaseException) -> None:
        epoch = attempt.epoch
        results = side_by_side(
            {
                name: partial(sink.abort, epoch, attempt.receipts.get(name, []))
                for name, sink in self._sinks.items()
            },
            seconds=self._limits.abort_seconds,
        )
        for name, error in results.errors.items():
            # Invisible either way (I3); the next start sweeps it.
            cause.add_note(f"sink {name!r} could not abort epoch {epoch.number}: {error}")

    # --- after the decision: only forward ------------------------------------------------------

    def _go_forward(self, attempt: OpenEpoch, decision: Decision) -> Decision:
        commit_all(
            self._sinks,
            decision.receipts,
            attempt.epoch,
            seconds=self._limits.commit_seconds,
            observe=self._observe,
        )
        self._committed_here = True
        with observed(self._observe, "finish", epoch=decision.epoch):
            if self.parent == decision.checkpoint_id and self._pointer_is_old():
                self._point(decision.checkpoint_id)
            self._retention.run_now_and_then()
        self._broken = False
        return decision

    def _pointer_is_old(self) -> bool:
        return time.monotonic() - self._pointed_at >= POINTER_SECONDS

    def _point(self, checkpoint_id: CheckpointId) -> None:
        self._store.point_to(checkpoint_id)
        self._pointed_at = time.monotonic()

    def feed(self, names: tuple[str, ...], decision: Decision) -> Feeding:
        """Begin to give the rows of a decided epoch once more to sinks whose staged output is gone (I3)."""
        epoch = Epoch(decision.epoch, decision.checkpoint_id, self.author.generation)
        feeding = Feeding({name: self._sinks[name] for name in names}, epoch, self._observe)
        feeding.begin()
        return feeding

    def end_feeding(self, feeding: Feeding) -> None:
        """Show what was fed. The new receipts go on record afterwards: until then the sink knows best."""
        commit_all(
            feeding.sinks,
            feeding.receipts,
            feeding.epoch,
            seconds=self._limits.commit_seconds,
            observe=self._observe,
        )
        self._store.ledger.append(
            OutcomeRecord(
                epoch=feeding.epoch.number,
                statuses=dict.fromkeys(feeding.sinks, SinkCommitStatus.COMMITTED),
                receipts=feeding.receipts,
            ),
            author=self.author,
        )
        # A start that died while it fed left its own attempt at this epoch: of no use since just now.
        sweep_all(feeding.sinks, self.author, self._store.ledger.read(), self._observe)

    def stop(self) -> None:
        """End this generation in good order: say what the sinks did, then that nobody is at work."""
        with observed(self._observe, "stop"):
            self._retention.wait()
            if self.last is not None and self._committed_here:
                self._store.ledger.append(
                    OutcomeRecord(
                        epoch=self.last.epoch,
                        statuses=dict.fromkeys(self._sinks, SinkCommitStatus.COMMITTED),
                    ),
                    author=self.author,
                )
                if self.parent is not None:
                    self._point(self.parent)
            self._store.ledger.append(
                StopRecord(epoch=self.last.epoch if self.last else 0), author=self.author
            )


def _publish_checkpoint(writer: CheckpointWriter) -> Decision:
    writer.publish()
    assert writer.record is not None  # publish returned, so it is written
    return writer.record


def sweep_all(sinks: Mapping[str, Sink], author: Author, history: History, observe: Observer) -> None:
    """Let every sink drop what older generations staged and nobody will ever show."""

    def decided(number: int, id: CheckpointId) -> bool:
        decision = history.decision_of(number)
        return decision is not None and decision.checkpoint_id == id

    for name, sink in sinks.items():
        with observed(observe, "sweep", sink=name):
            sink.sweep(author.generation, decided)


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
        told = _not_committed(name, epoch.number, error)
        results.note_others(told, "sink")
        raise told


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


def _not_committed(sink: str, epoch: int, error: BaseException) -> BaseException:
    """What to raise: an error of ours, or the end of the process, as it is; anything else as one of ours."""
    if isinstance(error, HoldfastError) or not isinstance(error, Exception):
        error.add_note(f"sink {sink!r} did not commit epoch {epoch}, which is decided and safe")
        return error
    ours = StoreUnavailableError(
        f"sink {sink!r} did not commit epoch {epoch}: {error}. The epoch is decided and safe"
    ).with_hint("mend the sink and start again: the epoch is committed first, then the flow goes on")
    ours.__cause__ = error
    return ours
