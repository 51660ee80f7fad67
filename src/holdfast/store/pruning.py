"""Deleting old checkpoints: named in the ledger first, then manifest, then artifacts (I7).

From the ``prune`` record on, what it names counts as deleted, whether or not it still lies there: a writer
that was asleep cannot refer to it any more, and a collector that dies half-way leaves only what the next one
clears. The record is appended at the head it was planned from; a hold, a child or a restore that came since
means planning again.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from holdfast.errors import CorruptError, UnsupportedFormatError
from holdfast.ids import CheckpointId
from holdfast.ledger import (
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
from holdfast.store.naming import Named, find_named, named_on_timeline
from holdfast.store.parallel import raise_first, try_all

if TYPE_CHECKING:
    from holdfast.store.partitioned import PartitionedCheckpointStore

log = logging.getLogger("holdfast.store")


def prune(store: PartitionedCheckpointStore, keep: int) -> int:
    """Delete what ``plan_prune`` names, and what an earlier prune left behind; how many checkpoints are
    gone.
    """
    store.adopt()
    while True:
        history = store.ledger.read()
        doomed = plan_prune(store, history, keep)
        if not doomed:
            break
        try:
            store.ledger.append(PruneRecord(ids=doomed), author=store.author, planned_at=history.head)
        except StalePlanError as error:
            log.info("pruning is planned again: %s", error)
            continue
        break
    return delete_checkpoints(store, {*doomed, *find_leftovers(store, store.ledger.read())})


def plan_prune(store: PartitionedCheckpointStore, history: History, keep: int) -> list[CheckpointId]:
    """Which checkpoints may go, oldest first, so that the newest ``keep`` sound ones and what they need
    stay.
    """
    refuse_unreadable(history)
    named = [entry for entry in named_on_timeline(history) if not isinstance(entry, Gap)]
    kept = _newest_loadable(store, named, keep, _found_corrupt(history))
    # With fewer sound ones than were asked for, a damaged one may be all that somebody has.
    oldest = min(entry.record for entry in kept) if len(kept) == keep else 0
    abandoned = [found for entry in history.abandoned if (found := find_named(history, entry.checkpoint_id))]
    candidates = [entry for entry in (*named, *abandoned) if entry.record < oldest]
    spared = _protected(store, history) | {entry.id for entry in kept}
    # Newer than the oldest kept: corrupt ones among them may still be of use to somebody, and the rest is
    # recent.
    spared |= {entry.id for entry in (*named, *abandoned) if entry.record >= oldest}
    spared |= _parents(store, spared)
    return sorted({entry.id for entry in candidates} - spared)


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


def _newest_loadable(
    store: PartitionedCheckpointStore, named: Iterable[Named], keep: int, corrupt: set[CheckpointId]
) -> list[Named]:
    kept: list[Named] = []
    for entry in named:
        if len(kept) == keep:
            break
        try:
            if entry.id not in corrupt and store.load_named(entry) is not None:
                kept.append(entry)
        except (CorruptError, UnsupportedFormatError) as error:
            log.warning("not counted as kept: %s", error)
    return kept


def _found_corrupt(history: History) -> set[CheckpointId]:
    """What a start found corrupt on its way. It loads, perhaps, but nobody recovers from it."""
    starts = (record for record in history.records.values() if isinstance(record, StartRecord))
    return {checkpoint_id for start in starts for checkpoint_id in start.corrupt}


def _protected(store: PartitionedCheckpointStore, history: History) -> set[CheckpointId]:
    """What stays for other reasons than being new."""
    spared = {hold.checkpoint_id for hold in history.holds(store.now_ms()).values() if hold.protects}
    spared |= {r.checkpoint_id for r in history.records.values() if isinstance(r, SavepointRecord)}
    pointer = store.read_pointer()
    if pointer is not None:
        spared.add(pointer)
    start = history.newest_start
    if start is not None and start.from_id is not None and not _has_own_checkpoint(history, start.n):
        spared.add(start.from_id)
    return spared | _with_pending_sinks(history)


def _has_own_checkpoint(history: History, generation: int) -> bool:
    return any(
        isinstance(entry, CheckpointRecord) and entry.generation == generation for entry in history.timeline
    )


def _with_pending_sinks(history: History) -> set[CheckpointId]:
    """Decisions of which a sink's end is not known, and the checkpoints before them: a sink that lost what
    it staged is fed again by running the epoch once more, from the state it began with.
    """
    pending: dict[int, tuple[CheckpointId, set[str]]] = {}
    epochs: dict[int, int] = {}
    for record in history.records.values():
        if isinstance(record, OutcomeRecord) and record.epoch in epochs:
            settled = {sink for sink, status in record.statuses.items() if not status.is_pending}
            pending[epochs[record.epoch]][1].difference_update(settled)
        elif is_decision(record):
            if record.generation > 0:
                # A flow admits no epoch before every sink has committed the last one.
                pending.pop(record.after, None)
                epochs = {epoch: n for epoch, n in epochs.items() if n != record.after}
            if record.receipts:
                pending[record.n] = record.checkpoint_id, set(record.receipts)
                epochs[record.epoch] = record.n
    spared: set[CheckpointId] = set()
    for n, (checkpoint_id, sinks) in pending.items():
        if sinks:
            spared |= {checkpoint_id, *_checkpoint_before(history, n)}
    return spared


def _checkpoint_before(history: History, n: int) -> set[CheckpointId]:
    """The checkpoint that decision ``n`` continues, over light epochs in between; empty at the beginning."""
    record = history.record(n)
    while is_decision(record) and record.after:
        record = history.record(record.after)
        if isinstance(record, CheckpointRecord):
            return {record.checkpoint_id}
    return set()


def _parents(store: PartitionedCheckpointStore, ids: Iterable[CheckpointId]) -> set[CheckpointId]:
    """Every checkpoint that the chains of ``ids`` run through."""
    needed: set[CheckpointId] = set()
    for checkpoint_id in ids:
        try:
            manifest = store.load_raw(checkpoint_id)
            while manifest is not None and manifest.needs_parent() and manifest.parent_id is not None:
                if manifest.parent_id in needed:
                    break
                needed.add(manifest.parent_id)
                manifest = store.load_link(manifest.parent_id, manifest.parent_seal)
        except (CorruptError, UnsupportedFormatError) as error:
            log.warning("the chain of %s ends early: %s", checkpoint_id, error)
    return needed
