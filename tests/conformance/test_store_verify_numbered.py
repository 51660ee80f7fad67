"""``verify`` of a numbered store: every bit that its format covers."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.blobs.memory import MemoryBlobs
from holdfast.manifest import CheckpointManifest, OperatorCheckpoint
from holdfast.store import NumberedCheckpointStore
from holdfast.store.layouts import FileLayout, NumberedLayout, ObjectLayout
from holdfast.store.verifying import VerifyReport, verify_store


@pytest.fixture(params=[FileLayout(), ObjectLayout("a/b/")], ids=["files", "objects"])
def store(request: pytest.FixtureRequest) -> NumberedCheckpointStore:
    layout: NumberedLayout = request.param
    store = NumberedCheckpointStore(MemoryBlobs(), layout)
    for number in (1, 2):
        manifest = CheckpointManifest.new(number, number)
        manifest.operator_states = {"é\x1f": OperatorCheckpoint.from_bytes(b"external", 2, 0)[0]}
        store.save_with_state(manifest, b"external")
    return store


def test_a_sound_store_has_no_problems(store: NumberedCheckpointStore) -> None:
    seen: list[str] = []

    assert verify_store(store, read_data=True, progress=seen.append) == VerifyReport(examined=4, problems=())
    assert len(seen) == 4


def test_every_flipped_bit_is_found_and_named_except_in_the_pointer(store: NumberedCheckpointStore) -> None:
    silent = []
    for info in list(store.blobs.list("")):
        data = bytearray(store.blobs.get(info.key))
        for bit in range(len(data) * 8):
            data[bit // 8] ^= 1 << bit % 8
            store.blobs.put(info.key, bytes(data))
            found = [problem.key for problem in verify_store(store, read_data=True).problems]
            if info.key != store.layout.pointer and info.key not in found:
                silent.append((info.key, bit))
            data[bit // 8] ^= 1 << bit % 8
        if info.key == store.layout.pointer:
            latest = store.load_latest()
            assert latest is not None
            assert latest.checkpoint_id == 2
        store.blobs.put(info.key, bytes(data))

    assert silent == []


def test_a_missing_or_short_sidecar_is_named_without_reading_it(store: NumberedCheckpointStore) -> None:
    key = store.layout.state_keys(1)[0]

    store.blobs.put(key, b"short")
    assert [problem.key for problem in verify_store(store, read_data=False).problems] == [key]
    store.blobs.delete(key)
    assert [problem.key for problem in verify_store(store, read_data=False).problems] == [key]


def test_leftovers_are_warned_of(store: NumberedCheckpointStore) -> None:
    store.save_state_data(9, b"orphan")

    report = verify_store(store, read_data=True)

    assert report.ok
    assert [warning.key for warning in report.warnings] == [store.layout.state_keys(9)[0]]


def test_a_store_of_files_can_be_verified(tmp_path: Path) -> None:
    from holdfast.store import FileSystemCheckpointStore

    store = FileSystemCheckpointStore(tmp_path)
    store.save(CheckpointManifest.new(1, 1))

    assert verify_store(store, read_data=True) == VerifyReport(examined=1, problems=())
