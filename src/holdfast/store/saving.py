"""Publishing a manifest that somebody else filled in, and the sidecar that may go with it.

A ``CheckpointWriter`` hashes what it writes. Here the artifacts lie in the store already, so each is read
once and checked before a record may name it (I2).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.errors import (
    CheckpointNotFoundError,
    ConflictError,
    CorruptError,
    EpochTakenError,
    KeyExistsError,
)
from holdfast.ids import CheckpointId
from holdfast.layout import split_packed
from holdfast.ledger import CheckpointRecord
from holdfast.manifest import CheckpointManifestV2, LogArtifact, PartitionSnapshotEntry, StoredObject
from holdfast.manifest.v2 import differing_fields, read_sealed
from holdfast.store.naming import find_named
from holdfast.store.objects import measured, mismatch
from holdfast.store.validating import artifacts_of

if TYPE_CHECKING:
    from holdfast.store.partitioned import PartitionedCheckpointStore

STATE_NAME = "state.bin"


def save(store: PartitionedCheckpointStore, manifest: CheckpointManifestV2) -> None:
    """Publish, or find that exactly this is published. Raises ConflictError for anything in between."""
    history = store.adopt()
    published = store.load_raw(manifest.checkpoint_id, history)
    if published is not None:
        _refuse_other_content(manifest, published)
        return
    if history.head and str(manifest.checkpoint_id) in history.pruned():
        raise ConflictError(f"checkpoint {manifest.checkpoint_id} was pruned, and its id is never used again")
    manifest = _stored(store, _completed(store, manifest))
    parent = manifest.parent_id
    if parent is not None and find_named(history, parent) is None:
        parent = None  # somebody else's, from before there was a ledger, or only mentioned
    pending = [name for name, status in manifest.sink_commit_statuses.items() if status.is_pending]
    draft = CheckpointRecord(
        epoch=manifest.epoch,
        checkpoint_id=manifest.checkpoint_id,
        seal=manifest.seal or "",
        receipts={**{sink: [] for sink in pending}, **manifest.sink_receipts},
    )
    directory = store.paths.checkpoint_dir(manifest.checkpoint_id)
    names = [directory + name for name in manifest.objects]
    gone = sorted(history.pruned().intersection(names)) if history.head else []
    if gone:
        raise ConflictError(f"{gone[0]} is pruned: a prune record names it, so nothing may refer to it")
    try:
        store.ledger.append(
            draft,
            author=store.author,
            parent=parent,
            names=names,
            since=history.head,
        )
    except EpochTakenError:
        # By a rival that saves the same checkpoint, perhaps: then it is done.
        published = store.load_raw(manifest.checkpoint_id)
        if published is None:
            raise
        _refuse_other_content(manifest, published)


def save_state(store: PartitionedCheckpointStore, checkpoint_id: CheckpointId, data: bytes) -> None:
    """Write the sidecar of a checkpoint that is not published yet, or find that it is the published one."""
    history = store.ledger.read()
    published = store.load_raw(checkpoint_id, history) is not None
    if not published and history.head and str(checkpoint_id) in history.pruned():
        raise ConflictError(f"checkpoint {checkpoint_id} was pruned, and its id is never used again")
    present = store.load_state_data(checkpoint_id)
    if present == data:
        return
    if published:
        raise ConflictError(f"checkpoint {checkpoint_id} is published; its sidecar cannot change any more")
    store.blobs.put(store.paths.state(checkpoint_id), data)


def _refuse_other_content(manifest: CheckpointManifestV2, published: CheckpointManifestV2) -> None:
    differing = differing_fields(manifest, published)
    if differing:
        raise ConflictError(
            f"checkpoint {manifest.checkpoint_id} is published with other content: {', '.join(differing)}"
        ).with_hint("a new checkpoint needs a new id: CheckpointId.now()")


def _completed(store: PartitionedCheckpointStore, manifest: CheckpointManifestV2) -> CheckpointManifestV2:
    """A sealed copy with everything a store fills in, each object of it read and hashed."""
    parent = store.load_raw(manifest.parent_id) if manifest.parent_id is not None else None
    if parent is None and manifest.needs_parent():
        raise CheckpointNotFoundError(manifest.parent_id)
    parts = [*artifacts_of(manifest)]
    names = {split_packed(part.path)[0] for part in parts} | manifest.objects.keys()
    if store.blobs.head(store.paths.state(manifest.checkpoint_id)) is not None:
        names.add(STATE_NAME)
    completed = manifest.replaced(
        generation=store.author.generation,
        writer=store.author.writer,
        parent_seal=(parent.seal or parent.computed_seal()) if parent is not None else None,
        objects={name: _measured(store, manifest, name) for name in sorted(names)},
    )
    for part in parts:
        _check_artifact(store, completed, part)
    return completed.sealed()


def _measured(store: PartitionedCheckpointStore, manifest: CheckpointManifestV2, name: str) -> StoredObject:
    key = store.objects.find_key(manifest.checkpoint_id, name)
    if key is None:
        key = store.objects.key(manifest.checkpoint_id, name)
        raise CorruptError(key, "the manifest names it, and it is missing").with_hint(
            "write every artifact before save()"
        )
    size, sha256 = measured(store.blobs, key, read_data=True)
    given = manifest.objects.get(name)
    reason = mismatch(size, sha256, given.size_bytes, given.sha256) if given is not None else None
    if reason is not None:
        raise CorruptError(key, reason)
    return StoredObject(size_bytes=size, sha256=sha256 or "")


def _check_artifact(
    store: PartitionedCheckpointStore,
    manifest: CheckpointManifestV2,
    part: PartitionSnapshotEntry | LogArtifact,
) -> None:
    name, entry = split_packed(part.path)
    if entry is not None:
        store.objects.artifact(manifest, part)
        return
    whole = manifest.objects[name]
    reason = mismatch(whole.size_bytes, whole.sha256, part.size_bytes, part.sha256)
    if reason is not None:
        raise CorruptError(store.objects.key(manifest.checkpoint_id, name), reason)


def _stored(store: PartitionedCheckpointStore, manifest: CheckpointManifestV2) -> CheckpointManifestV2:
    """Make the manifest durable. An earlier attempt's may lie there: equal content is taken as it is."""
    key = store.paths.manifest(manifest.checkpoint_id)
    data = manifest.to_json()
    try:
        store.blobs.create(key, data)
    except KeyExistsError:
        # Never overwritten: a rival may be publishing that very manifest at this moment.
        lying_there = read_sealed(store.blobs.get(key), key)
        same = not differing_fields(lying_there, manifest) and lying_there.objects == manifest.objects
        if not same or lying_there.parent_seal != manifest.parent_seal or lying_there.seal is None:
            raise ConflictError(f"{key}: another attempt left a manifest with other content").with_hint(
                "a new checkpoint needs a new id: CheckpointId.now()"
            ) from None
        return lying_there
    return manifest
