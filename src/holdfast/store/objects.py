"""Stored objects and the artifacts in them, each checked against what its manifest says of it.

Missing is the same as wrong here: a manifest never names what was not durable before it (I2).
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict

from holdfast.batch import BatchReader
from holdfast.blobs.base import BlobStore, Data
from holdfast.errors import ConflictError, CorruptError, KeyExistsError, KeyNotFoundError
from holdfast.ids import CheckpointId
from holdfast.layout import CheckpointPaths, split_packed
from holdfast.manifest import CheckpointManifestV2, LogArtifact, PartitionSnapshotEntry, StoredObject
from holdfast.manifest.codec import sha256_hex

#: How much of an object is in memory while it is hashed.
STEP_BYTES = 8 * 1024 * 1024
#: Opened batches that are remembered: a chain is at most this long, and each link has its own.
_OPEN_BATCHES = 24


class ObjectReader:
    """Reads what manifests name. Any number of threads."""

    def __init__(self, blobs: BlobStore, paths: CheckpointPaths) -> None:
        self._blobs = blobs
        self._paths = paths
        self._batches: OrderedDict[str, BatchReader] = OrderedDict()
        self._lock = threading.Lock()

    def artifact(self, manifest: CheckpointManifestV2, part: PartitionSnapshotEntry | LogArtifact) -> bytes:
        """The bytes of an artifact. Raises CorruptError if they are missing or not the recorded ones."""
        name, entry = split_packed(part.path)
        if entry is not None:
            data = self._packed(manifest, name, entry)
        else:
            data = self._whole(manifest.checkpoint_id, name)
        return checked(data, part.size_bytes, part.sha256, self.key(manifest.checkpoint_id, part.path))

    def stored(self, manifest: CheckpointManifestV2, name: str) -> bytes:
        """A whole object, checked against ``objects`` where it is listed there. Raises CorruptError."""
        data = self._whole(manifest.checkpoint_id, name)
        expected = manifest.objects.get(name)
        if expected is None:
            return data
        return checked(data, expected.size_bytes, expected.sha256, self.key(manifest.checkpoint_id, name))

    def key(self, checkpoint_id: CheckpointId, path: str) -> str:
        """Where ``path`` of a manifest lies, for people: a packed artifact keeps its ``#entry``."""
        return self._paths.resolve(checkpoint_id, path)

    def find_fault(
        self, checkpoint_id: CheckpointId, name: str, expected: StoredObject, *, read_data: bool
    ) -> CorruptError | None:
        """What is wrong with a whole object; None if nothing is."""
        key = self.find_key(checkpoint_id, name)
        if key is None:
            return CorruptError(self.key(checkpoint_id, name), "a manifest names it, and it is missing")
        try:
            size, sha256 = measured(self._blobs, key, read_data=read_data)
        except KeyNotFoundError:
            return CorruptError(key, "a manifest names it, and it is missing")
        reason = mismatch(size, sha256, expected.size_bytes, expected.sha256 if read_data else None)
        return CorruptError(key, reason) if reason is not None else None

    def find_key(self, checkpoint_id: CheckpointId, name: str) -> str | None:
        """The key at which ``name`` really lies: the older layout leaves out a slash."""
        key = self._paths.resolve(checkpoint_id, name)
        if self._blobs.head(key) is not None:
            return key
        older = f"{self._paths.base_prefix}{checkpoint_id}{name}"
        return older if key != name and self._blobs.head(older) is not None else None

    def find_size(self, checkpoint_id: CheckpointId, name: str) -> int | None:
        """How long ``name`` is, None if it is not there."""
        key = self.find_key(checkpoint_id, name)
        info = self._blobs.head(key) if key is not None else None
        return info.size if info is not None else None

    def _whole(self, checkpoint_id: CheckpointId, name: str) -> bytes:
        key = self._paths.resolve(checkpoint_id, name)
        try:
            return self._blobs.get(key)
        except KeyNotFoundError:
            older = self.find_key(checkpoint_id, name)
            if older is None:
                raise CorruptError(key, "a manifest names it, and it is missing") from None
            return self._blobs.get(older)

    def _packed(self, manifest: CheckpointManifestV2, name: str, entry: str) -> bytes:
        key = self._paths.resolve(manifest.checkpoint_id, name)
        with self._lock:
            batch = self._batches.get(key)
        if batch is None:
            # Its digest before its header: a flipped version number is no newer format.
            batch = BatchReader(self._blobs, key, data=self.stored(manifest, name))
        try:
            data = batch.read(entry)
        except KeyNotFoundError:
            raise CorruptError(key, f"it has no entry {entry!r}, which a manifest names") from None
        # Remembered only once it was seen to open: what is corrupt now may be put back later.
        with self._lock:
            self._batches[key] = batch
            self._batches.move_to_end(key)
            while len(self._batches) > _OPEN_BATCHES:
                self._batches.popitem(last=False)
        return data


def measured(blobs: BlobStore, key: str, *, read_data: bool) -> tuple[int, str | None]:
    """Size of ``key``, and its hash if it is to be read. Raises KeyNotFoundError."""
    if not read_data:
        info = blobs.head(key)
        if info is None:
            raise KeyNotFoundError(key)
        return info.size, None
    digest = hashlib.sha256()
    size = 0
    while True:
        part = blobs.get_range(key, size, STEP_BYTES)
        digest.update(part)
        size += len(part)
        if len(part) < STEP_BYTES:
            return size, digest.hexdigest()


def mismatch(size: int, sha256: str | None, expected_size: int, expected_sha256: str | None) -> str | None:
    """Why an object is not the recorded one. A hash of None was not taken, or not recorded."""
    if size != expected_size:
        return f"it has {size} bytes, and {expected_size} were recorded"
    if sha256 is not None and expected_sha256 is not None and sha256 != expected_sha256:
        return f"its SHA-256 is {sha256}, and {expected_sha256} was recorded"
    return None


def checked(data: bytes, size_bytes: int, sha256: str | None, key: str) -> bytes:
    """``data`` if it is what was recorded. Raises CorruptError."""
    reason = mismatch(len(data), sha256_hex(data) if sha256 is not None else None, size_bytes, sha256)
    if reason is not None:
        raise CorruptError(key, reason).with_hint(
            "holdfast verify --read-data names everything that depends on it"
        )
    return data


def create_once(blobs: BlobStore, key: str, data: Data, sha256: str) -> None:
    """Create ``key``, or find that an earlier try of ours already has. Raises ConflictError otherwise."""
    try:
        blobs.create(key, data)
    except KeyExistsError:
        if measured(blobs, key, read_data=True)[1] != sha256:
            raise ConflictError(f"{key} is there already, with other content").with_hint(
                "holdfast verify names what belongs to no checkpoint; holdfast gc removes it"
            ) from None
