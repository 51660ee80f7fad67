"""The v1 stores: numbered checkpoints, one manifest and at most one sidecar each. One implementation, two
layouts.

The order of a save is sidecar, manifest, pointer, each durable before the next. A store leaves exactly the
files of its layout: there is no ledger to say what is real, so a checkpoint is real when its manifest is
there, and the newest is the one with the highest number.
"""

from __future__ import annotations

import builtins
import hashlib
import logging
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from holdfast.blobs.base import BlobStore, Data, chunks
from holdfast.blobs.files import FileBlobs
from holdfast.blobs.memory import MemoryBlobs
from holdfast.errors import (
    CheckpointNotFoundError,
    ConflictError,
    CorruptError,
    HoldfastError,
    InvalidInputError,
    KeyExistsError,
    KeyNotFoundError,
    UnsupportedFormatError,
)
from holdfast.manifest import CheckpointManifest, ValidationIssue
from holdfast.manifest.checks import check_v1, error
from holdfast.store.base import (
    ORPHAN_AGE_SECONDS,
    CheckpointStore,
    ValidationResult,
    check_keep,
    not_found,
    unreadable,
)
from holdfast.store.layouts import MAX_ID, FileLayout, NumberedLayout, ObjectLayout
from holdfast.store.objects import measured
from holdfast.store.parallel import raise_first, try_all

log = logging.getLogger("holdfast.store")

DEFAULT_RETAINED = 3


@dataclass(frozen=True, slots=True)
class PrunePlan:
    """Why each one stays that does; which go; and what an earlier prune left behind of others."""

    reasons: dict[int, str]
    doomed: frozenset[int]
    leftover: frozenset[int]


