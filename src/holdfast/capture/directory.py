"""A Spark checkpoint directory, live or stopped, into a store: one checkpoint of its newest complete batch.

The query knows nothing of it and is not slowed down: Spark may write, compact and delete while we read. A
file that vanishes under our hands means that its batch is too old by now, so a newer one is taken instead;
there is never a torn checkpoint, because nothing is published before everything was read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from holdfast.capture.batch import capture_batch
from holdfast.errors import CorruptError, NotFoundError, UnsupportedFormatError
from holdfast.ledger import CheckpointRecord, History
from holdfast.manifest.v2 import CheckpointManifestV2
from holdfast.sparkdir.index import FileEntry, FileIndex
from holdfast.sparkdir.materialise import chain_index
from holdfast.sparkdir.reading import IncompleteBatchError, SparkCheckpoint
from holdfast.sparkdir.structure import check_frames
from holdfast.store.partitioned import PartitionedCheckpointStore

# A directory that loses files faster than this many readings is not worth chasing.
_ATTEMPTS = 10
_LONGEST_CHAIN = 20


@dataclass(frozen=True, slots=True)
class _Parent:
    """What a delta would continue. Without a manifest there is nothing to continue: take a snapshot."""

    manifest: CheckpointManifestV2 | None = None
    chain_length: int = 0
    known: FileIndex = field(default_factory=dict)


def capture_directory(
    checkpoint: SparkCheckpoint,
    store: PartitionedCheckpointStore,
    *,
    batch: int | None = None,
    progress: Callable[[str], object] | None = None,
) -> CheckpointManifestV2:
    """Capture the newest committed batch, or ``batch``, and publish it. Returns the published manifest.

    If the newest checkpoint of the store is of this query and batch already, that one is returned and nothing
    is written. ``progress`` is called with a sentence now and then. Raises NotFoundError when no batch is
    committed, IncompleteBatchError when the batch asked for is not (or no longer) complete.
    """
    tell = progress if progress is not None else _tell_nobody
    history = store.ledger.read()
    parent = _newest_checkpoint(store, history, tell)
    for attempt in range(1, _ATTEMPTS + 1):
        n = batch if batch is not None else _latest(checkpoint)
        if parent.manifest is not None and _is_of(parent.manifest, checkpoint, n):
            tell(f"batch {n} is captured already")
            return parent.manifest
        try:
            return _capture(checkpoint, store, history, parent, n, tell)
        except IncompleteBatchError as error:
            if batch is not None or attempt == _ATTEMPTS:
                raise error.with_hint("without --batch, the newest complete batch is captured") from None
            tell(f"{error}; looking again")
    raise AssertionError("unreachable")


def _capture(
    checkpoint: SparkCheckpoint,
    store: PartitionedCheckpointStore,
    history: History,
    parent: _Parent,
    n: int,
    tell: Callable[[str], object],
) -> CheckpointManifestV2:
    known = parent.known if _continues(parent, checkpoint, n) else {}
    delta = bool(known) and parent.chain_length < _LONGEST_CHAIN
    before = parent.manifest.checkpoint_id if delta and parent.manifest is not None else None
    writer = store.writer(history.highest_epoch + 1, before)
    try:
        captured = capture_batch(writer, checkpoint, n, known=known, delta=delta, inspect=check_frames)
    except BaseException:
        # Large artifacts are on their way as soon as they are added.
        writer.abandon()
        raise
    tell(f"batch {n}: {captured.files} new files, {captured.bytes} bytes")
    writer.batches = (n, n)
    writer.logs = captured.logs
    return writer.publish()


def _latest(checkpoint: SparkCheckpoint) -> int:
    latest = checkpoint.latest_committed()
    if latest is None:
        raise NotFoundError("the directory holds no committed batch").with_hint(
            "give the checkpointLocation of a query that has finished at least one batch"
        )
    return latest


def _newest_checkpoint(
    store: PartitionedCheckpointStore, history: History, tell: Callable[[str], object]
) -> _Parent:
    decision = next((d for d in history.walk() if isinstance(d, CheckpointRecord)), None)
    if decision is None:
        return _Parent()
    try:
        chain = store.chain(decision.checkpoint_id)
        return _Parent(chain[-1], len(chain), chain_index(store, decision.checkpoint_id))
    except (CorruptError, UnsupportedFormatError, NotFoundError) as error:
        # Nothing may build on what can't be read. What is captured now stands on its own.
        tell(f"the newest checkpoint can't be continued ({error}); taking a full one")
        return _Parent()


def _is_of(manifest: CheckpointManifestV2, checkpoint: SparkCheckpoint, n: int) -> bool:
    engine = manifest.engine
    return engine is not None and engine.batch_id == n and engine.query_id == checkpoint.query_id()


def _continues(parent: _Parent, checkpoint: SparkCheckpoint, n: int) -> bool:
    """Whether batch ``n`` of this directory comes after ``parent``, so that it may be a delta on it.

    The directory must still show the parent's own batch, byte for byte: its offsets hold the time it was
    planned. One that was rolled back and went another way has files of the same names and other meaning.
    """
    engine = parent.manifest.engine if parent.manifest is not None else None
    if engine is None or engine.batch_id is None:
        return False
    last = engine.batch_id
    if last >= n or engine.query_id != checkpoint.query_id():
        return False
    try:
        return all(
            parent.known.get(path) == FileEntry.of(checkpoint.read_log(path))
            for path in (f"offsets/{last}", f"commits/{last}")
        )
    except IncompleteBatchError:
        return False


def _tell_nobody(sentence: str) -> None:
    """For callers who don't want to hear."""
