"""Deleting old checkpoints: named in the ledger first, then manifest, then artifacts (I7).

From the ``prune`` record on, what it names counts as deleted, whether or not it still lies there: a writer
that was asleep cannot refer to it any more, and a collector that dies half-way leaves only what the next one
clears. The record is appended at the head it was planned from; a hold, a child or a restore that came since
means planning again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from holdfast.errors import CorruptError, UnsupportedFormatError
from holdfast.ids import CheckpointId
from holdfast.ledger import (
    Author,
    CheckpointRecord,
    Gap,
    History,
    OutcomeRecord,
    PruneRecord,
    SavepointRecord,
    StalePlanError,
    StartRecord,
    is_decision,
)
from holdfast.store.naming import Named, named_by, named_on_timeline
from holdfast.store.parallel import raise_first, try_all

if TYPE_CHECKING:
    from holdfast.store.partitioned import PartitionedCheckpointStore

log = logging.getLogger("holdfast.store")

#: A boundary costs an object and a pass over the ledger, so fewer records than these are not worth it.
TRIMMED_AT_ONCE = 64
#: How often a plan that was overtaken is made anew.
_PLANS = 20

Reasons: TypeAlias = dict[CheckpointId, list[str]]


@dataclass(frozen=True, slots=True)
class Seen:
    """A checkpoint of the timeline, as far as its record tells. ``at_ms`` is when it was decided."""

    named: Named
    at_ms: int

    @property
    def id(self) -> CheckpointId:
        return self.named.id


@dataclass(frozen=True, slots=True)
class Choice:
    """What a policy keeps, and why. Abandoned checkpoints below record ``horizon`` are nobody's any more."""

    reasons: Reasons
    horizon: int


#: A policy: given the timeline, newest first, and a way to ask whether one is sound.
Choose: TypeAlias = Callable[[Sequence[Seen], Callable[[Seen], bool]], Choice]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of one checkpoint. It goes if there is no reason to keep it."""

    id: CheckpointId
    epoch: int
    at_ms: int
    abandoned: bool
    reasons: tuple[str, ...]
    #: Kept for its own sake (a hold, a savepoint, or what those need), not as a place to step back to.
    apart: bool = False

    @property
    def kept(self) -> bool:
        return bool(self.reasons)


def prune(store: PartitionedCheckpointStore, keep: int, *, author: Author | None = None) -> int:
    """Keep the newest ``keep`` sound ones and what they need; how many checkpoints are gone."""
    return collect(store, partial(keep_newest, keep=keep), author=author)


def collect(store: PartitionedCheckpointStore, choose: Choose, *, author: Author | None = None) -> int:
    """Delete what ``choose`` leaves no reason for, and what an earlier pruning left behind; how many are
    gone.

    Then trim the ledger of what nobody needs any more. Raises the first failure, after trying all; and
    FencedError if ``author`` is a run that a newer one has fenced: it can take nothing away (I5).
    """
    store.adopt()
    for attempt in range(_PLANS):
        history = store.ledger.read()
        verdicts = judge(store, history, choose)
        doomed = sorted(verdict.id for verdict in verdicts if not verdict.kept)
        if not doomed:
            break
        try:
            record = PruneRecord(ids=doomed)
            store.ledger.append(record, author=author or store.author, planned_at=history.head)
        except StalePlanError as error:
            if attempt == _PLANS - 1:
                raise  # a flow that decides faster than this plans: nothing is lost by trying later
            log.info("pruning is planned again: %s", error)
            continue
        break
    gone = delete_checkpoints(store, {*doomed, *find_leftovers(store, store.ledger.read())})
    line = {
        verdict.id for verdict in verdicts if verdict.kept and not verdict.abandoned and not verdict.apart
    }
    _trim(store, line)
    return gone


def judge(store: PartitionedCheckpointStore, history: History, choose: Choose) -> list[Verdict]:
    """What becomes of each checkpoint, newest first. Raises if any ledger record cannot be read."""
    refuse_unreadable(history)
    timeline = [_seen(history, entry) for entry in named_on_timeline(history) if not isinstance(entry, Gap)]
    corrupt = _found_corrupt(history)
    choice = choose(timeline, lambda seen: seen.id not in corrupt and _loads(store, seen.named))
    abandoned = _abandoned(history, {seen.id for seen in timeline})
    reasons = {checkpoint_id: list(why) for checkpoint_id, why in choice.reasons.items()}
    held, needed = _held(store, history), _needed(store, history)
    line: Reasons = {checkpoint_id: [] for checkpoint_id in (*choice.reasons, *needed)}
    for checkpoint_id, why in (*held.items(), *needed.items()):
        reasons.setdefault(checkpoint_id, []).extend(why)
    for seen in abandoned:
        if seen.named.record >= choice.horizon:
            reasons.setdefault(seen.id, []).append(
                "abandoned by a restore, but newer than the oldest one kept"
            )
    _spare_parents(store, reasons)
    if held:
        _spare_parents(store, line)
    else:
        line = reasons
    off = {seen.id for seen in abandoned}
    verdicts = [
        Verdict(
            seen.id,
            seen.named.epoch,
            seen.at_ms,
            seen.id in off,
            tuple(reasons.get(seen.id, ())),
            apart=seen.id not in line,
        )
        for seen in (*timeline, *abandoned)
    ]
    return sorted(verdicts, key=lambda verdict: verdict.id, reverse=True)


def keep_newest(timeline: Sequence[Seen], is_sound: Callable[[Seen], bool], *, keep: int) -> Choice:
    """The policy of ``prune(keep)``. Only sound ones count."""
    reasons: Reasons = {}
    kept: list[Seen] = []
    for seen in timeline:
        if len(kept) == keep:
            return Choice(reasons, min(found.named.record for found in kept))
        if is_sound(seen):
            kept.append(seen)
            reasons[seen.id] = [f"newest {len(kept)} of {keep}"]
        else:
            # Damaged, but recent: it may still be of use to somebody.
            reasons[seen.id] = ["damaged, and newer than the oldest one kept"]
    if len(kept) == keep:
        return Choice(reasons, min(found.named.record for found in kept))
    # With fewer sound ones than were asked for, a damaged one may be all that somebody has.
    return Choice(reasons, 0)


def refuse_unreadable(history: History) -> None:
    """Raise the first of the ledger's faults: what cannot be read may hold, name or need anything."""
    for error in history.problems.values():
        raise error.with_hint("nothing is deleted while a ledger record cannot be read; see holdfast verify")


