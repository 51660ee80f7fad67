"""Which checkpoints there are: those the ledger names, or in a tree without a ledger, those that lie there.

A manifest that no record names is not a checkpoint, however sound it looks: its attempt was never decided.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.blobs.base import BlobStore
from holdfast.ids import CheckpointId
from holdfast.layout import CheckpointPaths
from holdfast.ledger import CheckpointRecord, Gap, History, PruneRecord, StopRecord


@dataclass(frozen=True, slots=True)
class Named:
    """A checkpoint as its record names it. ``seal`` is what its manifest must have."""

    id: CheckpointId
    epoch: int
    seal: str | None
    record: int


def named_on_timeline(history: History) -> Iterator[Named | Gap]:
    """The checkpoints of the timeline that are not pruned, newest first; a Gap where a record is
    unreadable.
    """
    yield from _unreadable_now(history)
    pruned: set[CheckpointId] = set()
    above = history.head + 1
    for entry in history.walk():
        for number in history.numbers(below=above, above=entry.n):
            record = history.record(number)
            if isinstance(record, PruneRecord):
                pruned.update(record.ids)
            elif (
                isinstance(record, StopRecord) and not isinstance(entry, Gap) and record.epoch == entry.epoch
            ):
                named = named_by(record)
                if named is not None and named.id not in pruned and named.id != entry.checkpoint_id:
                    yield named
        above = entry.n
        if isinstance(entry, Gap):
            yield entry
        elif isinstance(entry, CheckpointRecord) and entry.checkpoint_id not in pruned:
            yield Named(entry.checkpoint_id, entry.epoch, entry.seal, entry.n)


def find_named(history: History, checkpoint_id: CheckpointId) -> Named | None:
    """The checkpoint of this id, on the timeline or abandoned. None if no record names it, or one prunes
    it.
    """
    named = named_by(history.naming(checkpoint_id))
    if named is None or str(checkpoint_id) in history.pruned(named.record):
        return None
    return named


def find_by_listing(blobs: BlobStore, paths: CheckpointPaths) -> list[CheckpointId]:
    """Every id that has a manifest, in the present layout or the older one; ascending."""
    ids = (paths.manifest_id(info.key) for info in blobs.list(paths.base_prefix))
    return sorted({checkpoint_id for checkpoint_id in ids if checkpoint_id is not None})


def named_by(record: object) -> Named | None:
    if isinstance(record, CheckpointRecord):
        return Named(record.checkpoint_id, record.epoch, record.seal, record.n)
    if isinstance(record, StopRecord) and record.checkpoint_id is not None and record.epoch is not None:
        return Named(record.checkpoint_id, record.epoch, record.seal, record.n)
    return None


def _unreadable_now(history: History) -> Iterator[Gap]:
    """What is newer than every sound decision. A restore made since says that a person has looked at it."""
    restore = history.newest_restore
    seen = restore.n if restore is not None else 0
    for number in history.unreadable_since:
        error = history.slot(number).error
        if number > seen and error is not None:
            yield Gap(number, error)
