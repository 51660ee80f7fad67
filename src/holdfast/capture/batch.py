"""One batch of a Spark checkpoint directory into one checkpoint of a store. Decides and publishes nothing.

What arrives in the writer is whole or not at all: every file was there, as the plan wants it, and what may
change under its name had not changed when the last one had been read. Else IncompleteBatchError, and the
caller abandons the writer and takes a newer batch.

Only what the chain lacks travels: a file of the same path *and* the same SHA-256 is not stored again. (A name
alone proves nothing: Spark rewrites files of state format 1 when it runs a batch twice.)
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import msgspec

from holdfast.batch import encode_batch
from holdfast.blobs.base import BlobInfo
from holdfast.errors import CorruptError
from holdfast.manifest.parts import Engine, SourceOffsetEntry
from holdfast.sparkdir.index import INDEX_PATH, FileEntry, FileIndex, encode_index
from holdfast.sparkdir.positions import read_position
from holdfast.sparkdir.reading import IncompleteBatchError, SparkCheckpoint
from holdfast.sparkdir.required import BatchPlan, RequiredFile, plan_batch
from holdfast.sparkdir.statefiles import check_checksum
from holdfast.store.writing import CheckpointWriter

# Below this many files, handing them to threads costs more than reading them.
_FEW_FILES = 32
_READERS = 8


@dataclass(frozen=True, slots=True)
class Captured:
    """What went into the writer. ``index`` is what the chain now holds."""

    index: FileIndex
    #: Log files new with this epoch (path → text), for the ledger record: a lost manifest can't hide them.
    logs: dict[str, str]
    bytes: int
    files: int


@dataclass(slots=True)
class _Taken:
    entries: dict[str, bytes] = field(default_factory=dict)
    index: dict[str, FileEntry] = field(default_factory=dict)


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
) -> Captured:
    """Fill ``writer`` with batch ``n``: artifacts, log artifact, source positions, watermark, engine.

    ``known`` is what the chain behind the writer holds. With ``delta`` only what it lacks is stored;
    without, everything is, and ``known`` only tells which logs are new. ``first`` is the epoch's first batch.
    ``source_names`` names the sources in the query's order; else they are called as their log directories.
    Raises IncompleteBatchError.
    """
    held = {path for path in known if delta}
    plan = plan_batch(checkpoint, n, commit_text, first=first, held=held)
    before = _changeable(checkpoint, plan)
    taken = _take(checkpoint, plan, known if delta else {})
    _check_unchanged(checkpoint, plan, before, commit_on_disk=commit_text is None)
    _add_artifacts(writer, plan, taken, delta=delta)
    _add_facts(writer, checkpoint, plan, source_names)
    return Captured(
        index={**known, **taken.index} if delta else taken.index,
        logs=_new_logs(plan, known, first),
        bytes=sum(len(data) for data in taken.entries.values()),
        files=len(taken.entries),
    )


# --- taking


def _take(checkpoint: SparkCheckpoint, plan: BatchPlan, known: FileIndex) -> _Taken:
    taken = _Taken()
    files = _read_all(checkpoint, plan)
    _check_checksums(files)
    for file, data in files:
        entry = FileEntry.of(data)
        if known.get(file.path) != entry:
            taken.entries[file.path] = data
            taken.index[file.path] = entry
    return taken


def _read_all(checkpoint: SparkCheckpoint, plan: BatchPlan) -> list[tuple[RequiredFile, bytes]]:
    def read(file: RequiredFile) -> tuple[RequiredFile, bytes]:
        data = plan.contents.get(file.path)
        return file, checkpoint.read(file.path, plan.batch) if data is None else data

    if len(plan.files) <= _FEW_FILES:
        return [read(file) for file in plan.files]
    with ThreadPoolExecutor(_READERS, thread_name_prefix="holdfast-capture") as pool:
        return list(pool.map(read, plan.files))


def _check_checksums(files: Sequence[tuple[RequiredFile, bytes]]) -> None:
    """Files that Spark wrote a checksum for are what it wrote: a store must not vouch for flipped bits."""
    contents = {file.path: data for file, data in files}
    for file, checksum in files:
        if file.role == "checksum":
            path = file.path.removesuffix(".crc")
            check_checksum(contents[path], checksum, path)


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


# --- filling the writer


def _add_artifacts(writer: CheckpointWriter, plan: BatchPlan, taken: _Taken, *, delta: bool) -> None:
    logs: list[tuple[str, bytes]] = [(INDEX_PATH, encode_index(taken.index))]
    # Every partition gets an artifact, if only an empty one: a manifest shows the whole state.
    state: dict[tuple[str, int], list[tuple[str, bytes]]] = {
        (op, p): [] for op, partitions in plan.partitions.items() for p in range(partitions)
    }
    for file in plan.files:
        data = taken.entries.get(file.path)
        if data is None:
            continue
        if file.operator is None or file.partition is None:
            logs.append((file.path, data))
        else:
            state[file.operator, file.partition].append((file.path, data))
    for (operator, partition), entries in state.items():
        writer.add(operator, partition, encode_batch(entries), delta=delta)
    writer.add_logs(encode_batch(logs), delta=delta)


def _add_facts(
    writer: CheckpointWriter, checkpoint: SparkCheckpoint, plan: BatchPlan, names: Sequence[str] | None
) -> None:
    manifest, conf = writer.manifest, plan.offsets.conf
    manifest.watermark = plan.commit.next_watermark_ms
    manifest.engine = msgspec.structs.replace(
        manifest.engine or Engine(),
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
        if file.role not in ("offsets", "commits", "source") or data is None:
            continue
        if file.path not in own and (file.role != "source" or known.get(file.path) == FileEntry.of(data)):
            continue
        try:
            logs[file.path] = data.decode()
        except UnicodeDecodeError as error:
            raise CorruptError(file.path, f"not UTF-8: {error}") from error
    return logs
