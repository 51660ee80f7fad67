"""The v2 store: what is published is what is read, and only that."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.blobs.base import BlobStore
from holdfast.blobs.files import FileBlobs
from holdfast.blobs.memory import MemoryBlobs
from holdfast.errors import (
    CheckpointNotFoundError,
    ConflictError,
    CorruptError,
    EpochTakenError,
    FencedError,
    InvalidInputError,
    NotFoundError,
    StoreUnavailableError,
)
from holdfast.ids import CheckpointId
from holdfast.ledger import (
    Author,
    CheckpointRecord,
    EpochRecord,
    HoldRecord,
    OutcomeRecord,
    PruneRecord,
    RestoreRecord,
    StartRecord,
    new_writer,
)
from holdfast.manifest import (
    CheckpointManifestV2,
    OperatorSnapshotEntry,
    PartitionSnapshotEntry,
    SinkCommitStatus,
    SourceOffsetEntry,
    StoredObject,
)
from holdfast.manifest.codec import sha256_hex
from holdfast.store import PartitionedCheckpointStore
from holdfast.testing import FakeClock, FaultyBlobs

PENDING, COMMITTED = SinkCommitStatus.PENDING, SinkCommitStatus.COMMITTED


@pytest.fixture(params=["memory", "files"])
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> BlobStore:
    return MemoryBlobs() if request.param == "memory" else FileBlobs(tmp_path)


@pytest.fixture
def store(blobs: BlobStore) -> PartitionedCheckpointStore:
    return PartitionedCheckpointStore(blobs)


def publish(
    store: PartitionedCheckpointStore, epoch: int, parent: CheckpointManifestV2 | None = None
) -> CheckpointManifestV2:
    """One operator with two partitions; with a parent, deltas."""
    writer = store.writer(epoch, parent.checkpoint_id if parent else None)
    for partition in (0, 1):
        writer.add("agg", partition, f"{epoch}/{partition}".encode(), delta=parent is not None)
    writer.add_logs(b"logs %d" % epoch, delta=parent is not None)
    return writer.publish()


def keys(store: PartitionedCheckpointStore, prefix: str = "") -> list[str]:
    return [info.key for info in store.blobs.list(prefix)]


def flip(store: PartitionedCheckpointStore, key: str, at: int = 10) -> None:
    data = bytearray(store.blobs.get(key))
    data[at] ^= 1
    store.blobs.put(key, bytes(data))


def epochs(store: PartitionedCheckpointStore) -> list[int]:
    return [epoch for _, epoch in store.list()]


class TestWriting:
    def test_a_small_epoch_is_three_objects_and_reads_back(self, store: PartitionedCheckpointStore) -> None:
        writer = store.writer(41)
        writer.add("agg", 3, b"state")
        writer.add_offsets("trades", SourceOffsetEntry(source_type="kafka", offsets={"0": "7"}, epoch=41))

        manifest = writer.publish()

        directory = store.paths.checkpoint_dir(writer.id)
        assert keys(store) == [
            f"{directory}batch-000041.lz4",
            f"{directory}manifest.json",
            "ledger/000000000001.json",
        ]
        entry = manifest.operators["agg"].partitions[0]
        assert entry.path == "batch-000041.lz4#operators/agg/partition-3.snap"
        assert entry.sha256 == sha256_hex(b"state")
        assert manifest.total_size_bytes == 5
        assert store.load_latest() == store.load_by_id(writer.id) == manifest
        assert store.read_state(writer.id, "agg", 3) == [b"state"]
        assert store.validate_checkpoint(writer.id).issues == ()

    def test_two_hundred_partitions_are_three_objects_too(self, store: PartitionedCheckpointStore) -> None:
        writer = store.writer(1)
        for partition in range(200):
            writer.add("0", partition, b"x" * 1024)

        manifest = writer.publish()

        assert len(keys(store)) == 3
        assert manifest.total_size_bytes == 200 * 1024
        assert store.read_state(writer.id, "0", 199) == [b"x" * 1024]

    def test_a_large_artifact_has_an_object_of_its_own(self, store: PartitionedCheckpointStore) -> None:
        large = [b"a" * (1 << 19), b"b" * (1 << 19)]
        writer = store.writer(1)
        writer.add("0", 0, large)
        writer.add("0", 1, b"a" * ((1 << 20) - 1))

        manifest = writer.publish()

        paths = [part.path for part in manifest.operators["0"].partitions]
        assert paths == ["operators/0/partition-0.snap", "batch-000001.lz4#operators/0/partition-1.snap"]
        assert manifest.objects["operators/0/partition-0.snap"] == StoredObject(
            size_bytes=1 << 20, sha256=sha256_hex(b"".join(large))
        )
        assert store.read_state(writer.id, "0", 0) == [b"".join(large)]

    def test_more_small_artifacts_than_one_pack_should_hold_fill_several(
        self, store: PartitionedCheckpointStore
    ) -> None:
        writer = store.writer(1)
        for partition in range(40):
            writer.add("0", partition, bytes([partition]) * 1_000_000)

        writer.publish()

        packs = [key.rpartition("/")[2] for key in keys(store) if "batch-" in key]
        assert packs == ["batch-000001-1.lz4", "batch-000001.lz4"]
        assert store.read_state(writer.id, "0", 39) == [bytes([39]) * 1_000_000]
        assert store.validate_checkpoint(writer.id).valid

    def test_an_operators_name_may_be_anything(self, store: PartitionedCheckpointStore) -> None:
        names = ["a/b", "..", "%", "batch-000001.lz4#x", "é\n", "operators"]
        writer = store.writer(1)
        for name in names:
            writer.add(name, 0, name.encode())
            writer.add(name, 1, name.encode() * (1 << 20))

        writer.publish()

        for name in names:
            assert store.read_state(writer.id, name, 0) == [name.encode()]
            assert store.read_state(writer.id, name, 1) == [name.encode() * (1 << 20)]
        assert store.validate_checkpoint(writer.id).valid

    def test_what_is_written_is_no_checkpoint_before_it_is_published(
        self, store: PartitionedCheckpointStore
    ) -> None:
        first = publish(store, 1)
        writer = store.writer(2)
        writer.add("agg", 0, b"x")

        writer.write()

        assert store.load_by_id(writer.id) is None
        assert store.load_latest() == first
        assert not store.validate_checkpoint(writer.id).valid
        writer.publish()
        assert epochs(store) == [1, 2]

    def test_the_very_first_epoch_is_no_checkpoint_before_it_is_published(
        self, store: PartitionedCheckpointStore
    ) -> None:
        writer = store.writer(1)
        writer.write()

        assert store.load_by_id(writer.id) is None
        assert store.load_latest() is None
        assert store.list_ids() == []
        assert store.recover_latest_validated().chosen_id is None
        publish(store, 1)
        assert epochs(store) == [1]

    def test_an_abandoned_attempt_leaves_nothing(self, store: PartitionedCheckpointStore) -> None:
        publish(store, 1)
        before = keys(store)
        writer = store.writer(2)
        writer.add("agg", 0, b"x")
        writer.add("agg", 1, b"x" * (1 << 20))
        writer.logs = {"offsets/1": "x" * 300_000}
        writer.write()

        writer.abandon()

        assert keys(store) == before

    def test_a_published_checkpoint_cannot_be_abandoned(self, store: PartitionedCheckpointStore) -> None:
        writer = store.writer(1)
        writer.add("agg", 0, b"x")
        writer.publish()

        writer.abandon()

        assert store.validate_checkpoint(writer.id).valid

    def test_after_an_unknown_outcome_nothing_is_taken_back(self) -> None:
        faulty = FaultyBlobs(MemoryBlobs())
        store = PartitionedCheckpointStore(faulty)
        writer = store.writer(1)
        writer.add("agg", 0, b"x")
        writer.write()
        faulty.fail("create", StoreUnavailableError("down"), times=None)

        with pytest.raises(StoreUnavailableError):
            writer.publish()
        writer.abandon()

        # A plain failure: undecided for sure, so it is gone. The other case is next.
        assert keys(store) == []

    def test_an_epoch_is_decided_once(self, store: PartitionedCheckpointStore) -> None:
        slower = store.writer(1)
        publish(store, 1)

        with pytest.raises(EpochTakenError):
            slower.publish()
        with pytest.raises(EpochTakenError):
            store.writer(1)
        assert epochs(store) == [1]

    def test_ids_sort_as_the_timeline_does_whatever_the_clock_says(
        self, store: PartitionedCheckpointStore
    ) -> None:
        future = CheckpointManifestV2.new(CheckpointId.parse("f195c0de-7000-7abc-8def-0123456789ab"), 1)
        store.save(future)

        second = publish(store, 2)

        assert second.checkpoint_id > future.checkpoint_id
        assert store.list_ids() == [future.checkpoint_id, second.checkpoint_id]

    def test_a_delta_needs_a_parent_that_is_one(self, store: PartitionedCheckpointStore) -> None:
        with pytest.raises(InvalidInputError, match="parent"):
            store.writer(1).add("agg", 0, b"x", delta=True)
        with pytest.raises(InvalidInputError, match="parent"):
            store.writer(1).add_logs(b"x", delta=True)
        with pytest.raises(CheckpointNotFoundError):
            store.writer(1, CheckpointId.now())

    def test_a_parent_pruned_meanwhile_ends_the_attempt(self, store: PartitionedCheckpointStore) -> None:
        parent = publish(store, 1)
        child = store.writer(2, parent.checkpoint_id)
        child.add("agg", 0, b"x", delta=True)
        store.ledger.append(PruneRecord(ids=[parent.checkpoint_id]), author=store.author)

        with pytest.raises(ConflictError, match="pruned"):
            child.publish()
        with pytest.raises(CheckpointNotFoundError):
            store.writer(2, parent.checkpoint_id)

    def test_nothing_is_added_twice_or_late(self, store: PartitionedCheckpointStore) -> None:
        writer = store.writer(1)
        writer.add("agg", 0, b"x")
        with pytest.raises(InvalidInputError, match="already"):
            writer.add("agg", 0, b"y")
        writer.write()
        with pytest.raises(InvalidInputError, match="written"):
            writer.add("agg", 1, b"y")

    def test_a_runner_decides_here_and_a_library_does_not(self, store: PartitionedCheckpointStore) -> None:
        author = Author(0, new_writer())
        start = store.ledger.append(StartRecord(), author=author)
        runner = Author(start.n, author.writer)

        mine = store.writer(1, author=runner)
        mine.add("agg", 0, b"x")

        manifest = mine.publish()
        assert (manifest.generation, manifest.writer) == (start.n, author.writer)
        with pytest.raises(ConflictError, match="runner"):
            store.writer(2).publish()

    def test_what_a_decision_must_tell_is_in_its_record(self, store: PartitionedCheckpointStore) -> None:
        writer = store.writer(5)
        writer.batches = (3, 4)
        writer.receipts = {"lake": [{"files": 2}]}
        writer.logs = {"offsets/4": "v1\n", "sources/0/4": "é" * 200_000}
        writer.manifest.sink_commit_statuses = {"lake": PENDING, "db": PENDING}

        manifest = writer.publish()

        record = store.ledger.read().newest_decision
        assert isinstance(record, CheckpointRecord)
        assert record == writer.record
        assert (record.epoch, record.batches, record.seal) == (5, (3, 4), manifest.seal)
        assert record.receipts == {"lake": [{"files": 2}], "db": []}
        assert manifest.sink_receipts == {"lake": [{"files": 2}]}
        assert store.ledger.read_logs(record) == writer.logs
        assert len(keys(store, "logs/")) == 1


class TestReading:
    def test_an_empty_store_has_nothing(self, store: PartitionedCheckpointStore) -> None:
        id = CheckpointId.now()

        assert store.load_latest() is None
        assert store.load_by_id(id) is None
        assert store.list() == []
        assert store.list_ids() == []
        assert store.load_state_data(id) is None
        assert not store.validate_checkpoint(id).valid
        assert store.recover_latest_validated().examined == 0
        assert store.prune(1) == 0
        assert store.cleanup_orphans() == 0

    def test_state_is_read_along_the_chain_the_snapshot_first(
        self, store: PartitionedCheckpointStore
    ) -> None:
        first = publish(store, 1)
        second = publish(store, 2, first)
        third = publish(store, 3, second)

        assert [link.epoch for link in store.chain(third.checkpoint_id)] == [1, 2, 3]
        assert store.read_state(third.checkpoint_id, "agg", 1) == [b"1/1", b"2/1", b"3/1"]
        assert store.read_logs(third.checkpoint_id) == [b"logs 1", b"logs 2", b"logs 3"]
        assert third.parent_seal == second.seal

    def test_a_snapshot_ends_the_chain_though_it_has_a_parent(
        self, store: PartitionedCheckpointStore
    ) -> None:
        first = publish(store, 1)
        writer = store.writer(2, first.checkpoint_id)
        writer.add("agg", 0, b"full")
        second = writer.publish()

        assert second.parent_id == first.checkpoint_id
        assert [link.epoch for link in store.chain(second.checkpoint_id)] == [2]

    def test_state_that_is_not_there_is_an_error_not_an_empty_one(
        self, store: PartitionedCheckpointStore
    ) -> None:
        manifest = publish(store, 1)

        with pytest.raises(NotFoundError):
            store.read_state(manifest.checkpoint_id, "agg", 7)
        with pytest.raises(NotFoundError):
            store.read_state(manifest.checkpoint_id, "other", 0)
        with pytest.raises(NotFoundError):
            store.read_state(CheckpointId.now(), "agg", 0)

    def test_a_flipped_batch_is_corrupt_and_an_unreadable_version_is_no_newer_format(
        self, store: PartitionedCheckpointStore
    ) -> None:
        manifest = publish(store, 1)
        key = store.paths.batch(manifest.checkpoint_id, 1)
        flip(store, key, at=4)  # its version: 2 becomes 3

        with pytest.raises(CorruptError):
            store.read_state(manifest.checkpoint_id, "agg", 0)

    def test_a_missing_object_is_corrupt(self, store: PartitionedCheckpointStore) -> None:
        manifest = publish(store, 1)
        store.blobs.delete(store.paths.batch(manifest.checkpoint_id, 1))

        with pytest.raises(CorruptError, match="missing"):
            store.read_state(manifest.checkpoint_id, "agg", 0)
        assert "missing" in store.validate_checkpoint(manifest.checkpoint_id).reason

    def test_a_manifest_swapped_for_another_sound_one_is_corrupt(
        self, store: PartitionedCheckpointStore
    ) -> None:
        first, second = publish(store, 1), publish(store, 2)
        other = store.blobs.get(store.paths.manifest(first.checkpoint_id))
        store.blobs.put(store.paths.manifest(second.checkpoint_id), other)

        with pytest.raises(CorruptError):
            store.load_by_id(second.checkpoint_id)
        with pytest.raises(CorruptError):
            store.load_latest()
        assert epochs(store) == [1]
        assert len(store.list_ids()) == 2

    def test_a_manifest_that_is_missing_is_corrupt_not_absent(
        self, store: PartitionedCheckpointStore
    ) -> None:
        manifest = publish(store, 1)
        store.blobs.delete(store.paths.manifest(manifest.checkpoint_id))

        with pytest.raises(CorruptError, match="missing"):
            store.load_by_id(manifest.checkpoint_id)
        assert not store.validate_checkpoint(manifest.checkpoint_id).valid

    @pytest.mark.parametrize("damage", ["garbage", "missing", "dangling", "older"])
    def test_the_pointer_is_only_a_hint(self, store: PartitionedCheckpointStore, damage: str) -> None:
        first = CheckpointManifestV2.new(CheckpointId.now(), 1)
        second = CheckpointManifestV2.new(CheckpointId.now(), 2)
        store.save(first)
        store.save(second)
        pointer = store.paths.latest_pointer()
        assert store.blobs.get(pointer) == str(second.checkpoint_id).encode()
        if damage == "missing":
            store.blobs.delete(pointer)
        else:
            text = {"garbage": "\xff", "dangling": str(CheckpointId.now()), "older": str(first.checkpoint_id)}
            store.blobs.put(pointer, text[damage].encode("latin-1"))

        latest = store.load_latest()

        assert latest is not None
        assert latest.epoch == 2
        store.save(second)
        assert store.blobs.get(pointer) == str(second.checkpoint_id).encode()
        store.save(first)
        assert store.blobs.get(pointer) == str(second.checkpoint_id).encode()

    def test_recovery_steps_back_over_corruption_and_says_why(
        self, store: PartitionedCheckpointStore
    ) -> None:
        ids = [publish(store, epoch).checkpoint_id for epoch in (1, 2, 3)]
        flip(store, store.paths.manifest(ids[2]))
        flip(store, store.paths.batch(ids[1], 2), at=30)

        report = store.recover_latest_validated()

        assert report.chosen_id == ids[0]
        assert [id for id, _ in report.skipped] == [ids[2], ids[1]]
        assert "batch-000002.lz4" in report.skipped[1][1]
        assert report.examined == 3

    def test_recovery_does_not_step_back_over_a_store_that_does_not_answer(self) -> None:
        faulty = FaultyBlobs(MemoryBlobs())
        store = PartitionedCheckpointStore(faulty)
        publish(store, 1)
        manifest = publish(store, 2)
        faulty.fail("get", StoreUnavailableError("down"), key=store.paths.manifest(manifest.checkpoint_id))

        with pytest.raises(StoreUnavailableError):
            PartitionedCheckpointStore(faulty).recover_latest_validated()

    def test_a_broken_link_breaks_every_child(self, store: PartitionedCheckpointStore) -> None:
        first = publish(store, 1)
        second = publish(store, 2, first)
        third = publish(store, 3, second)
        flip(store, store.paths.batch(second.checkpoint_id, 2), at=30)

        report = store.recover_latest_validated()

        assert report.chosen_id == first.checkpoint_id
        assert not store.validate_checkpoint(third.checkpoint_id).valid

    def test_a_link_whose_manifest_is_gone_breaks_the_chain(self, store: PartitionedCheckpointStore) -> None:
        first = publish(store, 1)
        second = publish(store, 2, first)
        store.blobs.delete(store.paths.manifest(first.checkpoint_id))

        result = store.validate_checkpoint(second.checkpoint_id)

        assert not result.valid
        assert [issue.code for issue in result.issues] == ["broken-chain"]
        with pytest.raises(CorruptError):
            store.chain(second.checkpoint_id)

    def test_an_unreadable_newest_record_is_never_the_end_of_the_log(
        self, store: PartitionedCheckpointStore
    ) -> None:
        first = publish(store, 1)
        publish(store, 2)
        flip(store, "ledger/000000000002.json")
        again = PartitionedCheckpointStore(store.blobs)

        with pytest.raises(CorruptError, match="000000000002"):
            again.load_latest()
        report = again.recover_latest_validated()
        assert report.chosen_id == first.checkpoint_id
        assert [id for id, _ in report.skipped] == [None]
        with pytest.raises(CorruptError):
            publish(again, 3)

    def test_a_light_epoch_is_no_checkpoint(self, store: PartitionedCheckpointStore) -> None:
        first = publish(store, 1)
        store.ledger.append(EpochRecord(epoch=2, checkpoint_id=CheckpointId.now()), author=store.author)

        assert store.load_latest() == first
        assert epochs(store) == [1]

    def test_what_a_restore_abandoned_is_never_newest_listed_or_a_parent(
        self, store: PartitionedCheckpointStore
    ) -> None:
        first = publish(store, 1)
        second = publish(store, 2)
        store.ledger.append(RestoreRecord(to=1, sinks=None), author=store.author)

        assert store.load_latest() == first
        assert epochs(store) == [1]
        assert store.load_by_id(second.checkpoint_id) == second
        with pytest.raises(ConflictError, match="abandoned"):
            publish(store, 3, second)
        third = publish(store, 3)
        assert epochs(store) == [1, 3]
        assert third.checkpoint_id > second.checkpoint_id


class TestSaving:
    def test_a_manifest_is_saved_with_artifacts_that_are_there(
        self, store: PartitionedCheckpointStore
    ) -> None:
        manifest = with_artifact(store, 1, b"state")

        store.save(manifest)

        loaded = store.load_latest()
        assert loaded is not None
        assert loaded.objects["operators/agg/partition-0.snap"].sha256 == sha256_hex(b"state")
        assert loaded.seal is not None
        assert store.read_state(manifest.checkpoint_id, "agg", 0) == [b"state"]
        assert store.validate_checkpoint(manifest.checkpoint_id).issues == ()

    def test_a_manifest_is_not_saved_before_its_artifacts(self, store: PartitionedCheckpointStore) -> None:
        manifest = with_artifact(store, 1, b"state")
        key = store.paths.snapshot(manifest.checkpoint_id, "agg", 0)

        store.blobs.put(key, b"stale")
        with pytest.raises(CorruptError, match="recorded"):
            store.save(manifest)
        store.blobs.delete(key)
        with pytest.raises(CorruptError, match="missing"):
            store.save(manifest)
        assert store.list_ids() == []

    def test_the_same_content_again_is_success_and_other_content_a_conflict(
        self, store: PartitionedCheckpointStore
    ) -> None:
        manifest = with_artifact(store, 1, b"state")
        store.save(manifest)
        before = keys(store)

        store.save(manifest)
        PartitionedCheckpointStore(store.blobs).save(manifest)
        loaded = store.load_latest()
        assert loaded is not None
        store.save(loaded)

        assert keys(store) == before
        with pytest.raises(ConflictError, match="watermark"):
            store.save(manifest.replaced(watermark=7))
        assert store.load_latest() == loaded

    def test_an_undecided_attempt_of_the_same_content_is_taken_up(
        self, store: PartitionedCheckpointStore
    ) -> None:
        faulty = FaultyBlobs(store.blobs)
        manifest = with_artifact(store, 1, b"state")
        faulty.fail("create", key="ledger/000000000001.json", times=None)
        with pytest.raises(StoreUnavailableError):
            PartitionedCheckpointStore(faulty).save(manifest)

        with pytest.raises(ConflictError, match="another attempt"):
            store.save(manifest.replaced(watermark=7))
        store.save(manifest)

        assert store.validate_checkpoint(manifest.checkpoint_id).valid

    def test_statuses_change_by_an_outcome_and_nothing_else_changes(
        self, store: PartitionedCheckpointStore
    ) -> None:
        manifest = CheckpointManifestV2.new(CheckpointId.now(), 1)
        manifest.sink_commit_statuses = {"lake": PENDING, "db": PENDING}
        store.save(manifest)
        stored = store.blobs.get(store.paths.manifest(manifest.checkpoint_id))
        failed = SinkCommitStatus.failed("reset")

        assert store.recover_latest_validated().chosen_id is None
        store.update_manifest(manifest.replaced(sink_commit_statuses={"lake": COMMITTED, "db": PENDING}))
        assert "db" in store.recover_latest_validated().skipped[0][1]
        store.update_manifest(manifest.replaced(sink_commit_statuses={"lake": COMMITTED, "db": failed}))

        assert store.recover_latest_validated().chosen_id == manifest.checkpoint_id
        latest = store.load_latest()
        assert latest is not None
        assert latest.sink_commit_statuses == {"lake": COMMITTED, "db": failed}
        assert store.blobs.get(store.paths.manifest(manifest.checkpoint_id)) == stored
        assert isinstance(store.ledger.read().record(3), OutcomeRecord)
        with pytest.raises(ConflictError, match="epoch"):
            store.update_manifest(manifest.replaced(epoch=2))
        with pytest.raises(CheckpointNotFoundError):
            store.update_manifest(CheckpointManifestV2.new(CheckpointId.now(), 9))

    def test_an_update_that_changes_nothing_writes_nothing(self, store: PartitionedCheckpointStore) -> None:
        manifest = publish(store, 1)

        store.update_manifest(manifest)

        assert store.ledger.read().head == 1

    def test_a_sidecar_is_sealed_and_never_overwritten(self, store: PartitionedCheckpointStore) -> None:
        manifest = CheckpointManifestV2.new(CheckpointId.now(), 1)
        store.save_with_state(manifest, b"state")
        id = manifest.checkpoint_id

        store.save_with_state(manifest, b"state")
        store.save_state_data(id, b"state")

        assert store.load_state_data(id) == b"state"
        for other in (b"", b"other", None):
            with pytest.raises(ConflictError):
                store.save_with_state(manifest, other)
        with pytest.raises(ConflictError):
            store.save_state_data(id, b"other")
        flip(store, store.paths.state(id), at=0)
        with pytest.raises(CorruptError):
            store.load_state_data(id)
        assert not store.validate_checkpoint(id).valid

    def test_a_checkpoint_without_a_sidecar_gets_none_later(self, store: PartitionedCheckpointStore) -> None:
        manifest = CheckpointManifestV2.new(CheckpointId.now(), 1)
        store.save(manifest)

        with pytest.raises(ConflictError):
            store.save_with_state(manifest, b"")
        with pytest.raises(ConflictError):
            store.save_state_data(manifest.checkpoint_id, b"")
        assert store.load_state_data(manifest.checkpoint_id) is None

    def test_a_failing_pointer_fails_no_save(self, caplog: pytest.LogCaptureFixture) -> None:
        faulty = FaultyBlobs(MemoryBlobs())
        store = PartitionedCheckpointStore(faulty)
        faulty.fail("put", key=store.paths.latest_pointer())

        with caplog.at_level(logging.WARNING):
            store.save(CheckpointManifestV2.new(CheckpointId.now(), 1))

        assert "_latest" in caplog.text
        assert epochs(store) == [1]


class TestForeignTrees:
    """Somebody else's checkpoints: the older layout, no ledger, no seals."""

    @pytest.fixture
    def ids(self, blobs: BlobStore) -> list[CheckpointId]:
        ids = [CheckpointId.now() for _ in range(3)]
        for epoch, id in enumerate(ids, start=1):
            base = f"checkpoints/{id}" + ("" if epoch < 3 else "/")
            blobs.put(f"{base}operators/agg/partition-0.snap", b"snap %d" % epoch)
            part = PartitionSnapshotEntry(
                partition_id=0,
                is_delta=False,
                path=(base if epoch < 3 else "") + "operators/agg/partition-0.snap",
                size_bytes=6,
                sha256=sha256_hex(b"snap %d" % epoch) if epoch > 1 else None,
            )
            manifest = CheckpointManifestV2.new(id, epoch)
            manifest.operators = {"agg": OperatorSnapshotEntry([part], 6)}
            blobs.put(f"{base}manifest.json", manifest.to_json())
        blobs.put("checkpoints/_latest", str(ids[0]).encode())
        return ids

    def test_it_is_readable_as_it_lies(
        self, store: PartitionedCheckpointStore, ids: list[CheckpointId]
    ) -> None:
        assert store.list() == [(id, epoch) for epoch, id in enumerate(ids, start=1)]
        assert store.list_ids() == ids
        latest = store.load_latest()
        assert latest is not None
        assert latest.checkpoint_id == ids[2]
        assert [store.read_state(id, "agg", 0) for id in ids] == [[b"snap 1"], [b"snap 2"], [b"snap 3"]]
        assert all(store.validate_checkpoint(id).valid for id in ids)
        assert store.recover_latest_validated().chosen_id == ids[2]
        assert keys(store, "ledger/") == []

    def test_damage_in_it_is_found_where_it_left_a_trace(
        self, store: PartitionedCheckpointStore, ids: list[CheckpointId]
    ) -> None:
        flip(store, f"checkpoints/{ids[1]}operators/agg/partition-0.snap", at=0)
        store.blobs.put(f"checkpoints/{ids[0]}operators/agg/partition-0.snap", b"short")
        flip(store, f"checkpoints/{ids[2]}/manifest.json", at=0)

        report = store.recover_latest_validated()

        assert report.chosen_id is None
        assert [id for id, _ in report.skipped] == ids[::-1]
        assert epochs(store) == [1, 2]
        with pytest.raises(CorruptError):
            store.load_latest()

    def test_the_first_write_adopts_its_newest_manifest(
        self, store: PartitionedCheckpointStore, ids: list[CheckpointId]
    ) -> None:
        writer = store.writer(4, ids[2])
        writer.add("agg", 0, b"delta", delta=True)

        child = writer.publish()

        assert store.list_ids() == [ids[2], child.checkpoint_id]
        assert store.read_state(child.checkpoint_id, "agg", 0) == [b"snap 3", b"delta"]
        flip(store, f"checkpoints/{ids[2]}/manifest.json", at=-10)
        again = PartitionedCheckpointStore(store.blobs)
        assert not again.validate_checkpoint(child.checkpoint_id).valid

    def test_what_was_not_adopted_is_read_and_left_alone(
        self, store: PartitionedCheckpointStore, ids: list[CheckpointId]
    ) -> None:
        publish(store, 4)
        publish(store, 5)

        assert store.prune(1) == 2
        assert store.cleanup_orphans(0) == 0

        first = store.load_by_id(ids[0])
        assert first is not None
        assert store.read_state(ids[0], "agg", 0) == [b"snap 1"]

    def test_it_is_not_adopted_while_its_newest_manifest_is_unreadable(
        self, store: PartitionedCheckpointStore, ids: list[CheckpointId]
    ) -> None:
        flip(store, f"checkpoints/{ids[2]}/manifest.json", at=0)

        with pytest.raises(CorruptError):
            store.writer(4)
        assert keys(store, "ledger/") == []


