"""Spark's checkpoint directory as data: batches, offsets, commits, operators. No Spark, nothing written.

    metadata                              the query's id
    offsets/N                             written before batch N: where it reads to, and the pinned conf
    commits/N                             written after batch N
    sources/<i>/…                         logs of sources that keep one (file source: N or N.compact)
    state/<operator>/<partition>/[<store>/]…      state files
    state/<operator>/_metadata/…          what the operator is

Hidden files (``.name.crc``, ``.name.tmp``) belong to Hadoop's file system, not to the checkpoint: never read,
never copied. All of it may change or vanish while we read, when a query runs; a file that is gone is
IncompleteBatchError, and the caller takes a newer batch.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.blobs.base import BlobInfo, BlobStore
from holdfast.blobs.files import FileBlobs
from holdfast.blobs.opening import open_blobs
from holdfast.errors import (
    CorruptError,
    InvalidInputError,
    KeyNotFoundError,
    NotFoundError,
    UnsupportedFormatError,
)

if TYPE_CHECKING:
    from holdfast.sparkdir.required import RequiredFile

# Spark's log files are some kB. Past this, something is wrong, and it isn't worth our memory.
_MAX_LOG_BYTES = 256 << 20


class IncompleteBatchError(NotFoundError):
    """A file that the batch needs is not there: not written yet, or already cleaned up."""

    def __init__(self, path: str, batch: int | None = None) -> None:
        super().__init__(path, batch)
        self.path = path
        self.batch = batch

    def __str__(self) -> str:
        of = "the checkpoint" if self.batch is None else f"batch {self.batch}"
        return f"{of} needs {self.path!r}, which is not there"


@dataclass(frozen=True, slots=True)
class Offsets:
    """``offsets/N``. Sources are by position; with named sources (log version 2) ``names`` runs along."""

    version: int
    batch_watermark_ms: int
    batch_timestamp_ms: int
    conf: dict[str, str]
    sources: list[str | None]
    names: list[str] | None = None

    def source_directories(self) -> list[str]:
        """Where each source keeps its log, relative to ``sources/``."""
        return self.names if self.names is not None else [str(i) for i in range(len(self.sources))]


@dataclass(frozen=True, slots=True)
class Commit:
    """``commits/N``. ``state_unique_ids`` (state format 2): operator → [partition][store] → id."""

    version: int
    next_watermark_ms: int
    state_unique_ids: dict[str, list[list[str]]] | None
    raw: bytes


@dataclass(frozen=True, slots=True)
class Operator:
    """A stateful operator. ``stores`` in Spark's order; ``default`` lies in the partition's own directory."""

    id: int
    name: str
    stores: tuple[str, ...]
    partitions: int | None


class SparkCheckpoint:
    """A checkpointLocation, given as a path, a URL or a blob store rooted there. Opening it reads nothing."""

    def __init__(self, location: BlobStore | str | os.PathLike[str]) -> None:
        self.blobs = location if isinstance(location, BlobStore) else open_blobs(os.fspath(location))
        self._root = _local_root(self.blobs)

    # --- batches

    def query_id(self) -> str:
        text = self.read("metadata")
        try:
            return str(json.loads(text)["id"])
        except (ValueError, TypeError, KeyError) as error:
            raise CorruptError("metadata", f"no query id: {error!r}") from error

    def batches(self) -> list[int]:
        """Batches with an offsets file, ascending: planned, not necessarily run."""
        return sorted(_numbered(self.files("offsets/")))

    def committed(self) -> list[int]:
        """Batches with a commits file, ascending. An empty file is a crash, not a commit."""
        return sorted(_numbered(self.files("commits/")))

    def latest_committed(self) -> int | None:
        """The newest batch that Spark calls done, or None."""
        return max(self.committed(), default=None)

    def offsets(self, n: int) -> Offsets:
        return parse_offsets(self.read_log(f"offsets/{n}", n), f"offsets/{n}")

    def commit(self, n: int) -> Commit:
        return parse_commit(self.read_log(f"commits/{n}", n), f"commits/{n}")

    def watermark(self, n: int) -> int:
        """The watermark (ms) that batch n+1 will start with."""
        return self.commit(n).next_watermark_ms

    def required_files(self, n: int) -> list[RequiredFile]:
        """Exactly what a query needs to resume at n+1. Raises IncompleteBatchError."""
        from holdfast.sparkdir.required import required_files

        return required_files(self, n)

    # --- operators

    def operators(self, n: int | None = None) -> list[Operator]:
        """The stateful operators, by id; as of batch ``n`` where the directory tells."""
        ids = {int(path.split("/")[1]) for path in self._state_paths() if path.split("/")[1].isdigit()}
        return [self.operator(op, n) for op in sorted(ids)]

    def _state_paths(self) -> Iterator[str]:
        return (info.key for info in self.files("state/") if info.key.count("/") >= 2)

    def operator(self, op: int, n: int | None = None) -> Operator:
        """What ``state/<op>/_metadata`` says; without it (checkpoints of old Spark) one unnamed store."""
        path = self._operator_metadata(op, n)
        return Operator(op, "", ("default",), None) if path is None else parse_operator(self.read(path), path)

    def _operator_metadata(self, op: int, n: int | None) -> str | None:
        listed = [info.key for info in self.files(f"state/{op}/_metadata/")]
        newer = [k for k in listed if "/v2/" in k and (b := _number(k)) is not None and (n is None or b <= n)]
        if newer:
            return max(newer, key=lambda key: _number(key) or 0)
        plain = f"state/{op}/_metadata/metadata"
        return plain if plain in listed else None

    # --- bytes

    def read(self, path: str, batch: int | None = None) -> bytes:
        """All bytes of one file. Raises IncompleteBatchError; InvalidInputError for a link that leads out."""
        self._refuse_link(path)
        try:
            return self.blobs.get(path)
        except KeyNotFoundError as error:
            raise IncompleteBatchError(path, batch) from error

    def read_log(self, path: str, batch: int | None = None) -> bytes:
        """Bytes of a log file; refuses one too large to be true, and an empty one counts as not there."""
        info = self.blobs.head(path)
        if info is None or info.size == 0:
            raise IncompleteBatchError(path, batch)
        if info.size > _MAX_LOG_BYTES:
            raise CorruptError(path, f"{info.size} bytes are too many for a log file")
        return self.read(path, batch)

    def files(self, prefix: str) -> list[BlobInfo]:
        """Files below ``prefix``, without Hadoop's hidden ones."""
        return [info for info in self.blobs.list(prefix) if not is_hidden(info.key)]

    def _refuse_link(self, path: str) -> None:
        if self._root is None:
            return
        # A link inside is followed as Spark would; one that leads out would copy somebody's secrets.
        real = os.path.realpath(self._root / path)
        if not Path(real).is_relative_to(self._root):
            raise InvalidInputError(
                f"{path!r} is a link that leads out of the checkpoint directory, to {real!r}"
            )


