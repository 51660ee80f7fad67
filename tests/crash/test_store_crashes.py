"""The process dies at every call to the store, before and after it takes effect. Then somebody looks.

Invariants I1, I2 and I7: the reader sees the old or the new checkpoint and never a mix, the next run works,
and a clean-up leaves nothing behind that nobody names. To die at a call that only reads leaves the same store
as to die after the write before it, so the longer jobs count writes alone.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest

import holdfast.ledger.logs
import holdfast.store.writing
from holdfast.blobs.base import BlobStore
from holdfast.blobs.memory import MemoryBlobs
from holdfast.ids import CheckpointId
from holdfast.manifest import (
    CheckpointManifestV2,
    OperatorSnapshotEntry,
    PartitionSnapshotEntry,
    SinkCommitStatus,
    SourceOffsetEntry,
)
from holdfast.store import PartitionedCheckpointStore
from holdfast.store.verifying import verify_store
from holdfast.testing import CALLS, WRITES, Crash, CrashingBlobs, FakeClock

Work = Callable[[PartitionedCheckpointStore], object]
SAVED = CheckpointId.parse("0195c0de-7000-7abc-8def-0123456789ab")


@pytest.fixture(autouse=True)
def _small_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Artifacts and log files become objects of their own long before a megabyte."""
    monkeypatch.setattr(holdfast.store.writing, "PACKED_BELOW_BYTES", 8)
    monkeypatch.setattr(holdfast.ledger.logs, "INLINE_BYTES", 8)


def prepared() -> MemoryBlobs:
    """A store with three checkpoints, the last two a chain, and what ``save`` needs."""
    blobs = MemoryBlobs(now_ms=FakeClock())
    store = PartitionedCheckpointStore(blobs, now_ms=FakeClock())
    first = publish(store, 1)
    second = publish(store, 2)
    publish(store, 3, second.checkpoint_id)
    assert first.checkpoint_id < second.checkpoint_id
    return blobs


def publish(
    store: PartitionedCheckpointStore, epoch: int, parent: CheckpointId | None = None
) -> CheckpointManifestV2:
    writer = store.writer(epoch, parent)
    writer.add("0", 0, b"small", delta=parent is not None)
    writer.add("0", 1, b"large enough", delta=parent is not None)
    writer.add_offsets("s", SourceOffsetEntry(source_type="file", offsets={"a": "1"}, epoch=epoch))
    writer.logs = {"offsets/1": "a long one"}
    writer.manifest.sink_commit_statuses = {"lake": SinkCommitStatus.PENDING}
    return writer.publish()


def publish_next(store: PartitionedCheckpointStore) -> object:
    return publish(store, 4, store.list_ids()[-1])


def save(store: PartitionedCheckpointStore) -> object:
    manifest = CheckpointManifestV2.new(SAVED, 4, timestamp_ms=1)
    store.blobs.put(store.paths.snapshot(SAVED, "0", 0), b"state")
    part = PartitionSnapshotEntry(
        partition_id=0, is_delta=False, path="operators/0/partition-0.snap", size_bytes=5
    )
    manifest.operators = {"0": OperatorSnapshotEntry([part], 5)}
    store.save_with_state(manifest, b"sidecar")
    return manifest


def update(store: PartitionedCheckpointStore) -> object:
    latest = store.load_latest()
    assert latest is not None
    store.update_manifest(latest.replaced(sink_commit_statuses={"lake": SinkCommitStatus.COMMITTED}))
    return latest


def settle_and_prune(store: PartitionedCheckpointStore) -> object:
    for id in store.list_ids():
        manifest = store.load_by_id(id)
        assert manifest is not None
        store.update_manifest(manifest.replaced(sink_commit_statuses={"lake": SinkCommitStatus.COMMITTED}))
    return store.prune(1)


def leave_and_clean_up(store: PartitionedCheckpointStore) -> object:
    writer = store.writer(4)
    writer.add("0", 0, b"x")
    writer.add("0", 1, b"large enough")
    writer.write()
    return store.cleanup_orphans(0)


def counted_calls(work: Work) -> frozenset[str]:
    return CALLS if work in (publish_next, update) else WRITES