class TestPruning:
    def test_the_newest_are_kept_and_everything_of_the_others_is_gone(
        self, store: PartitionedCheckpointStore
    ) -> None:
        manifests = [publish(store, epoch) for epoch in range(1, 6)]

        assert store.prune(2) == 3

        assert epochs(store) == [4, 5]
        gone = [str(manifest.checkpoint_id) for manifest in manifests[:3]]
        assert not [key for key in keys(store) if any(id in key for id in gone)]
        assert store.load_by_id(manifests[0].checkpoint_id) is None
        assert store.prune(2) == 0

    @pytest.mark.parametrize("keep", [0, -1])
    def test_keeping_nothing_is_a_mistake(self, store: PartitionedCheckpointStore, keep: int) -> None:
        with pytest.raises(InvalidInputError):
            store.prune(keep)

    def test_a_chain_is_kept_as_long_as_one_delta_needs_it(self, store: PartitionedCheckpointStore) -> None:
        first = publish(store, 1)
        second = publish(store, 2, first)
        third = publish(store, 3, second)
        assert store.prune(1) == 0

        publish(store, 4)
        assert store.validate_checkpoint(third.checkpoint_id).valid
        assert store.prune(1) == 3
        assert epochs(store) == [4]

    def test_what_is_held_pointed_to_or_pending_is_kept(self, blobs: BlobStore) -> None:
        clock = FakeClock()
        store = PartitionedCheckpointStore(blobs, now_ms=clock)
        manifests = [publish(store, epoch) for epoch in range(1, 5)]
        held, tagged, expired, pointed = (manifest.checkpoint_id for manifest in manifests)
        pending = store.writer(5)
        pending.manifest.sink_commit_statuses = {"lake": PENDING}
        pending.publish()
        publish(store, 6)
        publish(store, 7)
        for record in (
            HoldRecord(checkpoint_id=held, name="audit"),
            HoldRecord(checkpoint_id=tagged, name="v1", protects=False),
            HoldRecord(checkpoint_id=expired, name="week", until_ms=clock() + 1000),
        ):
            store.ledger.append(record, author=store.author)
        store.blobs.put(store.paths.latest_pointer(), str(pointed).encode())
        clock.advance(2)

        assert store.prune(1) == 3

        assert epochs(store) == [1, 4, 5, 7]
        released = HoldRecord(checkpoint_id=held, name="audit", released=True)
        store.ledger.append(released, author=store.author)
        store.update_manifest(pending.manifest.replaced(sink_commit_statuses={"lake": COMMITTED}))
        store.blobs.delete(store.paths.latest_pointer())
        assert store.prune(1) == 3
        assert epochs(store) == [7]

    def test_a_fenced_run_takes_nothing_away(self, store: PartitionedCheckpointStore) -> None:
        for epoch in (1, 2, 3):
            publish(store, epoch)
        writer = new_writer()
        older = Author(store.ledger.append(StartRecord(), author=Author(0, writer)).n, writer)
        store.ledger.append(StartRecord(), author=Author(0, new_writer()))

        with pytest.raises(FencedError):
            store.prune(1, author=older)

        assert epochs(store) == [1, 2, 3]

    def test_only_loadable_checkpoints_count_as_kept(self, store: PartitionedCheckpointStore) -> None:
        ids = [publish(store, epoch).checkpoint_id for epoch in range(1, 6)]
        flip(store, store.paths.manifest(ids[4]))
        flip(store, store.paths.manifest(ids[1]))

        assert store.prune(2) == 2

        assert epochs(store) == [3, 4]
        assert store.list_ids() == ids[2:]

    def test_a_failed_delete_is_raised_after_trying_all_and_tried_again(self) -> None:
        faulty = FaultyBlobs(MemoryBlobs())
        store = PartitionedCheckpointStore(faulty)
        manifests = [publish(store, epoch) for epoch in range(1, 5)]
        stubborn = store.paths.manifest(manifests[0].checkpoint_id)
        faulty.fail("delete", key=stubborn)

        with pytest.raises(StoreUnavailableError):
            store.prune(1)

        left = {key for key in keys(store) if key.startswith("checkpoints/")}
        assert stubborn in left
        assert len(left) == 4, "the artifacts of a manifest that lies there are not taken from under it"
        assert epochs(store) == [4]
        assert store.load_by_id(manifests[0].checkpoint_id) is None
        assert store.prune(1) == 1
        assert stubborn not in keys(store)

    def test_a_child_that_comes_meanwhile_makes_the_collector_plan_again(
        self, blobs: BlobStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = PartitionedCheckpointStore(blobs)
        first = publish(store, 1)
        publish(store, 2)
        append = store.ledger.append

        def late(draft: PruneRecord, **how: object) -> object:
            if isinstance(draft, PruneRecord):
                monkeypatch.setattr(store.ledger, "append", append)
                publish(PartitionedCheckpointStore(blobs), 3, first)
            return append(draft, **how)  # type: ignore[arg-type]

        monkeypatch.setattr(store.ledger, "append", late)

        assert store.prune(1) == 1

        newest = store.load_latest()
        assert newest is not None
        assert store.validate_checkpoint(newest.checkpoint_id).valid
        assert epochs(store) == [1, 3]

    def test_what_a_restore_abandoned_goes_with_its_neighbours(
        self, store: PartitionedCheckpointStore
    ) -> None:
        publish(store, 1)
        publish(store, 2)
        store.ledger.append(RestoreRecord(to=1), author=store.author)
        publish(store, 3)
        publish(store, 4)

        assert store.prune(2) == 2

        assert epochs(store) == [3, 4]

    def test_nothing_is_deleted_while_a_record_cannot_be_read(
        self, store: PartitionedCheckpointStore
    ) -> None:
        publish(store, 1)
        publish(store, 2)
        publish(store, 3)
        flip(store, "ledger/000000000002.json")
        again = PartitionedCheckpointStore(store.blobs)
        before = keys(again)

        with pytest.raises(CorruptError):
            again.prune(1)
        with pytest.raises(CorruptError):
            again.cleanup_orphans(0)
        assert keys(again) == before


class TestOrphans:
    def test_undecided_attempts_go_once_they_are_old(self, blobs: BlobStore) -> None:
        clock = FakeClock()
        store = PartitionedCheckpointStore(blobs, now_ms=clock)
        kept = publish(store, 1)
        writer = store.writer(2)
        writer.add("agg", 0, b"x" * (1 << 20))
        writer.add("agg", 1, b"x")
        writer.logs = {"offsets/1": "x" * 300_000}
        writer.write()
        attempt = [key for key in keys(store) if str(writer.id) in key]
        assert len(attempt) == 4
        newest = max(info.modified_ms for info in blobs.list(""))

        clock.set_back((clock() - newest) / 1000)
        assert store.cleanup_orphans(60) == 0
        clock.advance(61)
        assert store.cleanup_orphans(60) == 4

        assert not [key for key in keys(store) if str(writer.id) in key]
        assert store.validate_checkpoint(kept.checkpoint_id).valid
        with pytest.raises(ConflictError, match="pruned"):
            writer.publish()
        assert epochs(store) == [1]

    def test_a_stray_object_in_a_published_checkpoint_goes_and_nothing_else(
        self, store: PartitionedCheckpointStore
    ) -> None:
        manifest = publish(store, 1)
        stray = store.paths.checkpoint_dir(manifest.checkpoint_id) + "operators/agg/partition-9.snap"
        store.blobs.put(stray, b"?")
        store.blobs.put("logs/000000000001-x-y", b"?")

        assert store.cleanup_orphans(0) == 2

        assert stray not in keys(store)
        assert store.validate_checkpoint(manifest.checkpoint_id).valid

    def test_a_sidecar_without_a_manifest_is_an_orphan(self, store: PartitionedCheckpointStore) -> None:
        publish(store, 1)
        lost, kept = CheckpointId.now(), CheckpointManifestV2.new(CheckpointId.now(), 2)
        store.save_state_data(lost, b"state")
        store.save_with_state(kept, b"state")

        assert store.cleanup_orphans(0) == 1

        assert store.load_state_data(lost) is None
        assert store.load_state_data(kept.checkpoint_id) == b"state"
        with pytest.raises(ConflictError, match="pruned"):
            store.save(CheckpointManifestV2.new(lost, 3))


def with_artifact(store: PartitionedCheckpointStore, epoch: int, data: bytes) -> CheckpointManifestV2:
    """A manifest not saved yet, whose one artifact is in the store."""
    manifest = CheckpointManifestV2.new(CheckpointId.now(), epoch)
    key = store.paths.snapshot(manifest.checkpoint_id, "agg", 0)
    store.blobs.put(key, data)
    part = PartitionSnapshotEntry(
        partition_id=0,
        is_delta=False,
        path=key.removeprefix(store.paths.checkpoint_dir(manifest.checkpoint_id)),
        size_bytes=len(data),
        sha256=sha256_hex(data),
    )
    manifest.operators = {"agg": OperatorSnapshotEntry([part], len(data))}
    return manifest


@pytest.fixture(autouse=True)
def _no_leaked_threads() -> Iterator[None]:
    import threading

    before = threading.active_count()
    yield
    assert threading.active_count() <= before + 4