def _local_root(blobs: BlobStore) -> Path | None:
    return Path(os.path.realpath(blobs.root)) if isinstance(blobs, FileBlobs) else None


def is_hidden(path: str) -> bool:
    return any(part.startswith(".") for part in path.split("/"))


def _number(path: str) -> int | None:
    name = path.rsplit("/", 1)[-1]
    return int(name) if name.isascii() and name.isdigit() else None


def _numbered(infos: list[BlobInfo]) -> Iterator[int]:
    return (n for info in infos if info.size and (n := _number(info.key)) is not None)


def parse_offsets(data: bytes, key: str) -> Offsets:
    """Both versions of the offset log: by position (v1), by name (v2). Raises CorruptError."""
    version, lines = _versioned(data, key, newest=2)
    head = _json_object(lines[0], key)
    sources = lines[1:]
    names = None
    if version == 2:
        names = [line.partition(":")[0] for line in sources]
        sources = [line.partition(":")[2] for line in sources]
    try:
        return Offsets(
            version=version,
            batch_watermark_ms=int(head["batchWatermarkMs"]),
            batch_timestamp_ms=int(head["batchTimestampMs"]),
            conf={str(k): str(v) for k, v in head.get("conf", {}).items()},
            sources=[None if text == "-" else text for text in sources],
            names=names,
        )
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise CorruptError(key, f"the first line is not an offset log's: {error!r}") from error


def parse_commit(data: bytes, key: str) -> Commit:
    """All versions of the commit log. Raises CorruptError."""
    version, lines = _versioned(data, key, newest=3)
    document = _json_object(lines[0], key)
    ids = document.get("stateUniqueIds")
    try:
        unique = (
            None if ids is None else {str(op): [[str(i) for i in p] for p in ps] for op, ps in ids.items()}
        )
        return Commit(version, int(document.get("nextBatchWatermarkMs", 0)), unique, data)
    except (TypeError, ValueError, AttributeError) as error:
        raise CorruptError(key, f"not a commit: {error!r}") from error


def parse_operator(data: bytes, key: str) -> Operator:
    """``_metadata/metadata`` (version 1) or ``_metadata/v2/<batch>``. Raises CorruptError."""
    _, lines = _versioned(data, key, newest=2)
    document = _json_object(lines[0], key)
    try:
        stores = document["stateStoreInfo"]
        return Operator(
            id=int(document["operatorInfo"]["operatorId"]),
            name=str(document["operatorInfo"]["operatorName"]),
            stores=tuple(_store_name(s["storeName"], key) for s in stores),
            partitions=max((int(s["numPartitions"]) for s in stores), default=None),
        )
    except (TypeError, ValueError, KeyError) as error:
        raise CorruptError(key, f"not operator metadata: {error!r}") from error


def _store_name(name: Any, key: str) -> str:
    if not isinstance(name, str) or not name or "/" in name or name in (".", "..") or "\x00" in name:
        raise CorruptError(key, f"{name!r} cannot name a state store")
    return name


def _versioned(data: bytes, key: str, *, newest: int) -> tuple[int, list[str]]:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise CorruptError(key, f"not UTF-8: {error}") from error
    first, *lines = text.split("\n")
    if not (first.startswith("v") and first[1:].isascii() and first[1:].isdigit()):
        raise CorruptError(key, f"starts with {first[:20]!r}, not with a version")
    if int(first[1:]) > newest:
        raise UnsupportedFormatError(key, f"log version {first[:20]}")
    if not lines:
        raise CorruptError(key, "ends after its version")
    return int(first[1:]), lines


def _json_object(text: str, key: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CorruptError(key, f"not JSON: {error}") from error
    if not isinstance(document, dict):
        raise CorruptError(key, "not a JSON object")
    return document