def crash_points(work: Work) -> list[tuple[str, int]]:
    counted = CrashingBlobs(prepared(), counting=counted_calls(work))
    work(PartitionedCheckpointStore(counted))
    assert counted.count >= (1 if work is update else 4)
    return [(when, k) for k in range(1, counted.count + 1) for when in ("before", "after")]


def look(blobs: BlobStore) -> tuple[list[int], dict[int, list[bytes]], dict[int, object]]:
    """What a user sees: the epochs, their state, their sinks."""
    store = PartitionedCheckpointStore(blobs)
    states = {
        epoch: store.read_state(id, "0", 0) + (store.read_state(id, "0", 1) if id != SAVED else [])
        for id, epoch in store.list()
    }
    sinks: dict[int, object] = {}
    for id, epoch in store.list():
        manifest = store.load_by_id(id)
        assert manifest is not None
        sinks[epoch] = manifest.sink_commit_statuses
        assert store.validate_checkpoint(id).valid
    return [epoch for _, epoch in store.list()], states, sinks


@pytest.mark.parametrize(
    "work", [publish_next, save, update, settle_and_prune, leave_and_clean_up], ids=lambda work: work.__name__
)
def test_after_a_crash_at_any_call_the_old_or_the_new_is_there_and_the_next_run_works(work: Work) -> None:
    old = look(prepared())
    done = prepared()
    work(PartitionedCheckpointStore(done))
    new = look(done)

    died = 0
    for when, k in crash_points(work):
        blobs = prepared()
        crashing = CrashingBlobs(blobs, counting=counted_calls(work), **{when: k})  # type: ignore[arg-type]
        try:
            work(PartitionedCheckpointStore(crashing))
        except Crash:
            died += 1
        seen = look(blobs)
        if work is settle_and_prune:
            # Five records, so five steps: each state on the way is one that a user could have asked for.
            assert seen[0] in ([1, 2, 3], [2, 3]), (when, k)
        else:
            assert seen in (old, new), (when, k)
        assert verify_store(PartitionedCheckpointStore(blobs), read_data=True).problems == (), (when, k)

        again = PartitionedCheckpointStore(blobs)
        if 4 not in seen[0]:
            publish(again, 4)
        publish(again, 5, again.list_ids()[-1])
        if work is settle_and_prune:
            again.prune(10)
        again.cleanup_orphans(0)
        report = verify_store(again, read_data=True)
        assert (report.problems, report.warnings) == ((), ()), (when, k)
    # There is nothing to die after where a read finds nothing.
    assert died > len(crash_points(work)) // 2


def test_saving_again_after_a_crash_finishes_the_job() -> None:
    for when, k in crash_points(save):
        blobs = prepared()
        crashing = CrashingBlobs(blobs, counting=counted_calls(save), **{when: k})  # type: ignore[arg-type]
        with suppress(Crash):
            save(PartitionedCheckpointStore(crashing))

        store = PartitionedCheckpointStore(blobs)
        save(store)

        latest = store.load_latest()
        assert latest is not None
        assert latest.checkpoint_id == SAVED
        assert store.load_state_data(SAVED) == b"sidecar"
        assert store.read_pointer() == SAVED
        assert verify_store(store, read_data=True).problems == ()


def test_pruning_again_after_a_crash_finishes_the_job() -> None:
    for when, k in crash_points(settle_and_prune):
        blobs = prepared()
        crashing = CrashingBlobs(blobs, counting=counted_calls(settle_and_prune), **{when: k})  # type: ignore[arg-type]
        with suppress(Crash):
            settle_and_prune(PartitionedCheckpointStore(crashing))

        store = PartitionedCheckpointStore(blobs)
        settle_and_prune(store)

        assert [epoch for _, epoch in store.list()] == [2, 3]  # 3 continues 2
        report = verify_store(store, read_data=True)
        # Log files of a decision go with its record, which is still there.
        assert (report.problems, report.warnings) == ((), ())


def test_a_decision_is_never_taken_before_what_it_names_is_durable() -> None:
    crashing = CrashingBlobs(prepared())

    publish_next(PartitionedCheckpointStore(crashing))

    creates = [call.key for call in crashing.calls if call.method == "create"]
    assert creates[-1] == "ledger/000000000004.json"
    assert len(creates) == 5  # batch, large artifact, log file, manifest, record
