"""A checkpoint becomes a new directory from which Spark resumes at the next batch.

Always a fresh one: rolling an old directory back in place leaves newer snapshots behind, and Spark loads them
without a word. What is written is the union over the chain, snapshot first, later entries winning. Every byte
has been checked on the way: artifacts against the sealed manifest, each file against the index captured with
it, and at the end the directory against what a resume needs.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from holdfast.batch import decode_batch
from holdfast.blobs.base import BlobStore, check_key
from holdfast.blobs.opening import open_blobs
from holdfast.errors import ConflictError, CorruptError, InvalidInputError
from holdfast.ids import CheckpointId
from holdfast.manifest.v2 import CheckpointManifestV2
from holdfast.sparkdir.index import INDEX_PATH, FileEntry, FileIndex, decode_index
from holdfast.sparkdir.reading import IncompleteBatchError, SparkCheckpoint, is_hidden
from holdfast.sparkdir.required import required_files
from holdfast.store.partitioned import PartitionedCheckpointStore

_PLACES = ("offsets/", "commits/", "sources/", "state/")
# transformWithState keeps the absolute path of its schemas: "file:/old/place/state/0/_stateSchema/…".
_SCHEMA_PATH = re.compile(rb'"(?:[^"\\]|\\.)*?(/state/[0-9]+/_stateSchema/)')


@dataclass(frozen=True, slots=True)
class Materialised:
    """``files`` is the chain's index: of the files as captured, before paths in them were rewritten."""

    batch_id: int
    files: FileIndex
    bytes: int
    rewritten: tuple[str, ...]


def chain_index(store: PartitionedCheckpointStore, checkpoint_id: CheckpointId) -> dict[str, FileEntry]:
    """What the chain of ``checkpoint_id`` holds, from its small log artifacts: no state is read."""
    return _log_union(store, store.chain(checkpoint_id))[1]


def materialise(
    manifest: CheckpointManifestV2,
    store: PartitionedCheckpointStore,
    target: str | os.PathLike[str],
    *,
    moved_inputs: Mapping[str, str] | None = None,
) -> Materialised:
    """Write the checkpoint into ``target``, a new or empty directory (or URL), and prove that it is complete.

    ``moved_inputs``: directories that a file source read from, old URI or path → new one. Spark knows its
    input files by their full names; under others it reads them all again.

    Raises ConflictError if something is there already, CorruptError if anything is not what was recorded.
    A failure leaves a partial directory behind, never one that lacks something and looks whole: ``metadata``,
    without which Spark refuses to start over state, is written last.
    """
    batch = manifest.engine.batch_id if manifest.engine is not None else None
    if batch is None:
        raise InvalidInputError(f"checkpoint {manifest.checkpoint_id} was not taken from a Spark checkpoint")
    name = str(manifest.checkpoint_id)
    chain = store.chain(manifest.checkpoint_id)
    place = _Place(target, moved_inputs or {})
    logs, index = _log_union(store, chain)
    last = logs.pop("metadata", None)
    if last is None:
        raise CorruptError(name, "its log artifacts hold no metadata file")
    # Link by link, so that each packed object is fetched once, and one of them is in memory at a time.
    for link in chain:
        for files in _state_of(store, link):
            place.write_all(_current(files, index, place.written))
    place.write_all(_current(logs.items(), index, place.written))
    _check_complete(place, index, batch, name)
    place.write_all(_current([("metadata", last)], index, place.written))
    if "metadata" not in place.written:
        raise CorruptError("metadata", "its bytes are not the ones recorded in the chain's index")
    return Materialised(batch, index, place.bytes, tuple(place.rewritten))


def _log_union(
    store: PartitionedCheckpointStore, chain: Iterable[CheckpointManifestV2]
) -> tuple[dict[str, bytes], dict[str, FileEntry]]:
    """The log files of the chain, and its index: of all files, path → what the newest capture saw."""
    logs: dict[str, bytes] = {}
    index: dict[str, FileEntry] = {}
    for link in chain:
        name = str(link.checkpoint_id)
        artifact = link.engine.logs if link.engine is not None else None
        if artifact is None:
            raise CorruptError(name, "it holds no log artifact, so nothing says what its files are")
        entries = dict(decode_batch(store.objects.artifact(link, artifact)))
        listed = entries.pop(INDEX_PATH, None)
        if listed is None:
            raise CorruptError(name, f"its log artifact holds no {INDEX_PATH}")
        index.update(decode_index(listed, name))
        logs.update(entries)
    for path in (*logs, *index):
        _check_path(path)
    return logs, index


def _state_of(
    store: PartitionedCheckpointStore, link: CheckpointManifestV2
) -> Iterator[list[tuple[str, bytes]]]:
    """The state files of one link, partition by partition."""
    for operator, entry in link.operators.items():
        for part in entry.partitions:
            files = decode_batch(store.objects.artifact(link, part))
            prefix = f"state/{operator}/{part.partition_id}/"
            for path, _ in files:
                if not path.startswith(prefix):
                    raise CorruptError(path, f"lies outside {prefix!r}, where its artifact belongs")
                _check_path(path)
            yield files