def find_leftovers(store: PartitionedCheckpointStore, history: History) -> set[CheckpointId]:
    """Pruned checkpoints of which something still lies there."""
    pruned = history.pruned()
    if not pruned:
        return set()
    owners = {store.paths.owner(info.key) for info in store.blobs.list(store.paths.base_prefix)}
    return {owner for owner in owners if owner is not None and str(owner) in pruned}


def delete_checkpoints(store: PartitionedCheckpointStore, ids: Collection[CheckpointId]) -> int:
    """Delete everything of these, their manifests first. Counts whole ones; raises the first failure at the
    end.
    """

    def delete(checkpoint_id: CheckpointId) -> None:
        # Manifest first: what has none is no checkpoint to anybody, and nothing names what is missing.
        for key in (store.paths.manifest(checkpoint_id), store.paths.old_manifest(checkpoint_id)):
            store.blobs.delete(key)
        for info in list(store.blobs.list(f"{store.paths.base_prefix}{checkpoint_id}")):
            store.blobs.delete(info.key)

    failures = try_all(delete, sorted(ids))
    raise_first(failures)
    return len(ids)


def _trim(store: PartitionedCheckpointStore, kept: set[CheckpointId]) -> None:
    """Let go of the records before the oldest of ``kept``. What it and later ones need stays anyway.

    The records of checkpoints that are kept apart stay too, one by one; what came between them goes.
    """
    history = store.ledger.read()
    records = [named for named in map(history.naming, kept) if named is not None]
    if not records:
        return
    lying_there = {store.paths.owner(info.key) for info in store.blobs.list(store.paths.base_prefix)}

    def is_gone(record: PruneRecord) -> bool:
        return lying_there.isdisjoint(record.ids) and all(
            store.blobs.head(key) is None for key in record.keys
        )

    oldest = min(record.n for record in records)
    store.ledger.trim(oldest, is_gone=is_gone, at_least=TRIMMED_AT_ONCE)


def _seen(history: History, named: Named) -> Seen:
    record = history.record(named.record)
    return Seen(named, record.at_ms if record is not None else 0)


def _loads(store: PartitionedCheckpointStore, named: Named) -> bool:
    try:
        store.load_named(named)
    except (CorruptError, UnsupportedFormatError) as error:
        log.warning("not counted as kept: %s", error)
        return False
    return True


