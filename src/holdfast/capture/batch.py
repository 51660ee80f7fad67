"""One batch of a Spark checkpoint directory into one checkpoint of a store. Decides and publishes nothing.

What arrives in the writer is whole or not at all: every file was there, as the plan wants it, and what may
change under its name had not changed when the last one had been read. Else IncompleteBatchError, and the
caller abandons the writer and takes a newer batch.

Only what the chain lacks travels: a file of the same path *and* the same SHA-256 is not stored again. (A name
alone proves nothing: Spark rewrites files of state format 1 when it runs a batch twice.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeAlias

from holdfast.batch import encode_batch
from holdfast.blobs.base import BlobInfo
from holdfast.errors import CorruptError
from holdfast.manifest.parts import Engine, SourceOffsetEntry
from holdfast.sparkdir.index import INDEX_PATH, FileEntry, FileIndex, encode_index
from holdfast.sparkdir.positions import read_position
from holdfast.sparkdir.reading import IncompleteBatchError, SparkCheckpoint
from holdfast.sparkdir.required import CODEC, BatchPlan, RequiredFile, plan_batch
from holdfast.sparkdir.statefiles import check_checksum
from holdfast.store.writing import CheckpointWriter

# Below this many files, handing them to threads costs more than reading them.
_FEW_FILES = 32
_THREADS = 4


#: Path, bytes, and the codec that state is compressed with. Raises to end the capture.
Inspect: TypeAlias = Callable[[str, bytes, str], None]


@dataclass(frozen=True, slots=True)
class Captured:
    """What went into the writer. ``index`` is what the chain now holds."""

    index: FileIndex
    #: Log files new with this epoch (path → text), for the ledger record: a lost manifest can't hide them.
    logs: dict[str, str]
    bytes: int
    files: int


def capture_batch(
    writer: CheckpointWriter,
    checkpoint: SparkCheckpoint,
    n: int,
    *,
    commit_text: str | None = None,
    known: FileIndex,
    delta: bool,
    first: int | None = None,
    source_names: Sequence[str] | None = None,
    inspect: Inspect | None = None,
) -> Captured:
    """Fill ``writer`` with batch ``n``: artifacts, log artifact, source positions, watermark, engine.

    ``known`` is what the chain behind the writer holds. With ``delta`` only what it lacks is stored;
    without, everything is, and ``known`` only tells which logs are new. ``first`` is the epoch's first batch.
    ``source_names`` names the sources in the query's order; else they are called as their log directories.
    ``inspect`` is called with each new state file that has no checksum of Spark's beside it; what it raises
    ends the capture. Raises IncompleteBatchError, and CorruptError for a file that Spark's checksum denies.
    """
    held = {path for path in known if delta}
    plan = plan_batch(checkpoint, n, commit_text, first=first, held=held)
    before = _changeable(checkpoint, plan)
    new: dict[str, FileEntry] = {}
    taking = _Taking(checkpoint, plan, known if delta else {}, inspect)
    for part in _packed(taking):
        new.update(part.index)
        writer.add(part.operator, part.partition, part.container, delta=delta)
    writer.add_logs(_log_container(taking, new), delta=delta)
    _check_unchanged(checkpoint, plan, before, commit_on_disk=commit_text is None)
    _add_facts(writer, checkpoint, plan, source_names)
    return Captured(
        index={**known, **new} if delta else new,
        logs=_new_logs(plan, known, first),
        bytes=sum(entry.size for entry in new.values()),
        files=len(new),
    )


def epoch_logs(
    checkpoint: SparkCheckpoint, n: int, *, commit_text: str | None, first: int, known: FileIndex
) -> tuple[dict[str, str], dict[str, FileEntry]]:
    """What an epoch from batch ``first`` to ``n`` added to Spark's logs, for a record without a capture.

    ``known`` are the files that older records or captures hold. The second value is what to add to it.
    """
    plan = plan_batch(checkpoint, n, commit_text, first=first, held=set(known))
    logs = _new_logs(plan, known, first)
    return logs, {path: FileEntry.of(text.encode()) for path, text in logs.items()}


# --- taking


@dataclass(frozen=True, slots=True)
class _Taking:
    """How files are taken: from where, beyond what is held, and looked at how."""

    checkpoint: SparkCheckpoint
    plan: BatchPlan
    known: FileIndex
    inspect: Inspect | None

    def take(self, files: Iterable[RequiredFile]) -> tuple[list[tuple[str, bytes]], dict[str, FileEntry]]:
        """The files that the chain lacks, and what to remember of them."""
        contents = {file.path: self._read(file) for file in files}
        hashed = {path: FileEntry.of(data) for path, data in contents.items()}
        index = {path: entry for path, entry in hashed.items() if self.known.get(path) != entry}
        self._check_sound(contents, index)
        return [(path, contents[path]) for path in index], index

    def _read(self, file: RequiredFile) -> bytes:
        data = self.plan.contents.get(file.path)
        return self.checkpoint.read(file.path, self.plan.batch) if data is None else data

    def _check_sound(self, contents: Mapping[str, bytes], new: Iterable[str]) -> None:
        """A store must not vouch for bits that were flipped before it saw them. Raises CorruptError."""
        codec = self.plan.offsets.conf.get(CODEC, "lz4")
        for path in new:
            checksum = contents.get(path + ".crc")
            if checksum is not None:
                check_checksum(contents[path], checksum, path)
            elif self.inspect is not None and path.startswith("state/"):
                self.inspect(path, contents[path], codec)


@dataclass(frozen=True, slots=True)
class _Packed:
    operator: str
    partition: int
    index: dict[str, FileEntry]
    container: bytes


def _packed(taking: _Taking) -> Iterator[_Packed]:
    """One container a partition, if only an empty one: a manifest shows the whole state.

    Read, hashed and packed by several threads when it is worth it; never more than a few are in memory.
    """
    groups: dict[tuple[str, int], list[RequiredFile]] = {
        (op, p): [] for op, partitions in taking.plan.partitions.items() for p in range(partitions)
    }
    for file in taking.plan.files:
        if file.operator is not None and file.partition is not None:
            groups[file.operator, file.partition].append(file)

    def pack(group: tuple[str, int]) -> _Packed:
        taken, index = taking.take(groups[group])
        return _Packed(*group, index, encode_batch(taken))

    if len(taking.plan.files) <= _FEW_FILES:
        return map(pack, groups)
    return _ahead(pack, groups)


def _ahead(
    pack: Callable[[tuple[str, int]], _Packed], groups: Iterable[tuple[str, int]]
) -> Iterator[_Packed]:
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="holdfast-capture") as pool:
        running: deque[Future[_Packed]] = deque()
        for group in groups:
            if len(running) == 2 * _THREADS:
                yield running.popleft().result()
            running.append(pool.submit(pack, group))
        while running:
            yield running.popleft().result()


# --- logs, checks, facts


def _log_container(taking: _Taking, new: dict[str, FileEntry]) -> bytes:
    """The log artifact. Adds its own files to ``new``, then writes that down in it."""
    logs, index = taking.take(file for file in taking.plan.files if file.partition is None)
    new.update(index)
    return encode_batch([(INDEX_PATH, encode_index(new)), *logs])


def _changeable(checkpoint: SparkCheckpoint, plan: BatchPlan) -> dict[str, BlobInfo | None]:
    """State files whose name doesn't make them unique, as they are before they are read."""
    return {f.path: checkpoint.blobs.head(f.path) for f in plan.files if f.operator and not f.unique}


