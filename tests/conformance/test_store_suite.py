"""Every store passes the suite, over memory and over files."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.blobs.base import BlobStore
from holdfast.blobs.files import FileBlobs
from holdfast.blobs.memory import MemoryBlobs
from holdfast.manifest import CheckpointManifest
from holdfast.store import (
    FileSystemCheckpointStore,
    MemoryCheckpointStore,
    NumberedCheckpointStore,
    ObjectStoreCheckpointStore,
)
from holdfast.store.layouts import FileLayout
from holdfast.testing import LedgerStoreSuite, NumberedStoreSuite


class TestObjectStoreOverMemory(NumberedStoreSuite):
    def open(self, blobs: BlobStore, max_retained: int = 0) -> NumberedCheckpointStore:
        return ObjectStoreCheckpointStore(blobs, "nodes/abc123/", max_retained)

    def test_the_keys_are_those_of_the_format(self) -> None:
        store = ObjectStoreCheckpointStore(MemoryBlobs())
        store.save_with_state(CheckpointManifest.new(42, 1), b"state")

        assert self.keys(store) == [
            "checkpoints/state-000042.bin",
            "manifests/latest.json",
            "manifests/manifest-000042.json",
        ]
        assert store.blobs.get("manifests/latest.json") == b'{"checkpoint_id":42}'

    def test_the_older_layout_is_read_listed_updated_and_pruned(self, blobs: BlobStore) -> None:
        older = NumberedCheckpointStore(blobs, FileLayout("nodes/abc123/"), 0)
        for number in (1, 2):
            older.save_with_state(self.manifest(number), b"older %d" % number)
        store = self.open(blobs)
        store.save_with_state(self.manifest(3), b"newer")

        assert store.list_ids() == [1, 2, 3]
        assert store.load_state_data(2) == b"older 2"
        assert store.validate_checkpoint(1).valid
        store.update_manifest(self.manifest(2).replaced(watermark=5))
        updated = store.load_by_id(2)
        assert updated is not None
        assert updated.watermark == 5
        assert store.prune(1) == 2
        assert self.keys(store) == [
            "nodes/abc123/checkpoints/latest.txt",
            "nodes/abc123/checkpoints/state-000003.bin",
            "nodes/abc123/manifests/latest.json",
            "nodes/abc123/manifests/manifest-000003.json",
        ]

    def test_the_older_pointer_counts_only_while_there_is_no_newer(self, blobs: BlobStore) -> None:
        older = NumberedCheckpointStore(blobs, FileLayout("nodes/abc123/"), 0)
        older.save(self.manifest(1))
        store = self.open(blobs)

        assert store.read_pointer() == 1
        store.save(self.manifest(2))
        store.blobs.put(store.layout.pointer, b"garbage")
        assert store.read_pointer() is None

    def test_a_save_of_what_lies_in_the_older_layout_is_no_second_copy(self, blobs: BlobStore) -> None:
        older = NumberedCheckpointStore(blobs, FileLayout("nodes/abc123/"), 0)
        older.save(self.manifest(1))
        store = self.open(blobs)

        store.save(self.manifest(1))

        assert "nodes/abc123/manifests/manifest-000001.json" not in self.keys(store)


class TestObjectStoreOverFiles(TestObjectStoreOverMemory):
    @pytest.fixture
    def blobs(self, tmp_path: Path) -> BlobStore:
        return FileBlobs(tmp_path)


class TestFileSystemStore(NumberedStoreSuite):
    @pytest.fixture
    def blobs(self, tmp_path: Path) -> BlobStore:
        return FileBlobs(tmp_path)

    def open(self, blobs: BlobStore, max_retained: int = 0) -> NumberedCheckpointStore:
        if isinstance(blobs, FileBlobs):
            return FileSystemCheckpointStore(blobs.root, max_retained)
        return NumberedCheckpointStore(blobs, FileLayout(), max_retained)

    def test_exactly_the_files_of_the_layout_are_left(self, tmp_path: Path) -> None:
        store = FileSystemCheckpointStore(tmp_path, 2)
        for number in (41, 42, 43):
            store.save_with_state(CheckpointManifest.new(number, 1), b"state")
        store.update_manifest(CheckpointManifest.new(43, 2))

        files = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*"))

        assert files == [
            "checkpoints",
            "checkpoints/checkpoint_000042",
            "checkpoints/checkpoint_000042/manifest.json",
            "checkpoints/checkpoint_000042/state.bin",
            "checkpoints/checkpoint_000043",
            "checkpoints/checkpoint_000043/manifest.json",
            "checkpoints/checkpoint_000043/state.bin",
            "checkpoints/latest.txt",
        ]
        assert (tmp_path / "checkpoints/latest.txt").read_bytes() == b"checkpoint_000043"

    def test_directories_that_are_no_checkpoints_are_left_out(self, tmp_path: Path) -> None:
        store = FileSystemCheckpointStore(tmp_path)
        store.save(CheckpointManifest.new(5, 1))
        for name in ("checkpoint_5", "checkpoint_0000005", "checkpoint_x", "other", "checkpoint_000000"):
            (tmp_path / "checkpoints" / name).mkdir()
            (tmp_path / "checkpoints" / name / "manifest.json").write_bytes(b"{}")

        assert store.list_ids() == [5]
        assert store.prune(1) == 0


class TestMemoryStore(NumberedStoreSuite):
    def open(self, blobs: BlobStore, max_retained: int = 0) -> NumberedCheckpointStore:
        store = MemoryCheckpointStore(max_retained)
        store.blobs = blobs
        return store


class TestPartitionedStoreOverMemory(LedgerStoreSuite):
    pass


class TestPartitionedStoreOverFiles(LedgerStoreSuite):
    @pytest.fixture
    def blobs(self, tmp_path: Path) -> BlobStore:
        return FileBlobs(tmp_path)
