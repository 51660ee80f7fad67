"""The v2 store: a checkpoint in parts, sealed, chained to its parent, and real because the ledger says so.

Manifests are looked up by what the ledger names, never by what lies there. A tree without a ledger is
somebody else's: it can be read, and the first write adopts its newest manifest into a new ledger.
"""

from __future__ import annotations

import builtins
import logging
import time
from collections.abc import Callable, Iterator

from holdfast.blobs.base import BlobStore, Data, joined
from holdfast.errors import (
    CheckpointNotFoundError,
    ConflictError,
    CorruptError,
    EpochTakenError,
    HoldfastError,
    KeyNotFoundError,
    NotFoundError,
    UnsupportedFormatError,
)
from holdfast.ids import CheckpointId
from holdfast.layout import CheckpointPaths, ledger_key
from holdfast.ledger import (
    Author,
    CheckpointRecord,
    Gap,
    History,
    HoldRecord,
    Ledger,
    OutcomeRecord,
    is_decision,
    new_writer,
)
from holdfast.manifest import CheckpointManifestV2, PartitionSnapshotEntry
from holdfast.manifest.checks import check_v2
from holdfast.manifest.codec import parse_object, sha256_hex
from holdfast.manifest.v2 import differing_fields, read_sealed, seal_of
from holdfast.store.base import (
    ORPHAN_AGE_SECONDS,
    CheckpointStore,
    ValidationResult,
    check_keep,
    not_found,
    unreadable,
)
from holdfast.store.naming import Named, find_by_listing, find_named, named_on_timeline
from holdfast.store.objects import ObjectReader
from holdfast.store.orphans import remove_orphans
from holdfast.store.pruning import prune
from holdfast.store.saving import STATE_NAME, save, save_state
from holdfast.store.validating import find_chain_faults, find_object_faults
from holdfast.store.writing import CheckpointWriter

log = logging.getLogger("holdfast.store")


