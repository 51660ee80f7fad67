"""Deleting what no checkpoint names: attempts that were never decided, and what a killed prune left.

Age keeps us away from a writer at work, and the ``prune`` record from one that was asleep: its record would
refer to what is named here, so it is refused (I7).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from holdfast.blobs.base import BlobInfo
from holdfast.errors import CorruptError, UnsupportedFormatError
from holdfast.ids import CheckpointId
from holdfast.layout import LOGS_PREFIX, split_packed
from holdfast.ledger import History, LogObject, PruneRecord, SavepointRecord, StalePlanError, is_decision
from holdfast.manifest import CheckpointManifestV2
from holdfast.manifest.v2 import read_sealed
from holdfast.store.parallel import raise_first, try_all
from holdfast.store.pruning import refuse_unreadable
from holdfast.store.validating import artifacts_of

if TYPE_CHECKING:
    from holdfast.store.partitioned import PartitionedCheckpointStore

log = logging.getLogger("holdfast.store")


@dataclass(slots=True)
class Orphans:
    """What nobody names: whole attempts, and single objects. ``pruned`` is named already, and may go at
    once.
    """

    ids: dict[CheckpointId, list[str]] = field(default_factory=dict)
    keys: list[str] = field(default_factory=list)
    pruned: list[str] = field(default_factory=list)

    def all_keys(self) -> Iterator[str]:
        """Manifests first, of each attempt."""
        for keys in self.ids.values():
            yield from sorted(keys, key=lambda key: (not key.endswith("manifest.json"), key))
        yield from sorted(self.pruned, key=lambda key: (not key.endswith("manifest.json"), key))
        yield from self.keys


def remove_orphans(store: PartitionedCheckpointStore, min_age_seconds: float) -> int:
    """Delete every orphan older than that; how many objects are gone. Raises the first failure at the end."""
    store.adopt()
    while True:
        history = store.ledger.read()
        orphans = find_orphans(store, history, newest_ms=store.now_ms() - int(min_age_seconds * 1000))
        if not orphans.ids and not orphans.keys:
            break
        draft = PruneRecord(ids=sorted(orphans.ids), keys=sorted(orphans.keys))
        try:
            store.ledger.append(draft, author=store.author, planned_at=history.head)
        except StalePlanError as error:
            log.info("the clean-up is planned again: %s", error)
            continue
        break
    keys = list(orphans.all_keys())
    manifests = [key for key in keys if key.endswith("manifest.json")]
    failures = try_all(store.blobs.delete, manifests)
    failures += try_all(store.blobs.delete, [key for key in keys if not key.endswith("manifest.json")])
    raise_first(failures)
    return len(keys)


def find_orphans(store: PartitionedCheckpointStore, history: History, *, newest_ms: int) -> Orphans:
    """What nobody names and nobody touched since ``newest_ms``. Raises if the ledger cannot be read in
    full.
    """
    refuse_unreadable(history)
    named_ids, named_keys = _named(history)
    pruned = history.pruned()
    orphans = Orphans()
    for owner, infos in _by_owner(store).items():
        keys = [info.key for info in infos]
        if str(owner) in pruned:
            orphans.pruned += keys
        elif owner in named_ids:
            known = _known_keys(store, owner)
            strays = [info for info in infos if known is not None and info.key not in known]
            orphans.keys += [info.key for info in strays if info.modified_ms <= newest_ms]
        elif max(info.modified_ms for info in infos) <= newest_ms and not _is_foreign(store, owner, keys):
            orphans.ids[owner] = keys
    for info in store.blobs.list(LOGS_PREFIX):
        if info.key in pruned:
            orphans.pruned.append(info.key)
        elif info.key not in named_keys and info.modified_ms <= newest_ms:
            orphans.keys.append(info.key)
    return orphans


def _by_owner(store: PartitionedCheckpointStore) -> dict[CheckpointId, list[BlobInfo]]:
    found: dict[CheckpointId, list[BlobInfo]] = {}
    for info in store.blobs.list(store.paths.base_prefix):
        owner = store.paths.owner(info.key)
        if owner is not None:
            found.setdefault(owner, []).append(info)
    return found


def _named(history: History) -> tuple[set[CheckpointId], set[str]]:
    """Every id and key that some record names, abandoned decisions included."""
    ids: set[CheckpointId] = set()
    keys: set[str] = set()
    for record in history.records.values():
        checkpoint_id = getattr(record, "checkpoint_id", None)
        if isinstance(checkpoint_id, CheckpointId):
            ids.add(checkpoint_id)
        if isinstance(record, SavepointRecord):
            keys.add(record.key)
        if is_decision(record):
            keys.update(log.key for log in record.logs.values() if isinstance(log, LogObject))
    return ids, keys


def _known_keys(store: PartitionedCheckpointStore, checkpoint_id: CheckpointId) -> set[str] | None:
    """What a published checkpoint consists of; None if that cannot be told, or it is not our kind."""
    try:
        manifest = store.load_raw(checkpoint_id)
    except (CorruptError, UnsupportedFormatError):
        return None
    if manifest is None or manifest.writer is None:
        return None
    return {store.paths.manifest(checkpoint_id), *keys_of(store, manifest)}


def keys_of(store: PartitionedCheckpointStore, manifest: CheckpointManifestV2) -> set[str]:
    """Every key that a manifest names."""
    names = {split_packed(part.path)[0] for part in artifacts_of(manifest)} | manifest.objects.keys()
    return {store.paths.resolve(manifest.checkpoint_id, name) for name in names}


def _is_foreign(store: PartitionedCheckpointStore, owner: CheckpointId, keys: list[str]) -> bool:
    """Whether this is somebody else's checkpoint, from before there was a ledger: not ours to delete."""
    for key in (store.paths.manifest(owner), store.paths.old_manifest(owner)):
        if key in keys:
            try:
                return read_sealed(store.blobs.get(key), key).writer is None
            except (CorruptError, UnsupportedFormatError):
                return True
    return False
