"""The process dies at every write of a numbered store, before and after it takes effect. Somebody looks."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest

from holdfast.blobs.base import BlobStore
from holdfast.blobs.memory import MemoryBlobs
from holdfast.manifest import CheckpointManifest, SinkCommitStatus
from holdfast.store import NumberedCheckpointStore
from holdfast.store.layouts import FileLayout, NumberedLayout, ObjectLayout
from holdfast.store.verifying import verify_store
from holdfast.testing import WRITES, Crash, CrashingBlobs

Work = Callable[[NumberedCheckpointStore], object]


@pytest.fixture(params=[FileLayout(), ObjectLayout("p/")], ids=["files", "objects"])
def layout(request: pytest.FixtureRequest) -> NumberedLayout:
    found: NumberedLayout = request.param
    return found


def manifest(number: int) -> CheckpointManifest:
    made = CheckpointManifest.new(number, number, timestamp_ms=1)
    made.sink_commit_statuses = {"lake": SinkCommitStatus.PENDING}
    return made


def open_store(blobs: BlobStore, layout: NumberedLayout) -> NumberedCheckpointStore:
    return NumberedCheckpointStore(blobs, layout, max_retained=2)


def prepared(layout: NumberedLayout) -> MemoryBlobs:
    blobs = MemoryBlobs()
    store = open_store(blobs, layout)
    for number in (1, 2):
        store.save_with_state(manifest(number), b"state %d" % number)
    return blobs


def save_with_state(store: NumberedCheckpointStore) -> object:
    store.save_with_state(manifest(3), b"state 3")
    return None


def update(store: NumberedCheckpointStore) -> object:
    store.update_manifest(manifest(2).replaced(sink_commit_statuses={"lake": SinkCommitStatus.COMMITTED}))
    return None


def prune(store: NumberedCheckpointStore) -> object:
    return store.prune(1)


def clean_up(store: NumberedCheckpointStore) -> object:
    store.save_state_data(7, b"orphan")
    return store.cleanup_orphans(0)


def crashes(work: Work, layout: NumberedLayout) -> list[MemoryBlobs]:
    """What is left after every possible death."""
    counted = CrashingBlobs(prepared(layout), counting=WRITES)
    work(open_store(counted, layout))
    left = []
    for k in range(1, counted.count + 1):
        for when in ("before", "after"):
            blobs = prepared(layout)
            crashing = CrashingBlobs(blobs, counting=WRITES, **{when: k})  # type: ignore[arg-type]
            with suppress(Crash):
                work(open_store(crashing, layout))
            assert crashing.dead
            left.append(blobs)
    assert left
    return left


def look(blobs: BlobStore, layout: NumberedLayout) -> list[tuple[int, bytes | None, bool]]:
    store = open_store(blobs, layout)
    seen = []
    for number in store.list_ids():
        found = store.load_by_id(number)
        assert found is not None
        assert store.validate_checkpoint(number).valid
        pending = found.sink_commit_statuses["lake"].is_pending
        seen.append((number, store.load_state_data(number), pending))
    return seen


@pytest.mark.parametrize("work", [save_with_state, update, prune, clean_up], ids=lambda work: work.__name__)
def test_the_reader_sees_the_old_or_the_new_and_the_next_run_finishes(
    work: Work, layout: NumberedLayout
) -> None:
    old = look(prepared(layout), layout)
    done = prepared(layout)
    work(open_store(done, layout))
    new = look(done, layout)
    between = [*old, (3, b"state 3", True)]  # saved, and what is no longer retained not yet pruned

    for blobs in crashes(work, layout):
        assert look(blobs, layout) in (old, new, between)
        assert verify_store(open_store(blobs, layout), read_data=True).ok

        store = open_store(blobs, layout)
        work(store)
        store.cleanup_orphans(0)
        assert look(blobs, layout) == new
        report = verify_store(store, read_data=True)
        assert (report.problems, report.warnings) == ((), ())
        assert store.read_pointer() == new[-1][0]


def test_the_sidecar_is_durable_before_the_manifest_and_that_before_the_pointer(
    layout: NumberedLayout,
) -> None:
    recording = CrashingBlobs(prepared(layout), counting=("create", "put"))

    save_with_state(open_store(recording, layout))

    assert [call.key for call in recording.calls] == [
        layout.state_keys(3)[0],
        layout.manifest_keys(3)[0],
        layout.pointer,
    ]