def _current(
    files: Iterable[tuple[str, bytes]], index: FileIndex, written: set[str]
) -> Iterator[tuple[str, bytes]]:
    """Those that the index knows with these very bytes.

    Others were captured again later, with other bytes. If not, the check at the end finds them missing.
    """
    for path, data in files:
        if path not in written and index.get(path) == FileEntry.of(data):
            yield path, data


def _check_path(path: str) -> None:
    """Refuse a name that Spark would not have written, above all one that leads out of the target."""
    try:
        check_key(path)
    except InvalidInputError as error:
        raise CorruptError(path, f"not a path inside a checkpoint directory: {error}") from error
    if is_hidden(path) or "\\" in path or not (path == "metadata" or path.startswith(_PLACES)):
        raise CorruptError(path, "not a path that Spark writes in a checkpoint directory")


def _checked(files: Iterable[tuple[str, bytes]], index: FileIndex) -> Iterator[tuple[str, bytes]]:
    for path, data in files:
        if index.get(path) != FileEntry.of(data):
            raise CorruptError(path, "its bytes are not the ones recorded in the chain's index")
        yield path, data


def _check_complete(place: _Place, index: FileIndex, batch: int, checkpoint: str) -> None:
    """Everything but ``metadata`` is there: all that was recorded, and all that Spark will ask for."""
    missing = set(index) - place.written - {"metadata"}
    if missing:
        raise CorruptError(
            min(missing), f"recorded in the index of {checkpoint}, but in none of its artifacts"
        )
    try:
        required_files(SparkCheckpoint(place.blobs), batch)
    except IncompleteBatchError as error:
        if error.path != "metadata":
            raise CorruptError(
                checkpoint, f"does not hold all that batch {batch} needs: {error.path}"
            ) from error


class _Place:
    """The directory being written. Knows where it is, since some files must say so inside."""

    def __init__(self, target: str | os.PathLike[str], moved_inputs: Mapping[str, str]) -> None:
        text = os.fspath(target)
        self._moved = {_uri(old): _uri(new) for old, new in moved_inputs.items()}
        self.blobs: BlobStore = open_blobs(text)
        root = getattr(self.blobs, "root", None)
        self._root: Path | None = Path(root) if root is not None else None
        self._uri = text.rstrip("/") if self._root is None else f"file:{self._root}"
        self._quoted = json.dumps(self._uri, ensure_ascii=False).removesuffix('"').encode()
        self.written: set[str] = set()
        self.rewritten: list[str] = []
        self.bytes = 0
        if self._root is not None:
            self._make_root(self._root)
        elif next(iter(self.blobs.list("")), None) is not None:
            raise ConflictError(f"{text} is not empty").with_hint("restore into a place that is")

    @staticmethod
    def _make_root(root: Path) -> None:
        try:
            root.mkdir(parents=True, exist_ok=True)
            if any(root.iterdir()):
                raise ConflictError(f"{root} is not empty").with_hint("restore into a new directory")
        except (FileExistsError, NotADirectoryError) as error:
            raise ConflictError(f"{root} is not a directory").with_hint(
                "restore into a new directory"
            ) from error

    def write_all(self, files: Iterable[tuple[str, bytes]]) -> None:
        for path, data in files:
            self._write(path, self._rewrite(path, data))
            self.written.add(path)
            self.bytes += len(data)

    def _rewrite(self, path: str, data: bytes) -> bytes:
        changed = data
        if "/_metadata/v2/" in path:
            changed = _SCHEMA_PATH.sub(lambda match: self._quoted + match[1], data)
        elif self._moved and path.startswith("sources/"):
            changed = b"\n".join(self._moved_line(line) for line in data.split(b"\n"))
        if changed != data:
            self.rewritten.append(path)
        return changed

    def _moved_line(self, line: bytes) -> bytes:
        """One entry of a file source's log, under its new name; anything else as it is."""
        try:
            entry = json.loads(line)
        except ValueError:
            return line
        path = entry.get("path") if isinstance(entry, dict) else None
        for old, new in self._moved.items():
            if isinstance(path, str) and path.startswith(old + "/"):
                moved = {**entry, "path": new + path[len(old) :]}
                return json.dumps(moved, separators=(",", ":"), ensure_ascii=False).encode()
        return line

    def _write(self, path: str, data: bytes) -> None:
        if self._root is None:
            self.blobs.create(path, data)
            return
        # Not through the store: nobody trusts this directory before the last file, so syncing each is waste.
        full = self._root / path
        full.parent.mkdir(parents=True, exist_ok=True)
        # A new file, and never through a link that somebody planted meanwhile.
        descriptor = os.open(full, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)


def _uri(location: str) -> str:
    """As Spark writes it in its logs: percent-encoded, with three slashes for a local file."""
    if "://" in location:
        return location.rstrip("/")
    return Path(os.path.abspath(location)).as_uri()
