"""What every checkpoint store must do. Subclass one of these with a fixture ``store``, and pytest does
the rest.

``StoreSuite`` holds for each of them; ``NumberedStoreSuite`` adds what only a v1 store promises, and
``LedgerStoreSuite`` what only a v2 store does.
"""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from holdfast.blobs.base import BlobStore
from holdfast.blobs.memory import MemoryBlobs
from holdfast.errors import (
    CheckpointNotFoundError,
    ConflictError,
    CorruptError,
    HoldfastError,
    InvalidInputError,
    StoreUnavailableError,
    UnsupportedFormatError,
)
from holdfast.ids import CheckpointId
from holdfast.manifest import (
    CheckpointManifest,
    CheckpointManifestV2,
    ConnectorCheckpoint,
    InFlightRecord,
    OperatorCheckpoint,
    SinkCommitStatus,
)
from holdfast.manifest.codec import sha256_hex
from holdfast.store import NumberedCheckpointStore, PartitionedCheckpointStore
from holdfast.testing.faulty import FaultyBlobs, When

PENDING, COMMITTED = SinkCommitStatus.PENDING, SinkCommitStatus.COMMITTED


class StoreSuite:
    """Thirteen methods, one meaning. Checkpoints are numbered 1, 2, … here, whatever their ids are."""

    # What a subclass tells

    def open(self, blobs: BlobStore) -> Any:
        """A store over ``blobs`` that keeps every checkpoint until told otherwise."""
        raise NotImplementedError

    def manifest(self, number: int) -> Any:
        """An unsaved manifest, the same whenever it is asked for. Its epoch is ``number``."""
        raise NotImplementedError

    def manifest_key(self, store: Any, number: int) -> str:
        raise NotImplementedError

    def state_key(self, store: Any, number: int) -> str:
        raise NotImplementedError

    def pointer_key(self, store: Any) -> str:
        raise NotImplementedError

    # Helpers

    @pytest.fixture
    def blobs(self) -> BlobStore:
        return MemoryBlobs()

    @pytest.fixture
    def store(self, blobs: BlobStore) -> Any:
        return self.open(blobs)

    def id_of(self, number: int) -> Any:
        return self.manifest(number).checkpoint_id

    def ids_of(self, *numbers: int) -> list[Any]:
        return [self.id_of(number) for number in numbers]

    def save(self, store: Any, *numbers: int) -> None:
        for number in numbers:
            store.save(self.manifest(number))

    def epochs(self, store: Any) -> list[int]:
        return [epoch for _, epoch in store.list()]

    def damage(self, store: Any, key: str, at: int = 12) -> None:
        data = bytearray(store.blobs.get(key))
        data[at % len(data)] ^= 4
        store.blobs.put(key, bytes(data))

    def keys(self, store: Any) -> list[str]:
        return [info.key for info in store.blobs.list("")]

    # Saving and loading

    def test_an_empty_store_has_nothing_and_says_so(self, store: Any) -> None:
        assert store.load_latest() is None
        assert store.load_by_id(self.id_of(1)) is None
        assert store.list() == []
        assert store.list_ids() == []
        assert store.load_state_data(self.id_of(1)) is None
        assert store.recover_latest_validated().chosen_id is None
        assert store.prune(3) == 0
        assert store.cleanup_orphans(0) == 0

    def test_what_is_saved_is_loaded(self, store: Any) -> None:
        self.save(store, 1)

        latest = store.load_latest()

        assert latest.checkpoint_id == self.id_of(1)
        assert latest.epoch == 1
        assert store.load_by_id(self.id_of(1)) == latest
        assert self.open(store.blobs).load_latest() == latest

    def test_the_newest_of_five_is_the_latest_and_all_are_listed_in_order(self, store: Any) -> None:
        self.save(store, 1, 2, 3, 4, 5)

        assert store.load_latest().checkpoint_id == self.id_of(5)
        assert store.list() == [(self.id_of(number), number) for number in range(1, 6)]
        assert store.list_ids() == self.ids_of(1, 2, 3, 4, 5)
        assert store.load_by_id(self.id_of(3)).epoch == 3
        assert store.load_by_id(self.id_of(9)) is None

    def test_saving_the_same_again_is_success(self, store: Any) -> None:
        self.save(store, 1, 2)
        before = {key: store.blobs.get(key) for key in self.keys(store)}

        self.save(store, 2, 1)
        self.save(self.open(store.blobs), 1)

        assert {key: store.blobs.get(key) for key in self.keys(store)} == before

    def test_saving_other_content_under_a_published_id_is_a_conflict(self, store: Any) -> None:
        self.save(store, 1)
        stored = store.load_latest()

        for changed in (
            self.manifest(1).replaced(watermark=7),
            self.manifest(1).replaced(timestamp_ms=5),
            self.manifest(1).replaced(sink_commit_statuses={"lake": COMMITTED}),
        ):
            with pytest.raises(ConflictError):
                store.save(changed)
            with pytest.raises(ConflictError):
                store.save_with_state(changed, b"state")

        assert store.load_latest() == stored
        assert store.load_state_data(self.id_of(1)) is None

    def test_of_rivals_with_other_content_exactly_one_publishes(self, blobs: BlobStore) -> None:
        def attempt(mark: int) -> int | None:
            try:
                self.open(blobs).save(self.manifest(1).replaced(watermark=mark))
            except ConflictError:
                return None
            return mark

        with ThreadPoolExecutor(8) as pool:
            winners = [mark for mark in pool.map(attempt, range(8)) if mark is not None]

        assert len(winners) == 1
        assert self.open(blobs).load_latest().watermark == winners[0]

    def test_a_lost_reply_is_no_failure_when_the_save_is_repeated(self, blobs: BlobStore) -> None:
        faulty = FaultyBlobs(blobs)
        store = self.open(faulty)
        faulty.fail("create", when=When.AFTER)

        with pytest.raises(HoldfastError):
            store.save(self.manifest(1))
        self.save(store, 1)

        assert self.epochs(store) == [1]

    # The pointer

    @pytest.mark.parametrize(
        "text", ["", "garbage", "\xff\xfe", '{"checkpoint_id":"x"}', "checkpoint_", "[" * 9]
    )
    def test_a_garbage_pointer_loses_nothing_and_the_next_save_repairs_it(
        self, store: Any, text: str
    ) -> None:
        self.save(store, 1, 2)
        sound = store.blobs.get(self.pointer_key(store))
        store.blobs.put(self.pointer_key(store), text.encode("latin-1"))

        assert store.load_latest().epoch == 2
        assert store.recover_latest_validated().chosen_id == self.id_of(2)
        self.save(store, 2)
        assert store.blobs.get(self.pointer_key(store)) == sound

    def test_a_missing_stale_or_dangling_pointer_loses_nothing(self, store: Any) -> None:
        self.save(store, 1)
        stale = store.blobs.get(self.pointer_key(store))
        self.save(store, 2)
        newest = store.blobs.get(self.pointer_key(store))

        store.blobs.put(self.pointer_key(store), stale)
        assert store.load_latest().epoch == 2
        store.blobs.delete(self.pointer_key(store))
        assert store.load_latest().epoch == 2
        other = self.open(MemoryBlobs())
        self.save(other, 9)
        store.blobs.put(self.pointer_key(store), other.blobs.get(self.pointer_key(other)))
        assert store.load_latest().epoch == 2
        self.save(store, 2)
        assert store.blobs.get(self.pointer_key(store)) == newest

    def test_the_pointer_never_moves_back(self, store: Any) -> None:
        self.save(store, 1, 2)
        newest = store.blobs.get(self.pointer_key(store))

        self.save(store, 1)

        assert store.blobs.get(self.pointer_key(store)) == newest

    def test_a_pointer_that_cannot_be_written_fails_no_save(
        self, blobs: BlobStore, caplog: pytest.LogCaptureFixture
    ) -> None:
        faulty = FaultyBlobs(blobs)
        store = self.open(faulty)
        faulty.fail("put", key=self.pointer_key(store))

        with caplog.at_level(logging.WARNING, "holdfast.store"):
            self.save(store, 1)

        assert self.epochs(store) == [1]
        assert self.pointer_key(store) in caplog.text

    # Sidecars

    def test_a_sidecar_comes_back(self, store: Any) -> None:
        store.save_with_state(self.manifest(1), [b"one", b"two"])

        assert store.load_state_data(self.id_of(1)) == b"onetwo"
        assert store.validate_checkpoint(self.id_of(1)).valid
        self.save(store, 2)
        assert store.load_state_data(self.id_of(2)) is None

    def test_an_empty_sidecar_is_one_and_none_is_none(self, store: Any) -> None:
        store.save_with_state(self.manifest(1), b"")
        store.save_with_state(self.manifest(2), None)

        assert store.load_state_data(self.id_of(1)) == b""
        assert store.load_state_data(self.id_of(2)) is None

    def test_a_sidecar_without_a_manifest_is_no_checkpoint(self, store: Any) -> None:
        self.save(store, 1)
        store.save_state_data(self.id_of(2), b"state")

        assert store.load_latest().epoch == 1
        assert self.epochs(store) == [1]
        assert store.list_ids() == self.ids_of(1)

    def test_the_sidecar_of_a_published_checkpoint_is_never_overwritten(self, store: Any) -> None:
        store.save_with_state(self.manifest(1), b"state")

        store.save_state_data(self.id_of(1), b"state")
        store.save_with_state(self.manifest(1), b"state")
        with pytest.raises(ConflictError):
            store.save_state_data(self.id_of(1), b"other")
        # A stale writer that reuses the id loses before it has touched anything.
        with pytest.raises(ConflictError):
            store.save_with_state(self.manifest(1), b"other")
        with pytest.raises(ConflictError):
            store.save_with_state(self.manifest(1), b"")

        assert store.load_state_data(self.id_of(1)) == b"state"

    def test_no_sidecar_is_other_content_than_some(self, store: Any) -> None:
        self.save(store, 1)
        with pytest.raises(ConflictError):
            store.save_with_state(self.manifest(1), b"state")
        with pytest.raises(ConflictError):
            store.save_state_data(self.id_of(1), b"state")
        store.save_with_state(self.manifest(2), b"state")
        with pytest.raises(ConflictError):
            store.save_with_state(self.manifest(2), None)

        assert store.load_state_data(self.id_of(1)) is None

    def test_an_attempt_that_failed_before_its_manifest_can_be_made_again(self, store: Any) -> None:
        store.save_state_data(self.id_of(1), b"first attempt")
        store.save_with_state(self.manifest(1), b"second")

        assert store.load_state_data(self.id_of(1)) == b"second"
        assert store.validate_checkpoint(self.id_of(1)).valid

    def test_a_failed_sidecar_leaves_no_manifest(self, blobs: BlobStore) -> None:
        faulty = FaultyBlobs(blobs)
        store = self.open(faulty)
        for method in ("create", "put"):
            faulty.fail(method, key=self.state_key(store, 1), times=None)

        with pytest.raises(StoreUnavailableError):
            store.save_with_state(self.manifest(1), b"state")

        assert self.open(blobs).list_ids() == []

    @pytest.mark.parametrize("damage", ["flip", "shorten", "delete"])
    def test_a_damaged_sidecar_is_never_handed_out_as_sound(self, store: Any, damage: str) -> None:
        self.save(store, 1)
        store.save_with_state(self.manifest(2), b"state")
        key = self.state_key(store, 2)
        if damage == "flip":
            self.damage(store, key)
        elif damage == "shorten":
            store.blobs.put(key, b"stat")
        else:
            store.blobs.delete(key)

        result = store.validate_checkpoint(self.id_of(2))

        assert not result.valid
        assert store.recover_latest_validated().chosen_id == self.id_of(1)
        if damage != "delete":
            with pytest.raises(CorruptError):
                store.load_state_data(self.id_of(2))

    # Updating

    def test_pending_sinks_become_committed(self, store: Any) -> None:
        manifest = self.manifest(1).replaced(sink_commit_statuses={"lake": PENDING})
        store.save_with_state(manifest, b"state")
        pending = store.load_latest()

        store.update_manifest(pending.replaced(sink_commit_statuses={"lake": COMMITTED}))

        assert store.load_latest().sink_commit_statuses == {"lake": COMMITTED}
        assert store.validate_checkpoint(self.id_of(1)).valid
        self.damage(store, self.state_key(store, 1))
        assert not store.validate_checkpoint(self.id_of(1)).valid, "the update dropped the checksum"

    def test_an_update_leaves_the_pointer_and_the_others_alone(self, store: Any) -> None:
        self.save(store, 1, 2)
        pointer = store.blobs.get(self.pointer_key(store))

        store.update_manifest(self.manifest(1).replaced(sink_commit_statuses={"lake": COMMITTED}))

        assert store.blobs.get(self.pointer_key(store)) == pointer
        assert store.load_latest().epoch == 2
        assert self.epochs(store) == [1, 2]

    def test_what_was_never_published_cannot_be_updated(self, store: Any) -> None:
        with pytest.raises(CheckpointNotFoundError):
            store.update_manifest(self.manifest(1))

    # Damage

    @pytest.mark.parametrize(
        "data",
        [
            b"",
            b"{}",
            b"not json",
            b"\xff\xfe\xfd",
            '{"version":1}'.encode("utf-16"),
            b"\xef\xbb\xbf{}",
            b"[" * 100_000,
            b'{"version":1,"version":1}',
            b'{"version":NaN}',
            b'{"version":1,"checkpoint_id":1,"epoch":99999999999999999999999,"timestamp_ms":1}',
        ],
        ids=range(10),
    )
    def test_an_unreadable_newest_manifest_is_corrupt_and_only_the_walk_steps_back(
        self, store: Any, data: bytes
    ) -> None:
        self.save(store, 1, 2)
        store.blobs.put(self.manifest_key(store, 2), data)

        with pytest.raises(CorruptError) as caught:
            store.load_latest()
        with pytest.raises(CorruptError):
            store.load_by_id(self.id_of(2))
        report = store.recover_latest_validated()

        assert caught.value.key == self.manifest_key(store, 2)
        assert report.chosen_id == self.id_of(1)
        assert [id for id, _ in report.skipped] == self.ids_of(2)
        assert report.examined == 2
        assert report.elapsed >= 0
        assert not store.validate_checkpoint(self.id_of(2)).valid
        assert self.epochs(store) == [1]
        assert store.list_ids() == self.ids_of(1, 2)

    def test_every_flipped_bit_of_a_manifest_is_found_or_harmless(self) -> None:
        store = self.open(MemoryBlobs())
        store.save_with_state(self.manifest(1), b"state")
        key = self.manifest_key(store, 1)
        sound, data = store.load_by_id(self.id_of(1)), store.blobs.get(key)

        for bit in range(len(data) * 8):
            damaged = bytearray(data)
            damaged[bit // 8] ^= 1 << bit % 8
            store.blobs.put(key, bytes(damaged))
            try:
                assert store.load_by_id(self.id_of(1)) == sound, bit
            except CorruptError:
                continue

    def test_a_manifest_under_another_id_is_corrupt(self, store: Any) -> None:
        self.save(store, 1, 2)
        store.blobs.put(self.manifest_key(store, 2), store.blobs.get(self.manifest_key(store, 1)))

        with pytest.raises(CorruptError):
            store.load_by_id(self.id_of(2))

    def test_a_newer_version_with_no_sound_digest_is_never_taken_for_the_future(self, store: Any) -> None:
        self.save(store, 1)
        key = self.manifest_key(store, 1)
        version = b'"version": %d' % self.manifest(1).version
        store.blobs.put(key, store.blobs.get(key).replace(version, b'"version": 9'))

        with pytest.raises(CorruptError):
            store.load_by_id(self.id_of(1))
        assert not store.validate_checkpoint(self.id_of(1)).valid

    def test_when_all_are_corrupt_recovery_says_so_and_chooses_none(self, store: Any) -> None:
        self.save(store, 1, 2)
        for number in (1, 2):
            self.damage(store, self.manifest_key(store, number))

        report = store.recover_latest_validated()

        assert report.chosen_id is None
        assert [id for id, _ in report.skipped] == self.ids_of(2, 1)
        assert all(reason for _, reason in report.skipped)

    def test_a_store_that_does_not_answer_proves_nothing(self, blobs: BlobStore) -> None:
        faulty = FaultyBlobs(blobs)
        self.save(self.open(faulty), 1, 2)
        store = self.open(faulty)
        faulty.fail("get", key=self.manifest_key(store, 2))

        with pytest.raises(StoreUnavailableError):
            store.recover_latest_validated()
        assert store.recover_latest_validated().chosen_id == self.id_of(2)

    def test_a_checkpoint_with_pending_sinks_loads_and_is_no_recovery_point(self, store: Any) -> None:
        self.save(store, 1)
        pending = self.manifest(2).replaced(sink_commit_statuses={"lake": PENDING, "db": COMMITTED})
        store.save(pending)

        result = store.validate_checkpoint(self.id_of(2))
        report = store.recover_latest_validated()

        assert store.load_latest().epoch == 2
        assert result.valid
        assert "sinks-pending" in [issue.code for issue in result.issues]
        assert report.chosen_id == self.id_of(1)
        assert "lake" in report.skipped[0][1]

    def test_what_is_not_there_does_not_validate(self, store: Any) -> None:
        result = store.validate_checkpoint(self.id_of(5))

        assert not result.valid
        assert result.checkpoint_id == self.id_of(5)
        assert [(issue.severity, issue.code) for issue in result.issues] == [("error", "not-found")]

    # Deleting

    def test_prune_keeps_the_newest_and_counts_what_is_gone(self, store: Any) -> None:
        for number in range(1, 6):
            store.save_with_state(self.manifest(number), b"state %d" % number)

        assert store.prune(2) == 3

        assert self.epochs(store) == [4, 5]
        assert store.load_by_id(self.id_of(1)) is None
        assert store.load_state_data(self.id_of(1)) is None
        assert store.prune(2) == 0
        assert store.prune(10) == 0
        assert store.load_state_data(self.id_of(4)) == b"state 4"

    @pytest.mark.parametrize("keep", [0, -3])
    def test_keeping_nothing_is_a_mistake(self, store: Any, keep: int) -> None:
        self.save(store, 1)

        with pytest.raises(InvalidInputError):
            store.prune(keep)
        assert self.epochs(store) == [1]

    def test_corrupt_checkpoints_and_orphans_do_not_count_as_kept(self, store: Any) -> None:
        self.save(store, 1, 2, 3, 4)
        self.damage(store, self.manifest_key(store, 4))
        store.save_state_data(self.id_of(5), b"no manifest")

        assert store.prune(2) == 1

        assert self.epochs(store) == [2, 3]

    def test_with_fewer_sound_ones_than_to_be_kept_nothing_is_deleted(self, store: Any) -> None:
        self.save(store, 1, 2, 3)
        self.damage(store, self.manifest_key(store, 1))

        assert store.prune(3) == 0
        assert store.list_ids() == self.ids_of(1, 2, 3)

    def test_the_pointers_target_is_not_pruned(self, store: Any) -> None:
        self.save(store, 1)
        pointer = store.blobs.get(self.pointer_key(store))
        self.save(store, 2, 3)
        store.blobs.put(self.pointer_key(store), pointer)

        assert store.prune(1) == 1

        assert self.epochs(store) == [1, 3]

    def test_a_failed_delete_is_raised_after_trying_all_and_tried_again(self, blobs: BlobStore) -> None:
        faulty = FaultyBlobs(blobs)
        store = self.open(faulty)
        for number in range(1, 5):
            store.save_with_state(self.manifest(number), b"state")
        faulty.fail("delete", key=self.state_key(store, 1))
        faulty.fail("delete", key=self.manifest_key(store, 2))

        with pytest.raises(StoreUnavailableError):
            store.prune(1)

        assert store.load_state_data(self.id_of(3)) is None, "it gave up at the first failure"
        store.prune(1)
        assert self.epochs(store) == [4]
        left = [self.state_key(store, n) in self.keys(store) for n in (1, 2, 3, 4)]
        assert left == [False, False, False, True]

    def test_orphaned_sidecars_go_and_only_they(self, store: Any) -> None:
        store.save_with_state(self.manifest(1), b"state")
        store.save_state_data(self.id_of(2), b"orphan")

        assert store.cleanup_orphans() == 0, "a day has not passed"
        assert store.cleanup_orphans(0) == 1
        assert store.cleanup_orphans(0) == 0

        assert store.load_state_data(self.id_of(1)) == b"state"
        assert store.load_state_data(self.id_of(2)) is None
        assert store.validate_checkpoint(self.id_of(1)).valid

    def test_a_clean_up_tries_all_and_counts_only_what_is_gone(self, blobs: BlobStore) -> None:
        faulty = FaultyBlobs(blobs)
        store = self.open(faulty)
        for number in (1, 2):
            store.save_state_data(self.id_of(number), b"orphan")
        faulty.fail("delete", key=self.state_key(store, 1))

        with pytest.raises(StoreUnavailableError):
            store.cleanup_orphans(0)

        assert self.state_key(store, 2) not in self.keys(store)
        assert store.cleanup_orphans(0) == 1


class NumberedStoreSuite(StoreSuite):
    """A v1 store: numbers for ids, and nothing but the files of its layout."""

    def open(self, blobs: BlobStore, max_retained: int = 0) -> NumberedCheckpointStore:
        raise NotImplementedError

    def manifest(self, number: int) -> CheckpointManifest:
        return CheckpointManifest.new(number, number, timestamp_ms=1_000)

    def manifest_key(self, store: NumberedCheckpointStore, number: int) -> str:
        return store.layout.manifest_keys(number)[0]

    def state_key(self, store: NumberedCheckpointStore, number: int) -> str:
        return store.layout.state_keys(number)[0]

    def pointer_key(self, store: NumberedCheckpointStore) -> str:
        return store.layout.pointer

    def test_everything_a_manifest_can_say_survives(self, store: NumberedCheckpointStore) -> None:
        manifest = self.manifest(7).replaced(
            source_offsets={"k": ConnectorCheckpoint(offsets={"t-0": "5"}, epoch=2, metadata={"a": "é"})},
            sink_epochs={"lake": 7},
            sink_commit_statuses={"lake": SinkCommitStatus.failed("reset"), "db": COMMITTED},
            table_offsets={"names": ConnectorCheckpoint.new(1)},
            operator_states={"agg": OperatorCheckpoint.from_bytes(b"state", 100, 0)[0]},
            table_store_checkpoint_path="cp",
            wal_position=4096,
            per_core_wal_positions=[1, 2],
            watermark=-1,
            source_watermarks={"k": -5},
            source_names=["k"],
            sink_names=["db", "lake"],
            pipeline_hash=2**64 - 1,
            inflight_data={"agg": [InFlightRecord.of(0, b"event")]},
            size_bytes=5,
            is_incremental=True,
            parent_id=6,
        )

        store.save(manifest)

        assert store.load_latest() == manifest

    def test_saved_out_of_order_they_are_listed_in_order(self, store: NumberedCheckpointStore) -> None:
        self.save(store, 3, 1, 1_000_000, 2)

        assert store.list_ids() == [1, 2, 3, 1_000_000]
        latest = store.load_latest()
        assert latest is not None
        assert latest.checkpoint_id == 1_000_000

    @pytest.mark.parametrize("number", [0, -1, 2**64, "1", True])
    def test_an_id_out_of_range_is_refused(self, store: NumberedCheckpointStore, number: Any) -> None:
        manifest = CheckpointManifest.new(1, 1).replaced(checkpoint_id=number)

        with pytest.raises(InvalidInputError):
            store.save(manifest)
        with pytest.raises(InvalidInputError):
            store.save_state_data(number, b"")
        assert self.keys(store) == []

    def test_the_highest_id_of_all_is_one(self, store: NumberedCheckpointStore) -> None:
        self.save(store, 2**64 - 1)

        assert store.list_ids() == [2**64 - 1]

    def test_a_save_prunes_to_what_is_retained(self, blobs: BlobStore) -> None:
        store = self.open(blobs, 2)
        for number in range(1, 6):
            store.save_with_state(self.manifest(number), b"state")

        assert store.list_ids() == [4, 5]
        assert len(self.keys(store)) == 5

    def test_a_prune_that_fails_fails_no_save_and_is_counted(self, blobs: BlobStore) -> None:
        faulty = FaultyBlobs(blobs)
        store = self.open(faulty, 1)
        self.save(store, 1)
        faulty.fail("delete")

        self.save(store, 2)

        assert store.failed_prunes == 1
        latest = store.load_latest()
        assert latest is not None
        assert latest.checkpoint_id == 2
        self.save(store, 3)
        assert store.list_ids() == [3]

    def test_a_checkpoint_that_reuses_a_low_id_is_not_pruned_by_its_own_save(self, blobs: BlobStore) -> None:
        store = self.open(blobs, 0)
        self.save(store, 5, 6)
        store = self.open(blobs, 1)

        self.save(store, 7)

        assert store.list_ids() == [7]

    def test_the_checksum_is_the_sha256_of_the_sidecar(self, store: NumberedCheckpointStore) -> None:
        store.save_with_state(self.manifest(1), b"state")

        latest = store.load_latest()
        assert latest is not None
        assert latest.state_checksum == sha256_hex(b"state")

    def test_an_update_without_a_checksum_keeps_the_stored_one(self, store: NumberedCheckpointStore) -> None:
        store.save_with_state(self.manifest(1), b"state")

        store.update_manifest(self.manifest(1).replaced(watermark=5, epoch=2))

        latest = store.load_latest()
        assert latest is not None
        assert (latest.watermark, latest.epoch) == (5, 2)
        assert latest.state_checksum == sha256_hex(b"state")
        assert store.validate_checkpoint(1).valid

    def test_the_texts_of_validation_are_those_of_the_format(self, store: NumberedCheckpointStore) -> None:
        zero = self.manifest(1).replaced(epoch=0)
        store.save(zero)
        store.save_with_state(self.manifest(2), b"state")
        store.blobs.put(self.state_key(store, 2), b"other")
        store.save(self.manifest(3).replaced(state_checksum="aa"))
        store.blobs.put(self.manifest_key(store, 4), b"{")

        texts = {
            number: [i.message for i in store.validate_checkpoint(number).issues] for number in range(1, 6)
        }

        assert texts[1] == [
            "manifest validation: epoch is 0",
            "epoch or checkpoint_id is 0 — likely corrupted",
        ]
        good, bad = sha256_hex(b"state"), sha256_hex(b"other")
        assert texts[2] == [f"state.bin checksum mismatch: expected {good}, got {bad}"]
        assert texts[3] == ["state.bin referenced by checksum but not found"]
        assert texts[4][0].startswith("corrupt manifest: ")
        assert texts[5] == ["manifest not found for checkpoint 5"]

    def test_external_state_beyond_the_sidecar_is_invalid_checksum_or_not(
        self, store: NumberedCheckpointStore
    ) -> None:
        states = {"agg": OperatorCheckpoint(external=True, external_offset=2, external_length=4)}
        store.save(self.manifest(1).replaced(operator_states=states))
        store.save_state_data(2, b"12345")
        store.save(self.manifest(2).replaced(operator_states=states))
        store.save_state_data(3, b"123456")
        store.save(self.manifest(3).replaced(operator_states=states))

        assert [store.validate_checkpoint(number).valid for number in (1, 2, 3)] == [False, False, True]

    def test_inline_state_that_does_not_decode_is_invalid(self, store: NumberedCheckpointStore) -> None:
        store.save(self.manifest(1).replaced(operator_states={"agg": OperatorCheckpoint(state_b64="!")}))
        store.save(
            self.manifest(2).replaced(inflight_data={"agg": [InFlightRecord(input_id=0, data_b64="!")]})
        )

        assert [store.validate_checkpoint(number).valid for number in (1, 2)] == [False, False]

    def test_an_incremental_checkpoint_is_as_sound_as_its_parents(
        self, store: NumberedCheckpointStore
    ) -> None:
        store.save_with_state(self.manifest(1), b"state")
        store.save(self.manifest(2).replaced(is_incremental=True, parent_id=1))
        store.save(self.manifest(3).replaced(is_incremental=True, parent_id=2))
        assert store.prune(1) == 0
        assert store.validate_checkpoint(3).valid

        self.damage(store, self.state_key(store, 1))

        assert [issue.code for issue in store.validate_checkpoint(3).issues] == ["broken-chain"]
        assert store.recover_latest_validated().chosen_id is None

    def test_a_newer_version_whose_digest_matches_asks_for_an_upgrade(
        self, store: NumberedCheckpointStore
    ) -> None:
        store.save(self.manifest(1))
        store.blobs.put(
            self.manifest_key(store, 1), b'{"version":2,"checkpoint_id":1,"epoch":1,"timestamp_ms":1}'
        )

        with pytest.raises(UnsupportedFormatError):
            store.load_by_id(1)
        assert [issue.code for issue in store.validate_checkpoint(1).issues] == ["unsupported"]

    def test_a_damaged_name_of_the_digest_does_not_make_a_manifest_foreign(
        self, store: NumberedCheckpointStore
    ) -> None:
        store.save(self.manifest(1))
        key = self.manifest_key(store, 1)
        store.blobs.put(key, store.blobs.get(key).replace(b"manifest_sha256", b"manifest_sha257"))

        with pytest.raises(CorruptError, match="digest"):
            store.load_by_id(1)

    def test_temporary_files_of_others_are_swept(self, store: NumberedCheckpointStore) -> None:
        self.save(store, 1)
        store.blobs.put(self.manifest_key(store, 2) + ".tmp", b"{")
        store.blobs.put(self.pointer_key(store) + ".tmp", b"x")

        assert store.list_ids() == [1]
        assert store.cleanup_orphans(0) == 2


class LedgerStoreSuite(StoreSuite):
    """A v2 store: a ledger says what is published."""

    def open(self, blobs: BlobStore) -> PartitionedCheckpointStore:
        return PartitionedCheckpointStore(blobs)

    def manifest(self, number: int) -> CheckpointManifestV2:
        id = CheckpointId.parse(f"0195c0de-7000-7abc-8def-{number:012d}")
        return CheckpointManifestV2.new(id, number, timestamp_ms=1_000 + number)

    def manifest_key(self, store: PartitionedCheckpointStore, number: int) -> str:
        return store.paths.manifest(self.id_of(number))

    def state_key(self, store: PartitionedCheckpointStore, number: int) -> str:
        return store.paths.state(self.id_of(number))

    def pointer_key(self, store: PartitionedCheckpointStore) -> str:
        return store.paths.latest_pointer()

    def test_a_manifest_that_lies_there_is_no_checkpoint(self, store: PartitionedCheckpointStore) -> None:
        self.save(store, 1)
        attempt = self.manifest(2).replaced(writer="0" * 32).sealed()
        store.blobs.put(self.manifest_key(store, 2), attempt.to_json())

        latest = store.load_latest()

        assert latest is not None
        assert latest.epoch == 1
        assert store.load_by_id(self.id_of(2)) is None
        assert not store.validate_checkpoint(self.id_of(2)).valid

    def test_an_epoch_number_is_never_used_twice(self, store: PartitionedCheckpointStore) -> None:
        self.save(store, 2)

        with pytest.raises(ConflictError):
            store.save(self.manifest(3).replaced(epoch=2))
        with pytest.raises(ConflictError):
            self.save(store, 1)
        assert self.epochs(store) == [2]