class NumberedCheckpointStore(CheckpointStore[int, CheckpointManifest]):
    """Checkpoints by number, over any blobs. Threads may share it."""

    def __init__(
        self,
        blobs: BlobStore,
        layout: NumberedLayout,
        max_retained: int = DEFAULT_RETAINED,
        *,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        """``max_retained`` is how many checkpoints a save keeps; 0 keeps all."""
        if max_retained < 0:
            raise InvalidInputError(f"max_retained={max_retained}: 0 keeps all, less makes no sense")
        self.blobs = blobs
        self.layout = layout
        self.max_retained = max_retained
        #: Prunes after a save that failed. The saves did not: what is left over is tried again by the next
        #: one.
        self.failed_prunes = 0
        self._now_ms = now_ms

    # Writing

    def save(self, manifest: CheckpointManifest) -> None:
        """Publish ``manifest``, then let the pointer name it, then prune. Only the first can fail a save."""
        number = _checked_number(manifest.checkpoint_id)
        data = manifest.to_json()
        published = self.load_by_id(number)
        if published is None:
            try:
                self.blobs.create(self.layout.manifest_keys(number)[0], data)
            except KeyExistsError:
                published = self.load_by_id(number)
                if published is None:
                    raise
        if published is not None:
            _refuse_other_content(manifest, published)
        self._point_to(number)
        if self.max_retained:
            self._prune_after_save()

    def save_state_data(self, checkpoint_id: int, data: Data) -> None:
        number = _checked_number(checkpoint_id)
        present = self._state_hash(number)
        if present is not None and present == _sha256(data):
            return
        if self._is_published(number):
            raise ConflictError(f"checkpoint {number} is published; its sidecar cannot change any more")
        # What lies there, if anything, is of an attempt that never came to its manifest.
        self.blobs.put(self.layout.state_keys(number)[0], data)

    def save_with_state(self, manifest: CheckpointManifest, state: Data | None) -> None:
        if state is None:
            self.save(manifest)
            return
        number = _checked_number(manifest.checkpoint_id)
        manifest = manifest.replaced(state_checksum=_sha256(state))
        published = self.load_by_id(number)
        if published is not None:
            # Before a byte of the sidecar is touched: whoever loses the race for a number must not harm the
            # winner.
            _refuse_other_content(manifest, published)
        self.save_state_data(number, state)
        self.save(manifest)

    def update_manifest(self, manifest: CheckpointManifest) -> None:
        """Replace a published manifest. The sidecar's checksum stays: what it covers cannot change."""
        number = _checked_number(manifest.checkpoint_id)
        published = self.load_by_id(number)
        if published is None:
            raise CheckpointNotFoundError(number)
        if published.state_checksum is not None:
            manifest = manifest.replaced(state_checksum=published.state_checksum)
        self.blobs.put(self.layout.manifest_keys(number)[0], manifest.to_json())

    # Reading

    def load_latest(self) -> CheckpointManifest | None:
        numbers = self.list_ids()
        return self.load_by_id(numbers[-1]) if numbers else None

    def load_by_id(self, checkpoint_id: int) -> CheckpointManifest | None:
        for key in self.layout.manifest_keys(checkpoint_id):
            try:
                data = self.blobs.get(key)
            except KeyNotFoundError:
                continue
            manifest = CheckpointManifest.from_json(data, key)
            if manifest.checkpoint_id != checkpoint_id:
                raise CorruptError(key, f"it holds the manifest of checkpoint {manifest.checkpoint_id}")
            return manifest
        return None

    def list(self) -> builtins.list[tuple[int, int]]:
        loadable = []
        for number in self.list_ids():
            try:
                manifest = self.load_by_id(number)
            except (CorruptError, UnsupportedFormatError) as fault:
                log.warning("left out of the list: %s", fault)
                continue
            if manifest is not None:
                loadable.append((number, manifest.epoch))
        return loadable

    def list_ids(self) -> builtins.list[int]:
        return sorted(self._numbers()[0])

    def load_state_data(self, checkpoint_id: int) -> bytes | None:
        """The sidecar. Raises CorruptError where it is not the one that its manifest was published with."""
        for key in self.layout.state_keys(checkpoint_id):
            try:
                data = self.blobs.get(key)
            except KeyNotFoundError:
                continue
            manifest = self.load_by_id(checkpoint_id)
            expected = manifest.state_checksum if manifest is not None else None
            if expected is not None and _sha256(data) != expected:
                raise CorruptError(key, f"its SHA-256 is {_sha256(data)}, and {expected} was recorded")
            return data
        return None

    def validate_checkpoint(self, checkpoint_id: int) -> ValidationResult[int]:
        try:
            manifest = self.load_by_id(checkpoint_id)
        except (CorruptError, UnsupportedFormatError) as fault:
            return ValidationResult.of(checkpoint_id, [_corrupt_manifest(fault)])
        if manifest is None:
            return ValidationResult.of(checkpoint_id, [not_found(checkpoint_id)])
        issues = [*check_v1(manifest), *self._sidecar_issues(manifest), *self.chain_issues(manifest)]
        return ValidationResult.of(checkpoint_id, issues)

    # Deleting

    def prune(self, keep: int) -> int:
        plan = self.plan_prune(keep)
        failures = try_all(self._delete, sorted(plan.doomed | plan.leftover))
        raise_first(failures)
        return len(plan.doomed)

    def plan_prune(self, keep: int) -> PrunePlan:
        """What ``prune(keep)`` would do, and why. Writes nothing."""
        check_keep(keep)
        published, states = self._numbers()
        kept = self._newest_loadable(sorted(published, reverse=True), keep)
        # With fewer sound ones than were asked for, a damaged one may be all that somebody has.
        oldest = min(kept) if len(kept) == keep else 0
        reasons = self._protected(published, oldest)
        for number in (number for number in published if number >= oldest and number not in kept):
            reasons[number] = "damaged, and newer than the oldest one kept"
        reasons |= {number: f"newest {at} of {keep}" for at, number in enumerate(kept, start=1)}
        # Sidecars below that have no manifest are what an earlier prune could not delete, or nobody
        # published.
        leftover = {number for number in states if number < oldest} - published
        return PrunePlan(reasons, frozenset(published - reasons.keys()), frozenset(leftover))

    def cleanup_orphans(self, min_age_seconds: float = ORPHAN_AGE_SECONDS) -> int:
        orphans = self.find_orphans(min_age_seconds)
        failures = try_all(self.blobs.delete, orphans)
        raise_first(failures)
        return len(orphans) + self.blobs.sweep_leftovers(min_age_seconds=min_age_seconds)

    def find_orphans(self, min_age_seconds: float) -> builtins.list[str]:
        """Sidecars that no manifest needs, and temporary files of other writers, not younger than that."""
        newest_ms = self._now_ms() - int(min_age_seconds * 1000)
        published, _ = self._numbers()
        orphans = []
        for prefix in self.layout.prefixes:
            for info in self.blobs.list(prefix):
                number = self.layout.state_number(info.key)
                orphaned = number is not None and number not in published
                if (orphaned or info.key.endswith(".tmp")) and info.modified_ms <= newest_ms:
                    orphans.append(info.key)
        return orphans

    # Helpers

    def read_pointer(self) -> int | None:
        """What the pointer names; None if it is missing or garbage."""
        return self.layout.read_pointer(self.blobs)

    def find_state_key(self, checkpoint_id: int) -> str | None:
        """Where the sidecar lies, None if there is none."""
        keys = self.layout.state_keys(checkpoint_id)
        return next((key for key in keys if self.blobs.head(key) is not None), None)

    def find_manifest_key(self, checkpoint_id: int) -> str | None:
        """Where the manifest lies, None if there is none."""
        keys = self.layout.manifest_keys(checkpoint_id)
        return next((key for key in keys if self.blobs.head(key) is not None), None)

    def _numbers(self) -> tuple[set[int], set[int]]:
        """Numbers that have a manifest, and those that have a sidecar."""
        published: set[int] = set()
        states: set[int] = set()
        for prefix in self.layout.prefixes:
            for info in self.blobs.list(prefix):
                number = self.layout.manifest_number(info.key)
                if number is not None:
                    published.add(number)
                    continue
                number = self.layout.state_number(info.key)
                if number is not None:
                    states.add(number)
        return published, states

    def _is_published(self, number: int) -> bool:
        return self.find_manifest_key(number) is not None

    def _state_hash(self, number: int) -> str | None:
        key = self.find_state_key(number)
        return measured(self.blobs, key, read_data=True)[1] if key is not None else None

    def _point_to(self, number: int) -> None:
        """A hint: it never moves back from a checkpoint that is there, and failing to write it is no
        failure.
        """
        try:
            current = self.read_pointer()
            if current is not None and current > number and self._is_published(current):
                return
            encoded = self.layout.encode_pointer(number)
            if current != number or self._pointer_bytes() != encoded:
                self.blobs.put(self.layout.pointer, encoded)
        except HoldfastError as fault:
            log.warning("the pointer %s stays as it is: %s", self.layout.pointer, fault)

    def _pointer_bytes(self) -> bytes | None:
        try:
            return self.blobs.get(self.layout.pointer)
        except KeyNotFoundError:
            return None

    def _prune_after_save(self) -> None:
        try:
            self.prune(self.max_retained)
        except HoldfastError as fault:
            self.failed_prunes += 1
            log.warning("old checkpoints were not all pruned, the next save tries again: %s", fault)

    def _newest_loadable(self, numbers: Iterable[int], keep: int) -> builtins.list[int]:
        kept: builtins.list[int] = []
        for number in numbers:
            if len(kept) == keep:
                break
            try:
                if self.load_by_id(number) is not None:
                    kept.append(number)
            except (CorruptError, UnsupportedFormatError) as fault:
                log.warning("not counted as kept: %s", fault)
        return kept

    def _protected(self, published: set[int], oldest: int) -> dict[int, str]:
        """The pointer's target, and every parent that something kept was taken on top of, with the reason."""
        pointer = self.read_pointer()
        spared = {pointer: "the pointer names it"} if pointer in published and pointer is not None else {}
        for number in [*(n for n in published if n >= oldest), *spared]:
            parent = self._parent_of(number)
            while parent is not None and parent not in spared:
                spared[parent] = f"checkpoint {number} continues it"
                parent = self._parent_of(parent)
        return spared

    def _parent_of(self, number: int) -> int | None:
        try:
            manifest = self.load_by_id(number)
        except (CorruptError, UnsupportedFormatError):
            return None
        return manifest.parent_id if manifest is not None and manifest.is_incremental else None

    def _delete(self, number: int) -> None:
        # Manifest first: what has none is no checkpoint to anybody, and none names a sidecar that is gone.
        for key in (*self.layout.manifest_keys(number), *self.layout.state_keys(number)):
            self.blobs.delete(key)

    def _sidecar_issues(self, manifest: CheckpointManifest) -> builtins.list[ValidationIssue]:
        if not manifest.needs_sidecar():
            return []
        key = self.find_state_key(manifest.checkpoint_id)
        if key is None:
            named = "by checksum" if manifest.state_checksum is not None else "by operator state"
            return [error("sidecar-missing", f"state.bin referenced {named} but not found")]
        size, sha256 = measured(self.blobs, key, read_data=True)
        issues = []
        if manifest.state_checksum is not None and sha256 != manifest.state_checksum:
            text = f"state.bin checksum mismatch: expected {manifest.state_checksum}, got {sha256}"
            issues.append(error("sidecar-checksum", text))
        if manifest.external_bytes() > size:
            text = f"state.bin has {size} bytes, and operator state runs to byte {manifest.external_bytes()}"
            issues.append(error("sidecar-short", text))
        return issues

    def chain_issues(self, manifest: CheckpointManifest) -> builtins.list[ValidationIssue]:
        """Why a parent that an incremental checkpoint needs is no parent; empty if all of them are sound."""
        seen = {manifest.checkpoint_id}
        while manifest.is_incremental and manifest.parent_id is not None:
            number = manifest.parent_id
            if number in seen:
                return [error("broken-chain", f"checkpoint {number} is its own ancestor")]
            seen.add(number)
            try:
                parent = self.load_by_id(number)
            except (CorruptError, UnsupportedFormatError) as fault:
                return [error("broken-chain", f"a parent it needs cannot be read: {fault}")]
            if parent is None:
                return [error("broken-chain", f"a parent it needs is missing: {number}")]
            broken = self._sidecar_issues(parent)
            if broken:
                return [error("broken-chain", f"parent {number}: {broken[0].message}")]
            manifest = parent
        return []


class FileSystemCheckpointStore(NumberedCheckpointStore):
    """v1 checkpoints below ``base_dir``, one directory each."""

    def __init__(
        self,
        base_dir: str | os.PathLike[str],
        max_retained: int = DEFAULT_RETAINED,
        *,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        super().__init__(FileBlobs(base_dir), FileLayout(), max_retained, now_ms=now_ms)


class ObjectStoreCheckpointStore(NumberedCheckpointStore):
    """v1 checkpoints in a bucket, below ``prefix``. Reads what lies in the layout of files as well."""

    def __init__(
        self,
        blobs: BlobStore,
        prefix: str = "",
        max_retained: int = DEFAULT_RETAINED,
        *,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        super().__init__(blobs, ObjectLayout(prefix), max_retained, now_ms=now_ms)


class MemoryCheckpointStore(NumberedCheckpointStore):
    """v1 checkpoints that end with the process."""

    def __init__(
        self,
        max_retained: int = DEFAULT_RETAINED,
        *,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        super().__init__(MemoryBlobs(now_ms=now_ms), ObjectLayout(), max_retained, now_ms=now_ms)


def _checked_number(number: int) -> int:
    if type(number) is not int or not 0 < number <= MAX_ID:
        raise InvalidInputError(f"a checkpoint id is a number from 1 to {MAX_ID}, not {number!r}")
    return number


def _refuse_other_content(manifest: CheckpointManifest, published: CheckpointManifest) -> None:
    mine, theirs = manifest.content(), published.content()
    differing = sorted(name for name in mine if mine[name] != theirs[name])
    if differing:
        raise ConflictError(
            f"checkpoint {manifest.checkpoint_id} is published with other content: {', '.join(differing)}"
        ).with_hint("a new checkpoint needs a new id, higher than every one in the store")


def _corrupt_manifest(fault: CorruptError | UnsupportedFormatError) -> ValidationIssue:
    found = unreadable(fault)
    return error(found.code, f"corrupt manifest: {found.message}") if found.code == "corrupt" else found


def _sha256(data: Data) -> str:
    digest = hashlib.sha256()
    for part in chunks(data):
        digest.update(part)
    return digest.hexdigest()
