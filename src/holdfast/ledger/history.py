"""What the ledger says, up to one head. A value that reads lazily: the present never costs the past.

    tail       the newest sound decision and what came after it. Who may append, the highest epoch and an open
               restore are all in there, so a start reads a handful of records, whatever the ledger's length
    timeline   the chain of ``after`` from its tip: the newest decision, or ``to`` of a newer restore
    abandoned  decisions off that chain: never chosen, replayed or used as a parent

A corrupt record keeps its number and counts as one decided epoch: it is never the end of the log. A missing
one (a hole) is treated the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Final, TypeGuard

from holdfast.errors import CorruptError, UnsupportedFormatError
from holdfast.ids import CheckpointId
from holdfast.layout import boundary_key, ledger_key
from holdfast.ledger.reading import NO_BOUNDARY, Boundary, Reader, Slot
from holdfast.ledger.records import (
    CheckpointRecord,
    Decision,
    EpochRecord,
    HoldRecord,
    OutcomeRecord,
    PruneRecord,
    Record,
    RestoreRecord,
    SavepointRecord,
    StartRecord,
    StopRecord,
)
from holdfast.manifest.parts import Receipt
from holdfast.manifest.status import SinkCommitStatus

#: How many records are read one by one before a search begins.
_NEARBY: Final = 64


@dataclass(frozen=True, slots=True)
class Gap:
    """A place on the timeline, or above it, where the record cannot be read."""

    n: int
    error: CorruptError | UnsupportedFormatError


@dataclass(frozen=True, slots=True)
class _Tail:
    decision: Decision | None
    start: StartRecord | None
    restore: RestoreRecord | None
    finished: frozenset[int]
    #: Whoever appended the newest start, stop, restore or decision runs (or ran) this flow.
    generation: int
    writer: str | None
    #: Numbers newer than the newest sound decision that cannot be read, newest first.
    unreadable: tuple[int, ...]


class History:
    """The ledger up to ``head`` (0: it is empty)."""

    def __init__(self, reader: Reader, head: int, boundary: Boundary = NO_BOUNDARY) -> None:
        self._reader = reader
        self.head = head
        #: As far as it is known: a record that is missing makes this be looked up again.
        self.boundary = boundary

    # One record

    def slot(self, n: int) -> Slot:
        """What lies at ``n``, its ``prev`` checked against the record before it where that one is sound."""
        if n == self.boundary.n and self.boundary.error is not None:
            return Slot(n, None, None, self.boundary.error)
        slot = self._reader.slot(n)
        if slot.record is None:
            return slot
        reason = self._bad_prev(slot.record)
        return slot if reason is None else Slot(n, slot.sha256, None, CorruptError(ledger_key(n), reason))

    def find(self, n: int) -> Slot | None:
        """``slot``, or None where the ledger was trimmed: there is no such record, whatever lies there."""
        if not self._exists(n):
            return None
        slot = self.slot(n)
        if slot.error is not None and self.boundary.error is None:
            # Before this is believed: the ledger may have been trimmed since, and something else, that does
            # not count, may lie here or at the number before.
            boundary = self._reader.find_boundary()
            if boundary.n > self.boundary.n:
                self.boundary = boundary
                self._reader.forget(n - 1)
                return self.find(n)
        return slot

    def record(self, n: int) -> Record | None:
        """Record ``n``; None if it was trimmed or cannot be read. Raises UnsupportedFormatError."""
        slot = self.find(n)
        return None if slot is None else _readable(slot)

    def numbers(self, below: int | None = None, *, above: int = 0) -> Iterator[int]:
        """Every number that has, or should have, a record: newest first, both ends exclusive."""
        for n in range((below or self.head + 1) - 1, above, -1):
            if n <= self.boundary.n:
                yield from (k for k in self._kept_downwards if above < k <= n)
                return
            yield n

    # The present

    @property
    def newest_start(self) -> StartRecord | None:
        if self._tail.start is not None:
            return self._tail.start
        record = self.record(self.generation) if self.generation else None
        return record if isinstance(record, StartRecord) else None

    @property
    def generation(self) -> int:
        """The number of the newest start record, 0 if there is none."""
        return self._tail.generation

    @property
    def writer(self) -> str | None:
        """Who runs the newest generation."""
        return self._tail.writer

    @property
    def tip(self) -> int:
        """The number of the last decision on the timeline, 0 for the beginning."""
        tail = self._tail
        if tail.restore is not None:
            return tail.restore.to
        return tail.decision.n if tail.decision is not None else 0

    @cached_property
    def newest_decision(self) -> Decision | None:
        """The last decision on the timeline. Raises CorruptError where that one cannot be read."""
        first = next(self.walk(), None)
        if isinstance(first, Gap):
            raise first.error
        return first

    @cached_property
    def highest_epoch(self) -> int:
        """The highest epoch number ever decided, abandoned ones included; what cannot be read counts as
        one.
        """
        if self.boundary.error is not None and (
            self._tail.decision is None or self._tail.decision.n <= self.boundary.n
        ):
            raise self.boundary.error
        decided = self._tail.decision.epoch if self._tail.decision is not None else 0
        return max(decided, self.boundary.epoch) + len(self._tail.unreadable)

    @property
    def newest_restore(self) -> RestoreRecord | None:
        """The restore that no decision has followed yet, finished or not."""
        return self._tail.restore

    @property
    def open_restore(self) -> RestoreRecord | None:
        """A restore without its outcome: the next start finishes it."""
        restore = self._tail.restore
        return None if restore is None or restore.n in self._tail.finished else restore

    @property
    def unreadable_since(self) -> tuple[int, ...]:
        """Numbers newer than the newest sound decision that cannot be read, newest first."""
        return self._tail.unreadable

    def pruned(self, since: int = 0) -> frozenset[str]:
        """Ids (as text) and keys that ``prune`` records newer than ``since`` name: all of that counts as
        deleted.
        """
        found: set[str] = set()
        for n in self.numbers(above=since):
            record = self.record(n)
            if isinstance(record, PruneRecord):
                found.update(map(str, record.ids))
                found.update(record.keys)
        return frozenset(found)

    # The timeline

    def walk(self) -> Iterator[Decision | Gap]:
        """The timeline, newest first, lazily. Where a decision cannot be read there is a Gap in its place.

        A decision continues what was the tip when it was appended. So behind one that is corrupt or trimmed
        the timeline goes on with the newest decision below it, or with ``to`` of a restore in between.
        """
        n = self.tip
        restore = self._tail.restore
        if restore is not None and n and self.find(n) is None:
            # Trimmed at the very moment it was chosen. Whatever lies below is not what was asked for.
            yield Gap(
                restore.n, CorruptError(ledger_key(restore.n), f"record {n}, where it leads, is trimmed")
            )
        while n > 0:
            slot = self.find(n)
            record = _readable(slot) if slot is not None else None
            if isinstance(record, CheckpointRecord | EpochRecord):
                yield record
                n = record.after
                continue
            if slot is not None:
                yield Gap(
                    n,
                    slot.error
                    or CorruptError(ledger_key(n), "the timeline leads to it, and it is no decision"),
                )
            gaps, n = self._tip_below(n)
            yield from gaps

    @cached_property
    def timeline(self) -> tuple[Decision, ...]:
        """Every decision on the timeline that can be read, oldest first. Reads them all."""
        return tuple(reversed([entry for entry in self.walk() if not isinstance(entry, Gap)]))

    @cached_property
    def abandoned(self) -> tuple[Decision, ...]:
        """Every decision off the timeline, oldest first. Reads the whole ledger."""
        on = {decision.n for decision in self.timeline}
        return tuple(d for d in self.records.values() if is_decision(d) and d.n not in on)

    def is_on_timeline(self, record: Decision | StopRecord | SavepointRecord) -> bool:
        """Whether the state that ``record`` names is that of a decision on the timeline: not abandoned."""
        decision = record if is_decision(record) else self.decision_of(record.epoch or 0)
        for entry in self.walk():
            if decision is None or entry.n < decision.n:
                return False
            if entry.n == decision.n:
                return True
        return False

    def decision_of(self, epoch: int) -> Decision | None:
        """The decision that holds ``epoch``, on the timeline or not. Epochs only grow, so few are read."""
        for record in self._nearby:
            if is_decision(record) and record.epoch <= epoch:
                return record if record.epoch == epoch else None
        return self._search(
            lambda decision: decision.epoch >= epoch, lambda decision: decision.epoch == epoch
        )

    def decisions_of(self, epoch: int) -> tuple[Decision, ...]:
        """``decision_of`` as a tuple of none or one: an epoch number is in at most one decision (I1)."""
        decision = self.decision_of(epoch)
        return () if decision is None else (decision,)

    def is_decided(self, epoch: int, id: CheckpointId) -> bool:
        """Whether this attempt, and no other, became ``epoch``; abandoned or not."""
        decision = self.decision_of(epoch)
        return decision is not None and decision.checkpoint_id == id

    def decision_for(self, id: CheckpointId) -> Decision | None:
        """The decision that names checkpoint ``id``, on the timeline or not."""
        record = self.naming(id)
        return record if is_decision(record) else None

    def naming(self, id: CheckpointId) -> Decision | StopRecord | SavepointRecord | None:
        """The record that made ``id`` a checkpoint: a decision, stop or savepoint."""
        for record in self._nearby:
            if names_state(record) and record.checkpoint_id == id:
                return record
        # Ids sort as records do, except where somebody chose their own: only then is everything read.
        found = self._search(lambda d: d.checkpoint_id >= id, lambda d: d.checkpoint_id == id)
        if found is not None:
            return found
        for n in self.numbers():
            record = self.record(n)
            if names_state(record) and record.checkpoint_id == id:
                return record
        return None

    # Sinks

    def statuses(self, epoch: int) -> dict[str, SinkCommitStatus]:
        """How far sinks are known to have got with ``epoch``; of a sink that is not in it nothing is known.

        A flow's next decision says that all sinks of this one have committed.
        """
        decision = self.decision_of(epoch)
        statuses: dict[str, SinkCommitStatus] = {}
        for record in self._about(decision) if decision is not None else ():
            if isinstance(record, OutcomeRecord):
                statuses |= record.statuses
            elif is_decision(record) and decision is not None:
                statuses = dict.fromkeys((*decision.receipts, *statuses), SinkCommitStatus.COMMITTED)
        return statuses

    def receipts(self, decision: Decision) -> dict[str, list[Receipt]]:
        """What each sink prepared for ``decision``: a sink that was fed again prepared anew."""
        receipts = dict(decision.receipts)
        for record in self._about(decision):
            if isinstance(record, OutcomeRecord):
                receipts |= record.receipts
        return receipts

    # Everything

    @property
    def records(self) -> Mapping[int, Record]:
        """Every record that can be read, by number, oldest first. One is read when it is asked for."""
        return _Records(self)

    @cached_property
    def problems(self) -> Mapping[int, CorruptError | UnsupportedFormatError]:
        """Every number that cannot be read, holes included, oldest first. Reads the whole ledger."""
        found = [(n, slot.error) for n in self.numbers() if (slot := self.find(n)) is not None and slot.error]
        return {n: error for n, error in reversed(found) if error is not None}

    @property
    def corrupt(self) -> Mapping[int, str]:
        """Every record that is there and wrong, with the reason."""
        return {
            n: error.reason
            for n, error in self.problems.items()
            if isinstance(error, CorruptError) and n not in self.holes
        }

    @cached_property
    def holes(self) -> tuple[int, ...]:
        """Every number below the head that has no record and was not trimmed."""
        return tuple(n for n, error in self.problems.items() if self._is_hole(n))

    def holds(self, now_ms: int) -> dict[tuple[CheckpointId, str], HoldRecord]:
        """Every hold and tag in force at ``now_ms``. Reads the whole ledger."""
        newest: dict[tuple[CheckpointId, str], HoldRecord] = {}
        for record in self.records.values():
            if isinstance(record, HoldRecord):
                newest[record.checkpoint_id, record.name] = record
        return {
            name: hold
            for name, hold in newest.items()
            if not hold.released and (hold.until_ms is None or hold.until_ms > now_ms)
        }

    # Below this line: how the answers are found

    @cached_property
    def _tail(self) -> _Tail:
        start: StartRecord | None = None
        restore: RestoreRecord | None = None
        decision: Decision | None = None
        runner: Record | None = None
        finished: set[int] = set()
        unreadable: list[int] = []
        for n in self.numbers():
            slot = self.find(n)
            if slot is None:
                continue
            record = _readable(slot)
            if record is None:
                unreadable.append(n)
            elif isinstance(record, OutcomeRecord):
                if record.restore is not None:
                    finished.add(record.restore)
            elif isinstance(
                record, StartRecord | RestoreRecord | StopRecord | CheckpointRecord | EpochRecord
            ):
                # Only the newest generation appends these, so the first one met says which that is.
                runner = runner or record
                if isinstance(record, StartRecord):
                    start = start or record
                elif isinstance(record, RestoreRecord):
                    restore = restore or record
                elif is_decision(record):
                    decision = record
                    break
        return _Tail(
            decision=decision,
            start=start,
            restore=restore,
            finished=frozenset(finished),
            generation=runner.generation if runner is not None else 0,
            writer=runner.writer if runner is not None and runner.generation else None,
            unreadable=tuple(unreadable),
        )

    def _tip_below(self, n: int) -> tuple[list[Gap], int]:
        """Where the timeline stood before ``n``, and what could not be read on the way."""
        gaps: list[Gap] = []
        for m in self.numbers(n):
            slot = self.find(m)
            if slot is None:
                continue
            record = _readable(slot)
            if is_decision(record):
                return gaps, m
            if isinstance(record, RestoreRecord):
                return gaps, record.to
            if slot.error is not None:
                gaps.append(Gap(m, slot.error))
        return gaps, 0

    @property
    def _nearby(self) -> Iterator[Record | None]:
        return (self.record(n) for n in islice(self.numbers(), _NEARBY))

    def _search(
        self, reached: Callable[[Decision], bool], wanted: Callable[[Decision], bool]
    ) -> Decision | None:
        """The ``wanted`` decision, where ``reached`` holds from it on. Reads a logarithm of records."""
        low, high = 0, self.head + 1
        while high - low > 1:
            middle = (low + high) // 2
            decision = self._decision_at_or_below(middle, above=low)
            if decision is None:
                low = middle
            elif wanted(decision):
                return decision
            elif reached(decision):
                high = decision.n
            else:
                low = middle
        return None

    def _decision_at_or_below(self, n: int, *, above: int) -> Decision | None:
        for m in self.numbers(n + 1, above=above):
            record = self.record(m)
            if is_decision(record):
                return record
        return None

    def _about(self, decision: Decision) -> Iterator[Record]:
        """What later records say of a decision's sinks, oldest first: outcomes, a flow's next decision."""
        for n in range(decision.n + 1, self.head + 1):
            record = self.record(n)
            if isinstance(record, OutcomeRecord) and record.epoch == decision.epoch:
                yield record
            elif is_decision(record) and record.after == decision.n and record.generation > 0:
                # A flow admits no epoch before every sink has committed the last one. A store's caller may.
                yield record
                return

    def _exists(self, n: int) -> bool:
        if n == self.boundary.n and self.boundary.error is not None:
            return True
        return 0 < n <= self.head and self.boundary.has(n)

    @cached_property
    def _kept_downwards(self) -> tuple[int, ...]:
        if self.boundary.error is not None:
            # What it keeps is not known. Its own number stands for all of that: one thing that cannot be
            # read.
            return (self.boundary.n,)
        return tuple(sorted(self.boundary.kept, reverse=True))

    def _is_hole(self, n: int) -> bool:
        return self.slot(n).sha256 is None and not (n == self.boundary.n and self.boundary.error is not None)

    def _bad_prev(self, record: Record) -> str | None:
        if record.n == 1:
            return None if record.prev is None else "its prev names a record before the first"
        if not self._exists(record.n - 1):
            return None
        before = self._reader.slot(record.n - 1)
        if not before.is_chained or before.sha256 == record.prev:
            return None
        return (
            f"a fork: its prev does not name record {record.n - 1} as it is; "
            "one of the two was replaced, or comes from another ledger"
        )


class _Records(Mapping[int, Record]):
    """The readable records of a History. Looking one up reads one; going through them reads them all."""

    def __init__(self, history: History) -> None:
        self._history = history

    def __getitem__(self, n: int) -> Record:
        record = self._history.record(n)
        if record is None:
            raise KeyError(n)
        return record

    def __iter__(self) -> Iterator[int]:
        numbers = list(self._history.numbers())
        return (n for n in reversed(numbers) if self._history.record(n) is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def is_decision(record: Record | None) -> TypeGuard[Decision]:
    return isinstance(record, CheckpointRecord | EpochRecord)


def names_state(record: Record | None) -> TypeGuard[Decision | StopRecord | SavepointRecord]:
    return isinstance(record, CheckpointRecord | EpochRecord | StopRecord | SavepointRecord)


def key_of(history: History, n: int) -> str:
    """The object that is meant by number ``n``: a record, or the boundary that stands there unreadable."""
    if n == history.boundary.n and history.boundary.error is not None:
        return boundary_key(n)
    return ledger_key(n)


def _readable(slot: Slot) -> Record | None:
    if isinstance(slot.error, UnsupportedFormatError):
        raise slot.error
    return slot.record
