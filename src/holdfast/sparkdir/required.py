"""Which files make batch N resumable: exactly what a query needs to go on at N+1, and nothing newer.

Version arithmetic: batch N reads state version N and writes N+1. So a resume at N+1 needs

- ``metadata``, ``offsets/N-1``, ``offsets/N``, ``commits/N``;
- of each source log, the entries up to the batch's own, from the newest compacted one on;
- of each store, version N+1: a snapshot and the deltas after it. In state format 1 they are found by
  number, in format 2 by following the ids in ``commits/N`` and the lineage inside the changelogs. Never by
  what a listing seems to suggest: a retried task leaves files of its own, whole and wrong.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from holdfast.errors import CorruptError, UnsupportedFormatError
from holdfast.sparkdir.reading import (
    Commit,
    IncompleteBatchError,
    Offsets,
    Operator,
    SparkCheckpoint,
    parse_commit,
    parse_offsets,
)
from holdfast.sparkdir.statefiles import StateVersion, read_changelog_header, snapshot_files

_CONF = "spark.sql.streaming.stateStore."
CODEC = f"{_CONF}compression.codec"
# Of the changelogs read for their lineage, what is kept in memory until they are captured.
_KEPT_BYTES = 1 << 18
_HDFS, _ROCKSDB = "HDFSBackedStateStoreProvider", "RocksDBStateStoreProvider"
_NUMBERED = re.compile(r"([0-9]+)\.(delta|snapshot|changelog|zip)")

Stores: TypeAlias = dict[str, list[list[str]]]


@dataclass(frozen=True, slots=True)
class RequiredFile:
    """One file, relative to the checkpoint directory.

    ``role``: metadata, offsets, commits, source, operator, snapshot, delta, changelog, sst, checksum.
    ``unique``: the name holds a UUID, so the same path is always the same bytes.
    """

    path: str
    role: str
    operator: str | None = None
    partition: int | None = None
    unique: bool = False


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """What batch ``batch`` needs.

    ``contents`` is what had to be read to find out: the very same bytes are captured.
    """

    batch: int
    offsets: Offsets
    commit: Commit
    operators: list[Operator]
    files: list[RequiredFile] = field(default_factory=list)
    contents: dict[str, bytes] = field(default_factory=dict)

    @property
    def partitions(self) -> dict[str, int]:
        """Operator → number of partitions."""
        return {str(op.id): op.partitions or 0 for op in self.operators}


def required_files(checkpoint: SparkCheckpoint, n: int, commit_text: str | None = None) -> list[RequiredFile]:
    """Exactly what a query needs to resume at n+1.

    ``commit_text``: inside ``foreachBatch(n)``, what ``commits/n`` will hold; it is not on disk yet.
    Raises IncompleteBatchError naming the first file that is missing.
    """
    return plan_batch(checkpoint, n, commit_text).files


def plan_batch(
    checkpoint: SparkCheckpoint,
    n: int,
    commit_text: str | None = None,
    *,
    first: int | None = None,
    held: Collection[str] = (),
) -> BatchPlan:
    """The plan of a capture of batch ``n``.

    ``first``: with an epoch of several batches, its first; their offsets and commits come along.
    ``held``: paths that a chain already holds. A file of a unique name among them is left out, and so is
    what only it leads to. Nothing is listed then that can be named, so that the cost of a plan doesn't grow
    with the directory's age.
    """
    return _Planner(checkpoint, n, commit_text, frozenset(held)).plan(n if first is None else first)


class _Planner:
    def __init__(
        self, checkpoint: SparkCheckpoint, n: int, commit_text: str | None, held: frozenset[str]
    ) -> None:
        self._checkpoint = checkpoint
        self._n = n
        self._commit_text = commit_text
        self._held = held
        self._files: dict[str, RequiredFile] = {}
        self._contents: dict[str, bytes] = {}
        self._listed: dict[str, set[str]] = {}

    def plan(self, first: int) -> BatchPlan:
        n = self._n
        for batch in range(max(0, min(first, n) - 1), n + 1):
            self._log(f"offsets/{batch}", "offsets")
        for batch in range(first, n):
            self._log(f"commits/{batch}", "commits")
        offsets = parse_offsets(self._contents[f"offsets/{n}"], f"offsets/{n}")
        commit = self._commit()
        for directory, offset in zip(offsets.source_directories(), offsets.sources, strict=True):
            self._source(f"sources/{directory}", offset)
        operators = [self._operator(op, offsets, commit) for op in self._operator_ids(commit)]
        # Last: so a directory that lacks only this lacks nothing else.
        self._log("metadata", "metadata")
        return BatchPlan(n, offsets, commit, operators, list(self._files.values()), self._contents)

    # --- logs

    def _log(self, path: str, role: str) -> None:
        self._contents[path] = self._checkpoint.read_log(path, self._n)
        self._add(RequiredFile(path, role))

    def _commit(self) -> Commit:
        path = f"commits/{self._n}"
        if self._commit_text is None:
            self._log(path, "commits")
        else:
            self._contents[path] = self._commit_text.encode()
            self._add(RequiredFile(path, "commits"))
        return parse_commit(self._contents[path], path)

    def _source(self, directory: str, offset: str | None) -> None:
        last = _log_offset(offset)
        if last is not None:
            self._file_source_log(directory, last)
            return
        # Kafka, rate: where the source began, written once.
        for info in self._checkpoint.files(f"{directory}/"):
            self._log(info.key, "source")

    def _file_source_log(self, directory: str, last: int) -> None:
        """Entries from ``last`` down to a compacted one. By name: a year's log may be long, this is ten."""
        for entry in range(last, -1, -1):
            plain, compact = f"{directory}/{entry}", f"{directory}/{entry}.compact"
            if plain in self._held or compact in self._held:
                return  # the chain goes on from here: what this entry rests on was captured with it
            if self._try(plain, "source"):
                continue
            if not self._try(compact, "source"):
                raise IncompleteBatchError(plain, self._n)
            return

    # --- operators

    def _operator_ids(self, commit: Commit) -> list[int]:
        if commit.state_unique_ids:
            return sorted(int(op) for op in commit.state_unique_ids)
        return sorted(self._numbers_below("state/"))

    def _operator(self, op: int, offsets: Offsets, commit: Commit) -> Operator:
        operator = self._checkpoint.operator(op, self._n)
        self._operator_files(operator)
        ids = (commit.state_unique_ids or {}).get(str(op))
        partitions = len(ids) if ids is not None else self._partitions(operator, offsets)
        for partition in range(partitions):
            for k, store in enumerate(operator.stores):
                directory = f"state/{op}/{partition}" + ("" if store == "default" else f"/{store}")
                if ids is None:
                    self._numbered(directory, op, partition, offsets)
                else:
                    top = _top(ids, op, partition, k, len(operator.stores), self._n + 1)
                    self._by_id(directory, op, partition, top, offsets)
        return replace(operator, partitions=partitions)

    def _operator_files(self, operator: Operator) -> None:
        """What describes the operator. transformWithState can't start without; others lose their readers."""
        for prefix in (f"state/{operator.id}/_metadata/", f"state/{operator.id}/_stateSchema/"):
            for info in self._checkpoint.files(prefix):
                batch = info.key.rsplit("/", 1)[-1].partition("_")[0]
                if not (batch.isdigit() and int(batch) > self._n):
                    self._log(info.key, "operator")
        for store in operator.stores:
            part = "" if store == "default" else f"{store}/"
            self._try(f"state/{operator.id}/0/{part}_metadata/schema", "operator")

    def _partitions(self, operator: Operator, offsets: Offsets) -> int:
        if operator.partitions is not None:
            return operator.partitions
        found = self._numbers_below(f"state/{operator.id}/")
        return max([int(offsets.conf.get("spark.sql.shuffle.partitions", 0)), *(p + 1 for p in found)])

    def _numbers_below(self, prefix: str) -> set[int]:
        names = {info.key[len(prefix) :].partition("/")[0] for info in self._checkpoint.files(prefix)}
        return {int(name) for name in names if name.isascii() and name.isdigit()}

    # --- state, format 1: by number

    def _numbered(self, directory: str, op: int, partition: int, offsets: Offsets) -> None:
        provider = _provider(offsets)
        full, step = ("zip", "changelog") if provider == _ROCKSDB else ("snapshot", "delta")
        version = self._n + 1
        matches = [m for name in self._names(directory) if (m := _NUMBERED.fullmatch(name))]
        base = max((int(m[1]) for m in matches if m[2] == full and int(m[1]) <= version), default=0)
        for v in range(base + 1, version + 1):
            self._state(f"{directory}/{v}.{step}", step, op, partition)
        if base:
            self._snapshot(f"{directory}/{base}.{full}", directory, op, partition)

    # --- state, format 2: by id and lineage

    def _by_id(self, directory: str, op: int, partition: int, top: StateVersion, offsets: Offsets) -> None:
        if self._zip(directory, top) in self._held:
            return
        # Asked for first only when nothing is held: in a chain the next changelog is the cheap way on.
        if not self._held and f"{top.stem}.zip" in self._names(directory):
            self._snapshot(self._zip(directory, top), directory, op, partition, unique=True)
            return
        data = self._read_if_there(self._changelog(directory, top))
        if data is None:
            self._snapshot(self._zip(directory, top), directory, op, partition, unique=True)
            return
        if len(data) > _KEPT_BYTES:
            # Its name makes it unique: it will be the same when it is read again, partition by partition.
            del self._contents[self._changelog(directory, top)]
        codec = offsets.conf.get(CODEC, "lz4")
        self._lineage(directory, op, partition, (*self._ancestors(directory, top, data, codec), top))

    def _ancestors(
        self, directory: str, top: StateVersion, data: bytes, codec: str
    ) -> tuple[StateVersion, ...]:
        path = self._changelog(directory, top)
        lineage = read_changelog_header(data, codec, path).lineage or ()
        expected = range(top.version - len(lineage), top.version)
        if [item.version for item in lineage] != list(expected) or (lineage and lineage[0].version < 1):
            raise CorruptError(path, "its lineage is not the run of versions before it")
        return lineage

    def _lineage(self, directory: str, op: int, partition: int, items: tuple[StateVersion, ...]) -> None:
        """The lineage's newest snapshot and the changelogs after it. Spark looks no further back."""
        base = self._base(directory, items)
        if base is None and items[0].version != 1:
            raise IncompleteBatchError(self._zip(directory, items[0]), self._n)
        for item in items:
            if base is None or item.version > base.version:
                self._state(self._changelog(directory, item), "changelog", op, partition, unique=True)
        if base is not None:
            self._snapshot(self._zip(directory, base), directory, op, partition, unique=True)

    def _base(self, directory: str, items: tuple[StateVersion, ...]) -> StateVersion | None:
        newest_first = items[::-1]
        for item in newest_first:
            if self._zip(directory, item) in self._held:
                return item
        if self._held and items[0].version == 1 and self._changelog(directory, items[0]) in self._held:
            return None  # the chain holds everything from the beginning on
        names = self._names(directory)
        return next((item for item in newest_first if f"{item.stem}.zip" in names), None)

    @staticmethod
    def _zip(directory: str, version: StateVersion) -> str:
        return f"{directory}/{version.stem}.zip"

    @staticmethod
    def _changelog(directory: str, version: StateVersion) -> str:
        return f"{directory}/{version.stem}.changelog"

    # --- files

    def _snapshot(self, path: str, directory: str, op: int, partition: int, *, unique: bool = False) -> None:
        self._state(path, "snapshot", op, partition, unique=unique)
        if not path.endswith(".zip") or (unique and path in self._held):
            return
        data = self._contents.get(path)
        if data is None:
            data = self._contents[path] = self._checkpoint.read(path, self._n)
        for name in snapshot_files(data, path):
            sst = RequiredFile(f"{directory}/{name}", "sst", str(op), partition, unique=True)
            if sst.path not in self._held:
                self._add(sst)

    def _state(self, path: str, role: str, op: int, partition: int, *, unique: bool = False) -> None:
        if unique and path in self._held:
            return
        directory, _, name = path.rpartition("/")
        listed = self._listed.get(directory)
        if listed is not None and name not in listed:
            raise IncompleteBatchError(path, self._n)
        self._add(RequiredFile(path, role, str(op), partition, unique))
        checksum = path + ".crc"
        if (f"{name}.crc" in listed) if listed is not None else self._read_if_there(checksum) is not None:
            self._add(RequiredFile(checksum, "checksum", str(op), partition, unique))

    def _add(self, file: RequiredFile) -> None:
        self._files[file.path] = file

    def _try(self, path: str, role: str) -> bool:
        if self._read_if_there(path) is None:
            return False
        self._add(RequiredFile(path, role))
        return True

    def _read_if_there(self, path: str) -> bytes | None:
        if path not in self._contents:
            try:
                self._contents[path] = self._checkpoint.read(path)
            except IncompleteBatchError:
                return None
        return self._contents[path]

    def _names(self, directory: str) -> Collection[str]:
        """The files in ``directory``. A first capture lists all state once; a chain, only what it must."""
        if directory not in self._listed:
            prefix = f"{directory}/" if self._held else "state/"
            self._listed[directory] = set()
            for info in self._checkpoint.files(prefix):
                folder, _, name = info.key.rpartition("/")
                self._listed.setdefault(folder, set()).add(name)
        return self._listed[directory]


def _log_offset(offset: str | None) -> int | None:
    """The file source's position: ``{"logOffset": 7}``. None for any other source, or nothing read yet."""
    try:
        document = json.loads(offset) if offset else None
    except ValueError:
        return None
    value = document.get("logOffset") if isinstance(document, dict) else None
    return value if isinstance(value, int) else None


def _provider(offsets: Offsets) -> str:
    name = offsets.conf.get(_CONF + "providerClass", _HDFS).rsplit(".", 1)[-1]
    if name not in (_HDFS, _ROCKSDB):
        raise UnsupportedFormatError("state", f"state provider {name!r}").with_hint(
            "HDFSBackedStateStoreProvider and RocksDBStateStoreProvider can be captured"
        )
    return name


def _top(
    ids: list[list[str]], op: int, partition: int, store: int, stores: int, version: int
) -> StateVersion:
    if len(ids[partition]) != stores:
        raise CorruptError(
            "commits", f"operator {op} has {len(ids[partition])} state ids for {stores} stores"
        )
    return StateVersion(version, ids[partition][store])
