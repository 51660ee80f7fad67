"""What is wrong with a checkpoint beyond its manifest: its parents and its objects. Reads, never writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from holdfast.errors import CorruptError, UnsupportedFormatError
from holdfast.layout import split_packed
from holdfast.manifest import CheckpointManifestV2, LogArtifact, PartitionSnapshotEntry
from holdfast.manifest.checks import ValidationIssue, error
from holdfast.store.base import unreadable
from holdfast.store.objects import ObjectReader, mismatch

if TYPE_CHECKING:
    from holdfast.store.partitioned import PartitionedCheckpointStore


def find_chain_faults(
    store: PartitionedCheckpointStore, manifest: CheckpointManifestV2
) -> tuple[list[CheckpointManifestV2], list[ValidationIssue]]:
    """The links that are sound, the checkpoint itself first, and why the chain ends early if it does."""
    links = [manifest]
    history = store.ledger.read()
    while links[-1].needs_parent():
        link = links[-1]
        try:
            parent = store.parent_of(link)
        except (CorruptError, UnsupportedFormatError) as fault:
            return links, [error("broken-chain", f"a parent it needs cannot be read: {fault}")]
        named = history.naming(parent.checkpoint_id) if history.head else None
        if named is not None and str(parent.checkpoint_id) in history.pruned(named.n):
            return links, [error("broken-chain", f"a parent it needs is pruned: {parent.checkpoint_id}")]
        links.append(parent)
    return links, []


def find_object_faults(objects: ObjectReader, manifest: CheckpointManifestV2) -> list[ValidationIssue]:
    """Every byte that the manifest names, read and hashed."""
    return [unreadable(fault) for fault in object_faults(objects, manifest, reads=lambda _: True)]


def object_faults(
    objects: ObjectReader, manifest: CheckpointManifestV2, *, reads: Callable[[str], bool]
) -> Iterator[CorruptError | UnsupportedFormatError]:
    """What is wrong with the objects of one manifest. Of those whose key ``reads`` denies only presence and
    sizes are seen.
    """

    def is_read(name: str) -> bool:
        return reads(objects.key(manifest.checkpoint_id, name))

    packs: dict[str, list[PartitionSnapshotEntry | LogArtifact]] = {}
    for part in artifacts_of(manifest):
        name, entry = split_packed(part.path)
        if entry is not None:
            packs.setdefault(name, []).append(part)
            continue
        whole = manifest.objects.get(name)
        if whole is None:
            yield from _unlisted_faults(objects, manifest, part, read_data=is_read(name))
            continue
        reason = mismatch(whole.size_bytes, whole.sha256, part.size_bytes, part.sha256)
        if reason is not None:
            yield CorruptError(
                objects.key(manifest.checkpoint_id, part.path), f"the manifest contradicts itself: {reason}"
            )
    for name, expected in manifest.objects.items():
        fault = objects.find_fault(manifest.checkpoint_id, name, expected, read_data=is_read(name))
        if fault is not None:
            packs.pop(name, None)
            yield fault
    for name, parts in packs.items():
        if is_read(name):
            yield from _pack_faults(objects, manifest, parts)


def artifacts_of(manifest: CheckpointManifestV2) -> Iterator[PartitionSnapshotEntry | LogArtifact]:
    """Everything of a manifest that has a path."""
    for entry in manifest.operators.values():
        yield from entry.partitions
    if manifest.engine is not None and manifest.engine.logs is not None:
        yield manifest.engine.logs


def _unlisted_faults(
    objects: ObjectReader,
    manifest: CheckpointManifestV2,
    part: PartitionSnapshotEntry | LogArtifact,
    *,
    read_data: bool,
) -> Iterator[CorruptError]:
    """An artifact that no ``objects`` lists: a foreign manifest's."""
    if read_data:
        yield from _pack_faults(objects, manifest, [part])
        return
    size = objects.find_size(manifest.checkpoint_id, part.path)
    reason = "a manifest names it, and it is missing" if size is None else None
    if size is not None:
        reason = mismatch(size, None, part.size_bytes, None)
    if reason is not None:
        yield CorruptError(objects.key(manifest.checkpoint_id, part.path), reason)


def _pack_faults(
    objects: ObjectReader,
    manifest: CheckpointManifestV2,
    parts: list[PartitionSnapshotEntry | LogArtifact],
) -> Iterator[CorruptError]:
    for part in parts:
        try:
            objects.artifact(manifest, part)
        except CorruptError as fault:
            yield fault