class PartitionedCheckpointStore(CheckpointStore[CheckpointId, CheckpointManifestV2]):
    """Checkpoints of one flow, or of whoever uses this as a library. Threads may share it."""

    def __init__(
        self,
        blobs: BlobStore,
        paths: CheckpointPaths | None = None,
        *,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self.blobs = blobs
        self.paths = paths if paths is not None else CheckpointPaths()
        self.ledger = Ledger(blobs, now_ms=now_ms)
        self.objects = ObjectReader(blobs, self.paths)
        self.now_ms = now_ms
        #: Who appends when nobody else is named: a writer outside any generation.
        self.author = Author(0, new_writer())

    # Writing

    def writer(
        self, epoch: int, parent: CheckpointId | None = None, *, author: Author | None = None
    ) -> CheckpointWriter:
        """A new checkpoint of ``epoch``, with deltas since ``parent`` if one is given.

        Raises EpochTakenError if the epoch is decided already, CheckpointNotFoundError or CorruptError for a
        parent that is none. Publishing checks all of this again, against rivals.
        """
        history = self.adopt()
        if epoch <= history.highest_epoch:
            taken = history.decision_of(epoch)
            if taken is not None:
                raise EpochTakenError(epoch, taken.n)
        manifest = CheckpointManifestV2.new(self._next_id(history), epoch, timestamp_ms=self.now_ms())
        if parent is not None:
            found = self.load_raw(parent, history)
            if found is None:
                raise CheckpointNotFoundError(parent)
            manifest.parent_id, manifest.parent_seal = parent, found.seal or found.computed_seal()
        return CheckpointWriter(self, manifest, author or self.author, since=history.head)

    def save(self, manifest: CheckpointManifestV2) -> None:
        """Publish ``manifest``, whose artifacts are in the store already.

        Raises CorruptError for an artifact that is missing or not as the manifest says, ConflictError if the
        id is published with other content.
        """
        save(self, manifest)
        self.point_to(manifest.checkpoint_id)

    def save_state_data(self, checkpoint_id: CheckpointId, data: Data) -> None:
        save_state(self, checkpoint_id, joined(data))

    def save_with_state(self, manifest: CheckpointManifestV2, state: Data | None) -> None:
        published = self.load_raw(manifest.checkpoint_id)
        if published is not None:
            stored = published.objects.get(STATE_NAME)
            given = sha256_hex(joined(state)) if state is not None else None
            if given != (stored.sha256 if stored is not None else None):
                raise ConflictError(f"checkpoint {manifest.checkpoint_id} is published with another sidecar")
        elif state is not None:
            self.save_state_data(manifest.checkpoint_id, state)
        self.save(manifest)

    def update_manifest(self, manifest: CheckpointManifestV2) -> None:
        """Record new ``sink_commit_statuses``, the one thing about a published checkpoint that may change."""
        published = self.load_by_id(manifest.checkpoint_id)
        if published is None:
            raise CheckpointNotFoundError(manifest.checkpoint_id)
        differing = [name for name in differing_fields(manifest, published) if name != "sink_commit_statuses"]
        if differing:
            fixed = ", ".join(differing)
            raise ConflictError(f"checkpoint {manifest.checkpoint_id} is published: {fixed} cannot change")
        statuses = {
            sink: status
            for sink, status in manifest.sink_commit_statuses.items()
            if published.sink_commit_statuses.get(sink) != status
        }
        if statuses:
            self.adopt()
            self.ledger.append(OutcomeRecord(epoch=manifest.epoch, statuses=statuses), author=self.author)

    def adopt(self) -> History:
        """The ledger; a new one that names the newest manifest, where somebody else's tree has none yet.

        Raises CorruptError if that manifest cannot be read: what is built on it would be lost with it.
        """
        history = self.ledger.read()
        while history.head == 0:
            newest = next(self._foreign(), None)
            if newest is None:
                return history
            data, key = self.manifest_bytes(newest)
            manifest = self._parsed(data, key, newest, None)
            seal = seal_of(parse_object(data, key))
            draft = CheckpointRecord(epoch=manifest.epoch, checkpoint_id=newest, seal=seal)
            try:
                self.ledger.append(draft, author=self.author)
            except ConflictError:
                # Somebody else adopted it, or has started here.
                log.info("the tree at %s was adopted by another writer", self.paths.base_prefix)
            history = self.ledger.read()
        return history

    def point_to(self, checkpoint_id: CheckpointId) -> None:
        """Let ``_latest`` name this checkpoint, unless it names a later one. A hint: failing is not an
        error.
        """
        try:
            current = self.read_pointer()
            if current is not None and current > checkpoint_id and self.load_raw(current) is not None:
                return
            if current != checkpoint_id:
                self.blobs.put(self.paths.latest_pointer(), str(checkpoint_id).encode())
        except HoldfastError as error:
            log.warning("the pointer %s stays as it is: %s", self.paths.latest_pointer(), error)

    def read_pointer(self) -> CheckpointId | None:
        """What ``_latest`` names; None if it is missing or garbage."""
        try:
            return CheckpointId.parse(self.blobs.get(self.paths.latest_pointer()).decode().strip())
        except (KeyNotFoundError, UnicodeDecodeError, ValueError):
            return None

    # Reading

    def load_latest(self) -> CheckpointManifestV2 | None:
        history = self.ledger.read()
        if history.head == 0:
            foreign = next(self._foreign(), None)
            return self._parsed(*self.manifest_bytes(foreign), foreign, None) if foreign else None
        newest = next(named_on_timeline(history), None)
        if isinstance(newest, Gap):
            raise newest.error.with_hint(
                "holdfast verify says more; holdfast recover --dry-run says what to do"
            )
        return self._merged(self.load_named(newest), history) if newest is not None else None

    def load_by_id(self, checkpoint_id: CheckpointId) -> CheckpointManifestV2 | None:
        """The manifest as published, with the sink statuses that later records tell."""
        history = self.ledger.read()
        raw = self.load_raw(checkpoint_id, history)
        return self._merged(raw, history) if raw is not None else None

    def load_raw(
        self, checkpoint_id: CheckpointId, history: History | None = None
    ) -> CheckpointManifestV2 | None:
        """The manifest as published. Raises CorruptError if the ledger names it and it is not as recorded."""
        history = history if history is not None else self.ledger.read()
        named = find_named(history, checkpoint_id) if history.head else None
        if named is not None:
            return self.load_named(named)
        if history.head and history.naming(checkpoint_id) is not None:
            return None  # pruned: gone from then on, whether or not it still lies there
        try:
            data, key = self.manifest_bytes(checkpoint_id)
        except CorruptError:
            return None
        manifest = self._parsed(data, key, checkpoint_id, None)
        # Ours, and no record names it: an attempt that was never decided.
        return None if manifest.writer is not None else manifest

    def list(self) -> builtins.list[tuple[CheckpointId, int]]:
        loadable = []
        for named in self.named():
            if isinstance(named, Gap):
                continue
            try:
                loadable.append((named.id, self.load_named(named).epoch))
            except (CorruptError, UnsupportedFormatError) as error:
                log.warning("left out of the list: %s", error)
        return loadable

    def list_ids(self) -> builtins.list[CheckpointId]:
        return [named.id for named in self.named() if not isinstance(named, Gap)]

    def named(self) -> builtins.list[Named | Gap]:
        """What the timeline names, oldest first, unreadable records in their place."""
        history = self.ledger.read()
        if history.head == 0:
            found: builtins.list[Named | Gap] = [Named(id, 0, None, 0) for id in self._foreign()]
        else:
            found = [*named_on_timeline(history)]
        return found[::-1]

    def candidates(self) -> Iterator[tuple[CheckpointId | None, str | None]]:
        history = self.ledger.read()
        if history.head == 0:
            yield from super().candidates()
        for named in named_on_timeline(history) if history.head else ():
            if isinstance(named, Gap):
                yield None, f"{ledger_key(named.n)}: {named.error.reason}; it may have named a checkpoint"
            else:
                yield named.id, None

    def load_state_data(self, checkpoint_id: CheckpointId) -> bytes | None:
        manifest = self.load_raw(checkpoint_id)
        if manifest is not None and STATE_NAME in manifest.objects:
            return self.objects.stored(manifest, STATE_NAME)
        try:
            return self.blobs.get(self.paths.state(checkpoint_id))
        except KeyNotFoundError:
            return None

    def chain(self, checkpoint_id: CheckpointId) -> builtins.list[CheckpointManifestV2]:
        """The manifests that this checkpoint's state is spread over, the snapshot first.

        Raises CheckpointNotFoundError, and CorruptError if a link is missing, unreadable or not the one
        meant.
        """
        manifest = self.load_raw(checkpoint_id)
        if manifest is None:
            raise CheckpointNotFoundError(checkpoint_id)
        links = [manifest]
        while manifest.needs_parent():
            manifest = self.parent_of(manifest)
            links.append(manifest)
        return links[::-1]

    def read_state(self, checkpoint_id: CheckpointId, operator: str, partition: int) -> builtins.list[bytes]:
        """One partition's artifacts, the snapshot first, each checked. Raises NotFoundError if there is
        none.
        """
        found: builtins.list[bytes] = []
        for manifest in self.chain(checkpoint_id):
            for part in _parts_of(manifest, operator, partition):
                if not part.is_delta:
                    found.clear()
                found.append(self.objects.artifact(manifest, part))
        if not found:
            raise NotFoundError(f"checkpoint {checkpoint_id} holds no state of {operator!r}/{partition}")
        return found

    def read_logs(self, checkpoint_id: CheckpointId) -> builtins.list[bytes]:
        """The log artifacts of the chain, the snapshot first, each checked. Empty if none were taken."""
        found: builtins.list[bytes] = []
        for manifest in self.chain(checkpoint_id):
            logs = manifest.engine.logs if manifest.engine is not None else None
            if logs is None:
                continue
            if not logs.is_delta:
                found.clear()
            found.append(self.objects.artifact(manifest, logs))
        return found

    def validate_checkpoint(self, checkpoint_id: CheckpointId) -> ValidationResult[CheckpointId]:
        try:
            manifest = self.load_by_id(checkpoint_id)
        except (CorruptError, UnsupportedFormatError) as error:
            return ValidationResult.of(checkpoint_id, [unreadable(error)])
        if manifest is None:
            return ValidationResult.of(checkpoint_id, [not_found(checkpoint_id)])
        issues = check_v2(manifest)
        links, faults = find_chain_faults(self, manifest)
        issues += faults
        for link in links:
            issues += find_object_faults(self.objects, link)
        return ValidationResult.of(checkpoint_id, issues)

    # Deleting

    def prune(self, keep: int, *, author: Author | None = None) -> int:
        check_keep(keep)
        return prune(self, keep, author=author)

    def cleanup_orphans(self, min_age_seconds: float = ORPHAN_AGE_SECONDS) -> int:
        return remove_orphans(self, min_age_seconds) + self.blobs.sweep_leftovers(
            min_age_seconds=min_age_seconds
        )

    # Helpers

    def manifest_bytes(self, checkpoint_id: CheckpointId) -> tuple[bytes, str]:
        """A manifest as it lies there, and where. Raises CorruptError if it is missing."""
        for key in (self.paths.manifest(checkpoint_id), self.paths.old_manifest(checkpoint_id)):
            try:
                return self.blobs.get(key), key
            except KeyNotFoundError:
                continue
        raise CorruptError(self.paths.manifest(checkpoint_id), "the manifest is missing")

    def load_link(self, checkpoint_id: CheckpointId, seal: str | None) -> CheckpointManifestV2:
        """The manifest of a parent, as its child sealed it. Raises CorruptError if it is not there as
        such.
        """
        data, key = self.manifest_bytes(checkpoint_id)
        return self._parsed(data, key, checkpoint_id, seal)

    def parent_of(self, manifest: CheckpointManifestV2) -> CheckpointManifestV2:
        if manifest.parent_id is None:
            key = self.paths.manifest(manifest.checkpoint_id)
            raise CorruptError(key, "it holds deltas and names no parent that they continue")
        parent = self.load_link(manifest.parent_id, manifest.parent_seal)
        if parent.epoch >= manifest.epoch:
            key = self.paths.manifest(manifest.checkpoint_id)
            raise CorruptError(
                key, f"its parent has epoch {parent.epoch}, which is not before {manifest.epoch}"
            )
        return parent

    def load_named(self, named: Named) -> CheckpointManifestV2:
        data, key = self.manifest_bytes(named.id)
        return self._parsed(data, key, named.id, named.seal)

    def _parsed(
        self, data: bytes, key: str, checkpoint_id: CheckpointId, seal: str | None
    ) -> CheckpointManifestV2:
        manifest = read_sealed(data, key, expected_seal=seal)
        if manifest.checkpoint_id != checkpoint_id:
            raise CorruptError(key, f"it holds the manifest of checkpoint {manifest.checkpoint_id}")
        return manifest

    def _merged(self, manifest: CheckpointManifestV2, history: History) -> CheckpointManifestV2:
        if not history.head or not (manifest.sink_commit_statuses or manifest.sink_receipts):
            return manifest
        told = {
            sink: status
            for sink, status in history.statuses(manifest.epoch).items()
            # That nobody has said anything since is no news about a sink that was settled before.
            if not (status.is_pending and sink in manifest.sink_commit_statuses)
        }
        if not told:
            return manifest
        return manifest.replaced(sink_commit_statuses={**manifest.sink_commit_statuses, **told})

    def _next_id(self, history: History) -> CheckpointId:
        """An id later than every one decided so far, abandoned ones included: ids sort as the timeline
        does.
        """
        after: CheckpointId | None = None
        for number in history.numbers():
            record = history.record(number)
            named = getattr(record, "checkpoint_id", None)
            if isinstance(named, CheckpointId) and not isinstance(record, HoldRecord):
                after = max(after, named) if after is not None else named
            if is_decision(record):
                break
        return CheckpointId.now(after=after)

    def _foreign(self) -> Iterator[CheckpointId]:
        """The checkpoints of a tree without a ledger, newest first, unreadable ones included.

        A manifest with a writer is ours: its first decision never came, so it is no checkpoint.
        """
        for checkpoint_id in reversed(find_by_listing(self.blobs, self.paths)):
            try:
                manifest = self._parsed(*self.manifest_bytes(checkpoint_id), checkpoint_id, None)
            except (CorruptError, UnsupportedFormatError):
                yield checkpoint_id
            else:
                if manifest.writer is None:
                    yield checkpoint_id


def _parts_of(manifest: CheckpointManifestV2, operator: str, partition: int) -> list[PartitionSnapshotEntry]:
    entry = manifest.operators.get(operator)
    parts = [part for part in entry.partitions if part.partition_id == partition] if entry is not None else []
    # In one manifest a snapshot comes before the deltas on it, in whatever order they are listed.
    return sorted(parts, key=lambda part: part.is_delta)