def _check_unchanged(
    checkpoint: SparkCheckpoint,
    plan: BatchPlan,
    before: dict[str, BlobInfo | None],
    *,
    commit_on_disk: bool,
) -> None:
    """Nothing of the plan was written again while it was read. Raises IncompleteBatchError."""
    logs = [f"offsets/{plan.batch}"] + ([f"commits/{plan.batch}"] if commit_on_disk else [])
    for path in logs:
        if checkpoint.read(path, plan.batch) != plan.contents[path]:
            raise IncompleteBatchError(path, plan.batch)
    for path, info in before.items():
        if info is None or checkpoint.blobs.head(path) != info:
            raise IncompleteBatchError(path, plan.batch)
        # Read for the plan, before it was looked at: compare the bytes themselves.
        if path in plan.contents and checkpoint.read(path, plan.batch) != plan.contents[path]:
            raise IncompleteBatchError(path, plan.batch)


def _add_facts(
    writer: CheckpointWriter, checkpoint: SparkCheckpoint, plan: BatchPlan, names: Sequence[str] | None
) -> None:
    manifest, conf = writer.manifest, plan.offsets.conf
    manifest.watermark = plan.commit.next_watermark_ms
    manifest.engine = (manifest.engine or Engine()).replaced(
        query_id=checkpoint.query_id(),
        batch_id=plan.batch,
        state_provider=conf.get("spark.sql.streaming.stateStore.providerClass"),
        state_format=2 if plan.commit.state_unique_ids is not None else 1,
        shuffle_partitions=_number(conf.get("spark.sql.shuffle.partitions")),
        operators={str(op.id): op.name for op in plan.operators},
    )
    called = names if names is not None else plan.offsets.source_directories()
    for name, text in zip(called, plan.offsets.sources, strict=True):
        position = read_position(text)
        writer.add_offsets(name, SourceOffsetEntry(position.kind, position.offsets, manifest.epoch))


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() else None


def _new_logs(plan: BatchPlan, known: FileIndex, first: int | None) -> dict[str, str]:
    """What the epoch added to Spark's logs, enough to run its batches again from an older state."""
    wanted = range(plan.batch if first is None else first, plan.batch + 1)
    own = {f"{log}/{batch}" for log in ("offsets", "commits") for batch in wanted}
    logs: dict[str, str] = {}
    for file in plan.files:
        data = plan.contents.get(file.path)
        if file.role not in ("metadata", "offsets", "commits", "source") or data is None:
            continue
        # The first epoch's has the query's id too: a replay from the very beginning needs it.
        once = file.role in ("metadata", "source") and known.get(file.path) != FileEntry.of(data)
        if file.path not in own and not once:
            continue
        try:
            logs[file.path] = data.decode()
        except UnicodeDecodeError as error:
            raise CorruptError(file.path, f"not UTF-8: {error}") from error
    return logs
