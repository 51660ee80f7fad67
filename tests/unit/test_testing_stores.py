"""Stores that misbehave do exactly what they were told, or the tests that rest on them are worth nothing."""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast.blobs.base import BlobStore
from holdfast.blobs.memory import MemoryBlobs
from holdfast.errors import HoldfastError, KeyNotFoundError, OutcomeUnknownError, StoreUnavailableError
from holdfast.testing import WRITES, Call, Crash, CrashingBlobs, FakeClock, FaultyBlobs, When
from holdfast.testing.disk import watched_disk


def work(blobs: BlobStore) -> None:
    blobs.create("a", b"1")
    blobs.put("b", b"2")
    blobs.get("a")
    blobs.get_range("a", 0, 1)
    blobs.head("b")
    list(blobs.list(""))
    blobs.delete("a")
    blobs.sweep_leftovers(min_age_seconds=0)


def test_a_crashing_store_counts_every_call() -> None:
    counted = CrashingBlobs(MemoryBlobs())

    work(counted)

    assert counted.count == 8
    assert counted.calls[:2] == [Call("create", "a"), Call("put", "b")]


def test_it_dies_before_or_after_the_effect_of_any_call_and_stays_dead() -> None:
    kept = []
    for number in range(1, 9):
        for when in ("before", "after"):
            crashing = CrashingBlobs(MemoryBlobs(), **{when: number})
            with pytest.raises(Crash, match=f"{when} call {number}"):
                work(crashing)
            with pytest.raises(Crash):
                crashing.put("later", b"")
            kept.append([info.key for info in crashing.blobs.list("")])

    assert kept[:4] == [[], ["a"], ["a"], ["a", "b"]]
    assert kept[12:14] == [["a", "b"], ["b"]]
    assert all("later" not in keys for keys in kept)


def test_a_crash_is_not_an_error_that_code_could_handle() -> None:
    assert not issubclass(Crash, Exception)


def test_what_is_not_counted_does_not_crash_until_the_process_is_dead() -> None:
    crashing = CrashingBlobs(MemoryBlobs(), before=2, counting=WRITES)

    crashing.create("a", b"")
    crashing.get("a")
    with pytest.raises(Crash):
        crashing.put("a", b"")
    with pytest.raises(Crash):
        crashing.get("a")


def test_a_listing_under_way_ends_with_the_process() -> None:
    crashing = CrashingBlobs(MemoryBlobs(), before=4)
    crashing.create("a", b"")
    crashing.create("b", b"")
    listing = crashing.list("")
    next(listing)

    with pytest.raises(Crash):
        crashing.get("a")
    with pytest.raises(Crash):
        next(listing)


def test_when_one_thread_dies_all_die() -> None:
    crashing = CrashingBlobs(MemoryBlobs(), before=50)

    def write(number: int) -> str:
        try:
            crashing.create(str(number), b"")
        except Crash:
            return "died"
        return "returned"

    with ThreadPoolExecutor(8) as pool:
        told = list(pool.map(write, range(200)))

    # Some that wrote died before they could tell, which is what happens to threads.
    assert told.count("returned") <= len(list(crashing.blobs.list(""))) == 49


def test_an_error_comes_before_or_after_the_effect() -> None:
    faulty = FaultyBlobs(MemoryBlobs())
    faulty.fail("create", key="before")
    faulty.fail("create", key="after", when=When.AFTER)

    for key in ("before", "after"):
        with pytest.raises(StoreUnavailableError):
            faulty.create(key, b"")

    assert [info.key for info in faulty.list("")] == ["after"]
    assert faulty.happened == [
        "create 'before' failed before it took effect",
        "create 'after' failed after it took effect",
    ]


def test_an_error_comes_once_or_some_times_or_for_good() -> None:
    faulty = FaultyBlobs(MemoryBlobs())
    faulty.fail("put", skip=1, times=2)
    faulty.fail("head", OSError(errno.EIO, "as it is"), times=None)  # any error will do
    outcomes = []

    for _ in range(5):
        try:
            faulty.put("key", b"")
            outcomes.append("ok")
        except HoldfastError:
            outcomes.append("failed")

    assert outcomes == ["ok", "failed", "failed", "ok", "ok"]
    for _ in range(3):
        with pytest.raises(OSError, match="as it is"):
            faulty.head("key")
    faulty.heal()
    assert faulty.head("key") is not None


def test_a_lost_reply_is_an_unknown_outcome_of_something_that_happened() -> None:
    faulty = FaultyBlobs(MemoryBlobs())
    faulty.lose_reply("create")

    with pytest.raises(OutcomeUnknownError):
        faulty.create("key", b"data")

    assert faulty.get("key") == b"data"


def test_a_misdirected_read_answers_with_other_bytes_under_the_name_asked_for() -> None:
    faulty = FaultyBlobs(MemoryBlobs())
    faulty.create("a", b"aa")
    faulty.create("b", b"b")
    faulty.misdirect("a", to="b")

    assert faulty.get("a") == b"b"
    assert faulty.get_range("a", 0, 5) == b"b"
    found = faulty.head("a")
    assert found is not None
    assert (found.key, found.size) == ("a", 1)
    faulty.misdirect("b", to="nowhere")
    with pytest.raises(KeyNotFoundError):
        faulty.get("b")


def test_a_fault_of_a_method_that_does_not_exist_is_a_mistake_in_the_test() -> None:
    with pytest.raises(ValueError, match="craete"):
        FaultyBlobs(MemoryBlobs()).fail("craete")
    with pytest.raises(ValueError, match="pput"):
        CrashingBlobs(MemoryBlobs(), counting=["pput"])


def test_a_fake_clock_moves_when_told_and_sleeping_takes_no_time() -> None:
    clock = FakeClock(1_000)

    clock.advance(1.5)
    clock.sleep(0.25)
    assert (clock(), clock.monotonic(), clock.slept) == (2_750, 1.75, [0.25])
    clock.set_back(2)

    assert (clock(), clock.monotonic()) == (750, 1.75)
    with pytest.raises(ValueError, match="back"):
        clock.advance(-1)


def test_a_watched_disk_records_real_calls_and_leaves_no_trace(tmp_path: Path) -> None:
    real = os.write

    with watched_disk(tmp_path) as disk:
        descriptor = os.open(tmp_path / "file", os.O_CREAT | os.O_WRONLY)
        os.write(descriptor, b"data")
        os.fsync(descriptor)
        os.close(descriptor)
        disk.fail("unlink", errno.EROFS, skip=1)
        os.rename(tmp_path / "file", tmp_path / "new")
        (tmp_path / "other").write_bytes(b"")
        os.unlink(tmp_path / "other")
        with pytest.raises(OSError, match="Read-only"):
            os.unlink(tmp_path / "new")

    assert os.write is real
    assert [(call.name, call.path, call.to, call.data) for call in disk.changes()] == [
        ("open", "file", None, b""),
        ("write", "file", None, b"data"),
        ("fsync", "file", None, b""),
        ("rename", "file", "new", b""),
        ("unlink", "other", None, b""),
    ]
    assert disk.calls[-1].failed
    assert (tmp_path / "new").read_bytes() == b"data"
