"""One checkpoint on its way into a store: artifacts, then all objects and the manifest, then the record.

    add, add_logs, add_offsets      large artifacts are on their way at once, small ones are kept to be packed
    write                           everything durable, nothing decided: leftovers of this are nobody's
    publish                         the ledger record: from here on the checkpoint exists (I1, I2)

The manifest needs hashes only, so it travels beside the objects it names. The record waits for all of them.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from holdfast.batch import encode_batch
from holdfast.blobs.base import Data, chunks, joined
from holdfast.errors import InvalidInputError, OutcomeUnknownError
from holdfast.ids import CheckpointId
from holdfast.layout import artifact_path, batch_name, encode_name, packed_path
from holdfast.ledger import Author, CheckpointRecord, LogObject, store_logs
from holdfast.manifest import (
    CheckpointManifestV2,
    Engine,
    LogArtifact,
    OperatorSnapshotEntry,
    PartitionSnapshotEntry,
    Receipt,
    SourceOffsetEntry,
    StoredObject,
)
from holdfast.manifest.codec import pretty, sha256_hex, to_document
from holdfast.store.objects import create_once
from holdfast.store.parallel import run_all

if TYPE_CHECKING:
    from holdfast.store.partitioned import PartitionedCheckpointStore

#: From here on an artifact is an object of its own.
PACKED_BELOW_BYTES = 1024 * 1024
#: One pack holds about this much: more are opened by readers that want one small entry.
PACK_BYTES = 32 * 1024 * 1024
#: Large artifacts in flight, so that a capture never holds more of them in memory.
_UPLOADS = 4


@dataclass(slots=True)
class _Artifact:
    """What was added: where it will lie is known when it is written."""

    name: str
    size_bytes: int
    sha256: str
    data: bytes | None
    path: str = field(default="")


class CheckpointWriter:
    """Writes one checkpoint. For one thread; ``data`` given to it must not change until ``write``
    returned.
    """

    def __init__(
        self,
        store: PartitionedCheckpointStore,
        manifest: CheckpointManifestV2,
        author: Author,
        *,
        since: int,
    ) -> None:
        """For ``PartitionedCheckpointStore.writer``. ``since`` is the ledger's head when the id was made."""
        self._store = store
        self._author = author
        self._since = since
        self.manifest = manifest
        #: Spark's batches in this epoch, first and last.
        self.batches: tuple[int, int] | None = None
        #: What each sink's ``prepare`` returned, part by part.
        self.receipts: dict[str, list[Receipt]] = {}
        #: The log files this epoch added: what it read can be read again from the record alone.
        self.logs: dict[str, str] = {}
        self._partitions: dict[tuple[str, int, bool], _Artifact] = {}
        self._engine_logs: tuple[_Artifact, bool] | None = None
        self._stored_logs: dict[str, str | LogObject] = {}
        self._uploading: deque[Future[None]] = deque()
        self._pool: ThreadPoolExecutor | None = None
        self._attempted: set[str] = set()
        self._written: CheckpointManifestV2 | None = None
        self._in_doubt = False
        self._record: CheckpointRecord | None = None

    @property
    def id(self) -> CheckpointId:
        return self.manifest.checkpoint_id

    @property
    def record(self) -> CheckpointRecord | None:
        """The ledger record, once published."""
        return self._record

    def add(self, operator: str, partition: int, data: Data, delta: bool = False) -> None:
        """Take one partition's state: all of it, or with ``delta`` what changed since the parent."""
        if delta:
            self._need_parent(f"a delta of {operator}/{partition}")
        if (operator, partition, delta) in self._partitions:
            raise InvalidInputError(f"operator {operator!r} partition {partition} was added already")
        name = artifact_path(operator, partition, delta=delta)
        self._partitions[operator, partition, delta] = self._take(name, data)

    def add_logs(self, data: Data, delta: bool = False) -> None:
        """Take the engine's own logs as one artifact; ``manifest.engine`` will name it."""
        if delta:
            self._need_parent("a delta of the logs")
        if self._engine_logs is not None:
            raise InvalidInputError("the log artifact was added already")
        self._engine_logs = self._take(f"logs/engine.{'delta' if delta else 'snap'}", data), delta

    def add_offsets(self, source: str, entry: SourceOffsetEntry) -> None:
        """Where the next read of ``source`` starts, once this checkpoint is restored."""
        self._check_open()
        self.manifest.source_offsets = {**self.manifest.source_offsets, source: entry}

    def write(self) -> CheckpointManifestV2:
        """Make every object and the sealed manifest durable, in parallel. Nothing is decided by that.

        Raises what the store raised; then nothing was published, and ``abandon`` tidies up.
        """
        if self._written is not None:
            return self._written
        while self._uploading:
            self._uploading.popleft().result()
        self._close_pool()
        packs = self._pack()
        manifest, data = self._sealed()
        directory = self._store.paths.checkpoint_dir(self.id)
        tasks: list[Callable[[], None]] = [
            partial(self._create, directory + name, data) for name, data in packs
        ]
        tasks.append(partial(self._create, self._store.paths.manifest(self.id), data))
        if self.logs:
            tasks.append(self._store_logs)
        run_all(tasks)
        self._written = manifest
        return manifest

    def publish(self) -> CheckpointManifestV2:
        """``write``, then decide: on return the checkpoint is committed.

        Raises EpochTakenError, FencedError or another ConflictError if it can never be; OutcomeUnknownError
        if it may have been, and then nothing of it may be taken back.
        """
        manifest = self.write()
        if self._record is not None:
            return manifest
        self._record = self._append(manifest)
        return manifest

    def abandon(self) -> None:
        """Remove what ``write`` left, as far as it goes. Does nothing once the outcome is anything but no."""
        self._close_pool()
        if self._in_doubt or self._record is not None:
            return
        if self._store.ledger.read().naming(self.id) is not None:
            return
        # The manifest first, so that nothing names what is about to be missing.
        for key in sorted(self._attempted, key=lambda key: not key.endswith("/manifest.json")):
            self._store.blobs.delete(key)

    def _append(self, manifest: CheckpointManifestV2) -> CheckpointRecord:
        pending = [name for name, status in manifest.sink_commit_statuses.items() if status.is_pending]
        draft = CheckpointRecord(
            epoch=manifest.epoch,
            checkpoint_id=self.id,
            seal=manifest.seal or "",
            batches=self.batches,
            receipts={**{sink: [] for sink in pending}, **manifest.sink_receipts},
            logs=self._stored_logs,
        )
        directory = self._store.paths.checkpoint_dir(self.id)
        names = [directory + name for name in manifest.objects]
        try:
            return self._store.ledger.append(
                draft, author=self._author, parent=manifest.parent_id, names=names, since=self._since
            )
        except OutcomeUnknownError:
            self._in_doubt = True
            raise

    # Artifacts

    def _take(self, name: str, data: Data) -> _Artifact:
        self._check_open()
        parts = chunks(data)
        size = sum(part.nbytes for part in parts)
        digest = hashlib.sha256()
        for part in parts:
            digest.update(part)
        sha256 = digest.hexdigest()
        if size < PACKED_BELOW_BYTES:
            return _Artifact(name, size, sha256, joined(data))
        self._upload(self._store.paths.checkpoint_dir(self.id) + name, data, sha256)
        return _Artifact(name, size, sha256, None, path=name)

    def _upload(self, key: str, data: Data, sha256: str) -> None:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_UPLOADS, thread_name_prefix="holdfast-upload")
        while len(self._uploading) >= _UPLOADS:
            self._uploading.popleft().result()
        self._attempted.add(key)
        self._uploading.append(self._pool.submit(create_once, self._store.blobs, key, data, sha256))

    def _create(self, key: str, data: bytes) -> None:
        self._attempted.add(key)
        create_once(self._store.blobs, key, data, sha256_hex(data))

    def _store_logs(self) -> None:
        self._stored_logs = store_logs(self._store.blobs, self.manifest.epoch, self.id, self.logs)
        self._attempted.update(log.key for log in self._stored_logs.values() if isinstance(log, LogObject))

    def _close_pool(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True)
            self._pool = None

    # Packs and the manifest

    def _pack(self) -> list[tuple[str, bytes]]:
        """The batch objects, by name. Fills in the paths of what they hold, and the manifest's
        ``objects``.
        """
        artifacts = [*self._partitions.values(), *([self._engine_logs[0]] if self._engine_logs else [])]
        entries = [(artifact.name, artifact.data) for artifact in artifacts if artifact.data is not None]
        for source, entry in sorted(self.manifest.source_offsets.items()):
            entries.append((f"offsets/{encode_name(source)}.json", pretty(to_document(entry))))
        packs: list[tuple[str, bytes]] = []
        placed: dict[str, str] = {}
        for group in _groups(entries):
            batch = batch_name(self.manifest.epoch, len(packs))
            packs.append((batch, encode_batch(group)))
            placed.update({name: packed_path(batch, name) for name, _ in group})
        for artifact in artifacts:
            if artifact.data is not None:
                artifact.path = placed[artifact.name]
        objects = {name: StoredObject(size_bytes=len(data), sha256=sha256_hex(data)) for name, data in packs}
        for artifact in artifacts:
            if artifact.data is None:
                objects[artifact.name] = StoredObject(size_bytes=artifact.size_bytes, sha256=artifact.sha256)
        self.manifest.objects = objects
        return packs

    def _sealed(self) -> tuple[CheckpointManifestV2, bytes]:
        manifest = self.manifest
        manifest.operators = self._operators()
        if self._engine_logs is not None:
            artifact, delta = self._engine_logs
            logs = LogArtifact(artifact.path, artifact.size_bytes, artifact.sha256, delta)
            manifest.engine = (manifest.engine or Engine()).replaced(logs=logs)
        manifest.total_size_bytes = sum(artifact.size_bytes for artifact in self._partitions.values())
        if self._engine_logs is not None:
            manifest.total_size_bytes += self._engine_logs[0].size_bytes
        manifest.sink_receipts = {**manifest.sink_receipts, **self.receipts}
        manifest.generation = self._author.generation
        manifest.writer = self._author.writer
        return manifest.sealed_json()

    def _operators(self) -> dict[str, OperatorSnapshotEntry]:
        operators: dict[str, list[PartitionSnapshotEntry]] = {}
        for (operator, partition, delta), artifact in sorted(
            self._partitions.items(), key=lambda item: item[0]
        ):
            entry = PartitionSnapshotEntry(
                partition_id=partition,
                is_delta=delta,
                path=artifact.path,
                size_bytes=artifact.size_bytes,
                sha256=artifact.sha256,
            )
            operators.setdefault(operator, []).append(entry)
        return {
            name: OperatorSnapshotEntry(partitions, sum(part.size_bytes for part in partitions))
            for name, partitions in operators.items()
        }

    def _need_parent(self, what: str) -> None:
        if self.manifest.parent_id is None:
            raise InvalidInputError(f"{what} needs a parent: writer(epoch, parent=…)")

    def _check_open(self) -> None:
        if self._written is not None:
            raise InvalidInputError(f"checkpoint {self.id} is written; nothing can be added to it any more")


def _groups(entries: list[tuple[str, bytes]]) -> list[list[tuple[str, bytes]]]:
    groups: list[list[tuple[str, bytes]]] = []
    size = PACK_BYTES
    for name, data in entries:
        if size >= PACK_BYTES:
            groups.append([])
            size = 0
        groups[-1].append((name, data))
        size += len(data)
    return groups
