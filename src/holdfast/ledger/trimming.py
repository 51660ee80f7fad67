"""Which records nobody needs any more. The boundary says so; what lies at or below it and is not kept is
not there.

    kept at or below the boundary
        records of checkpoints that are not pruned (stops and savepoints included), and how their sinks ended
        holds and tags in force, the newest start, and the last decision's
        decisions whose sinks are not all done
        prunes that are not carried out yet, or that name what a kept record names
        restores, down to the oldest kept decision: without them an abandoned one would look like the present
        for each generation without a stop, all from its last record to the next start: so the number that a
        sleeping runner takes next is always taken, and it finds out that it is fenced

The boundary is created first, and then deletions follow: cut short, they leave what is not there any more,
and the next trimming takes it away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from holdfast.blobs.base import BlobStore
from holdfast.ids import CheckpointId
from holdfast.layout import LEDGER_PREFIX, boundary_number, ledger_number
from holdfast.ledger.history import History, is_decision
from holdfast.ledger.reading import Boundary, Reader
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
    references,
)


def plan_trim(
    history: History, keep_from: int, *, now_ms: int, is_gone: Callable[[PruneRecord], bool]
) -> Boundary | None:
    """A boundary below ``keep_from`` and the timeline's tip; None where it would be no step forward.

    ``is_gone`` says whether nothing is left of what a prune names. Reads the whole ledger. Raises the first
    of its faults: what cannot be read may be needed.
    """
    for error in history.problems.values():
        raise error.with_hint("nothing is trimmed while a ledger record cannot be read; see holdfast verify")
    n = min(keep_from, history.tip or history.head, history.head) - 1
    if n <= history.boundary.n:
        return None
    records = {record.n: _slim(record) for record in history.records.values()}
    kept = _Keeper(records, n, tip=history.tip, now_ms=now_ms, is_gone=is_gone).kept()
    epochs = (record.epoch for record in records.values() if is_decision(record) and record.n <= n)
    return Boundary(n, max(epochs, default=0) or history.boundary.epoch, frozenset(kept))


class _Keeper:
    """Finds what stays at or below ``n``."""

    def __init__(
        self,
        records: dict[int, Record],
        n: int,
        *,
        tip: int,
        now_ms: int,
        is_gone: Callable[[PruneRecord], bool],
    ) -> None:
        self._records = records
        self._n = n
        self._tip = tip
        self._now_ms = now_ms
        self._is_gone = is_gone
        self._pruned: set[CheckpointId] = set()
        self._successors: dict[int, Decision] = {}
        self._outcomes: dict[int, list[OutcomeRecord]] = {}
        for record in records.values():
            if isinstance(record, PruneRecord):
                self._pruned.update(record.ids)
            elif isinstance(record, OutcomeRecord) and record.epoch is not None:
                self._outcomes.setdefault(record.epoch, []).append(record)
            elif is_decision(record) and record.generation:
                self._successors.setdefault(record.after, record)

    def kept(self) -> set[int]:
        kept = {*self._states(), *self._undone(), *self._holds(), *self._starts(), *self._tails()}
        kept |= set(self._endings(kept))
        kept |= set(self._prunes(kept))
        decisions = [n for n in kept if is_decision(self._records[n])]
        oldest = min(decisions, default=self._n)
        kept |= {r.n for r in self._records.values() if isinstance(r, RestoreRecord) and r.n > oldest}
        return {n for n in kept if n <= self._n}

    def _states(self) -> Iterator[int]:
        for record in self._records.values():
            if isinstance(record, CheckpointRecord | StopRecord) and record.checkpoint_id is not None:
                if record.checkpoint_id not in self._pruned:
                    yield record.n
            elif isinstance(record, SavepointRecord):
                yield record.n

    def _endings(self, kept: set[int]) -> Iterator[int]:
        """What tells how the sinks of kept decisions ended."""
        for n in kept:
            record = self._records[n]
            if is_decision(record) and record.receipts:
                yield from (outcome.n for outcome in self._outcomes.get(record.epoch, ()))
                if record.n in self._successors and record.generation:
                    yield self._successors[record.n].n

    def _undone(self) -> Iterator[int]:
        restores = [r for r in self._records.values() if isinstance(r, RestoreRecord)]
        for record in self._records.values():
            if not isinstance(record, CheckpointRecord | EpochRecord) or record.n in self._successors:
                continue
            if any(restore.to < record.n < restore.n for restore in restores):
                continue  # its sinks were taken back, or resolved, when it was abandoned
            told: dict[str, bool] = {}
            for outcome in self._outcomes.get(record.epoch, ()):
                told |= {sink: status.is_committed for sink, status in outcome.statuses.items()}
            if not all(told.get(sink, False) for sink in record.receipts):
                yield record.n

    def _holds(self) -> Iterator[int]:
        newest: dict[tuple[CheckpointId, str], HoldRecord] = {}
        for record in self._records.values():
            if isinstance(record, HoldRecord):
                newest[record.checkpoint_id, record.name] = record
        for hold in newest.values():
            if not hold.released and (hold.until_ms is None or hold.until_ms > self._now_ms):
                yield hold.n

    def _starts(self) -> Iterator[int]:
        starts = [record for record in self._records.values() if isinstance(record, StartRecord)]
        yield from (start.n for start in starts[-1:])
        # The next start compares its pipeline with what the run of the last decision had declared.
        tip = self._records.get(self._tip)
        yield from (start.n for start in starts if tip is not None and start.n == tip.generation)
        # What was found corrupt counts no more for retention, as long as it lies there.
        alive = {getattr(self._records[n], "checkpoint_id", None) for n in self._states()}
        yield from (start.n for start in starts if not alive.isdisjoint(start.corrupt))

    def _tails(self) -> Iterator[int]:
        """For each generation without a stop: all from its last record to the next start."""
        last: dict[int, int] = {}
        stopped: set[int] = set()
        for record in self._records.values():
            last[record.generation] = record.n
            if isinstance(record, StopRecord):
                stopped.add(record.generation)
        starts = [record.n for record in self._records.values() if isinstance(record, StartRecord)]
        for generation, n in last.items():
            if generation and generation not in stopped:
                end = min((start for start in starts if start > n), default=max(self._records))
                yield from (m for m in self._records if n <= m <= end)

    def _prunes(self, kept: set[int]) -> Iterator[int]:
        named = {name for n in kept for name in references(self._records[n])}
        for record in self._records.values():
            if isinstance(record, PruneRecord) and record.n <= self._n:
                names = {*map(str, record.ids), *record.keys}
                if not named.isdisjoint(names) or not self._is_gone(record):
                    yield record.n


def _slim(record: Record) -> Record:
    """Without what makes records long: there may be 100,000 of them in memory."""
    if isinstance(record, CheckpointRecord | EpochRecord):
        receipts: dict[str, list[object]] = {sink: [] for sink in record.receipts}
        logs = {name: log for name, log in record.logs.items() if not isinstance(log, str)}
        return msgspec.structs.replace(record, receipts=receipts, logs=logs)
    if isinstance(record, StartRecord):
        return msgspec.structs.replace(record, topology=None)
    return record


def sweep(blobs: BlobStore, reader: Reader, known: Boundary) -> int:
    """Delete what the boundary in force says is not there, and boundaries ``known`` to be older; how many."""
    boundary = reader.find_boundary()
    if boundary.error is not None:
        raise boundary.error
    deleted = 0
    for info in list(blobs.list(LEDGER_PREFIX)):
        record, older = ledger_number(info.key), boundary_number(info.key)
        trimmed = record is not None and not boundary.has(record)
        # A lower boundary that came since may have been planned beside this one: it goes the next time.
        if trimmed or (older is not None and older < boundary.n and older <= known.n):
            blobs.delete(info.key)
            reader.forget(record or 0)
            deleted += 1
    return deleted