def _abandoned(history: History, on_timeline: set[CheckpointId]) -> list[Seen]:
    """What records make a checkpoint, off the timeline and not pruned yet."""
    pruned = history.pruned()
    found = []
    for record in history.records.values():
        named = named_by(record)
        if named is not None and named.id not in on_timeline and str(named.id) not in pruned:
            found.append(Seen(named, record.at_ms))
    return found


def _found_corrupt(history: History) -> set[CheckpointId]:
    """What a start found corrupt on its way. It loads, perhaps, but nobody recovers from it."""
    starts = (record for record in history.records.values() if isinstance(record, StartRecord))
    return {checkpoint_id for start in starts for checkpoint_id in start.corrupt}


def _held(store: PartitionedCheckpointStore, history: History) -> Reasons:
    """What somebody asked to keep."""
    reasons: Reasons = {}
    for hold in history.holds(store.now_ms()).values():
        if hold.protects:
            reasons.setdefault(hold.checkpoint_id, []).append(f"held as {hold.name!r}")
    for record in history.records.values():
        if isinstance(record, SavepointRecord):
            reasons.setdefault(record.checkpoint_id, []).append("a savepoint")
    return reasons


def _needed(store: PartitionedCheckpointStore, history: History) -> Reasons:
    """What the present rests on, new or not."""
    reasons: Reasons = {}

    def spare(checkpoint_id: CheckpointId, why: str) -> None:
        reasons.setdefault(checkpoint_id, []).append(why)

    pointer = store.read_pointer()
    if pointer is not None:
        spare(pointer, "the pointer names it")
    start = history.newest_start
    if start is not None and start.from_id is not None and not _has_own_checkpoint(history, start.n):
        spare(start.from_id, f"generation {start.n} resumed from it, and has none of its own yet")
    for checkpoint_id, why in _with_pending_sinks(history):
        spare(checkpoint_id, why)
    return reasons


def _has_own_checkpoint(history: History, generation: int) -> bool:
    return any(
        isinstance(entry, CheckpointRecord) and entry.generation == generation for entry in history.timeline
    )


def _with_pending_sinks(history: History) -> list[tuple[CheckpointId, str]]:
    """Decisions of which a sink's end is not known, and the checkpoints before them: a sink that lost what
    it staged is fed again by running the epoch once more, from the state it began with.
    """
    pending: dict[int, tuple[CheckpointId, int, set[str]]] = {}
    numbers: dict[int, int] = {}
    for record in history.records.values():
        if isinstance(record, OutcomeRecord):
            decided = numbers.get(record.epoch) if record.epoch is not None else None
            if decided in pending:
                settled = {sink for sink, status in record.statuses.items() if not status.is_pending}
                pending[decided][2].difference_update(settled)
        elif is_decision(record):
            if record.generation > 0:
                # A flow admits no epoch before every sink has committed the last one.
                pending.pop(record.after, None)
            if record.receipts:
                pending[record.n] = record.checkpoint_id, record.epoch, set(record.receipts)
                numbers[record.epoch] = record.n
    spared: list[tuple[CheckpointId, str]] = []
    for n, (checkpoint_id, epoch, sinks) in pending.items():
        if sinks:
            spared.append((checkpoint_id, f"its sinks are pending: {', '.join(sorted(sinks))}"))
            why = f"epoch {epoch}, whose sinks are pending, would be run again from it"
            spared += [(before, why) for before in _checkpoint_before(history, n)]
    return spared


def _checkpoint_before(history: History, n: int) -> set[CheckpointId]:
    """The checkpoint that decision ``n`` continues, over light epochs in between; empty at the beginning."""
    record = history.record(n)
    while is_decision(record) and record.after:
        record = history.record(record.after)
        if isinstance(record, CheckpointRecord):
            return {record.checkpoint_id}
    return set()


def _spare_parents(store: PartitionedCheckpointStore, reasons: Reasons) -> None:
    """Add every checkpoint that the chains of those with a reason run through."""
    for checkpoint_id in list(reasons):
        try:
            manifest = store.load_raw(checkpoint_id)
            while manifest is not None and manifest.needs_parent() and manifest.parent_id is not None:
                needed = f"epoch {manifest.epoch} continues it"
                if needed in reasons.get(manifest.parent_id, ()):
                    break
                reasons.setdefault(manifest.parent_id, []).append(needed)
                manifest = store.load_link(manifest.parent_id, manifest.parent_seal)
        except (CorruptError, UnsupportedFormatError) as error:
            log.warning("the chain of %s ends early: %s", checkpoint_id, error)
