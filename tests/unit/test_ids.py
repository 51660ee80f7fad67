"""Ids sort by time, never repeat, and are read in every form that others write."""

from __future__ import annotations

import copy
import os
import pickle
import select
import signal
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import InvalidInputError
from holdfast.ids import CheckpointId, IdGenerator
from holdfast.testing import FakeClock

TEXT = "0195c0de-7000-7abc-8def-0123456789ab"
ID = CheckpointId.parse(TEXT)
LAST_MS = (1 << 48) - 1


def test_an_id_is_a_uuid_of_version_7_with_the_time_in_front() -> None:
    clock = FakeClock(1_773_388_800_123)

    made = CheckpointId(IdGenerator(clock).next())

    assert made.as_uuid().version == 7
    assert made.as_uuid().variant == uuid.RFC_4122
    assert made.timestamp_ms == 1_773_388_800_123
    assert len(str(made)) == 36


@pytest.mark.parametrize(
    "text",
    [
        TEXT,
        TEXT.upper(),
        TEXT.replace("-", ""),
        "{" + TEXT + "}",
        "urn:uuid:" + TEXT,
        "URN:UUID:" + TEXT.upper(),
    ],
)
def test_every_form_that_others_write_is_read(text: str) -> None:
    assert CheckpointId.parse(text) == ID
    assert str(CheckpointId.parse(text)) == TEXT


@pytest.mark.parametrize(
    "text",
    [
        "",
        "latest",
        TEXT[:-1],
        TEXT + "0",
        TEXT + "\n",
        " " + TEXT,
        TEXT.replace("a", "g"),
        "0195c0de7000-7abc-8def-0123456789ab",
        "0195-c0de70007abc8def-0123456789ab",
        "{" + TEXT,
        TEXT + "}",
        "{" + TEXT.replace("-", "") + "}",
        "urn:uuid:{" + TEXT + "}",
        TEXT.replace("0", "٠"),
        TEXT.replace("-", "_"),
        None,
        7,
    ],
)
def test_anything_else_is_no_id(text: object) -> None:
    with pytest.raises(InvalidInputError):
        CheckpointId.parse(text)  # type: ignore[arg-type]


@given(st.uuids())
def test_a_uuid_goes_in_and_comes_out_of_every_version(value: uuid.UUID) -> None:
    made = CheckpointId.from_uuid(value)

    assert made.as_uuid() == value
    assert CheckpointId.parse(str(made)) == made
    assert str(made) == str(value)


@given(st.lists(st.uuids(), max_size=20))
def test_ids_sort_as_their_text_does(values: list[uuid.UUID]) -> None:
    ids = [CheckpointId.from_uuid(value) for value in values]

    assert [str(each) for each in sorted(ids)] == sorted(str(value) for value in values)


def test_ids_are_values() -> None:
    same = CheckpointId.parse(TEXT.upper())

    assert same == ID
    assert hash(same) == hash(ID)
    assert {ID: 1}[same] == 1
    assert ID != TEXT
    assert CheckpointId.parse(TEXT.replace("b", "c")) != ID
    assert repr(ID) == f"CheckpointId('{TEXT}')"
    assert copy.deepcopy(ID) == ID
    assert pickle.loads(pickle.dumps(ID)) == ID
    with pytest.raises(TypeError):
        _ = TEXT < ID  # type: ignore[operator]


def test_ids_of_one_process_only_grow_also_within_a_millisecond() -> None:
    ids = [CheckpointId.now() for _ in range(20_000)]

    assert ids == sorted(set(ids))


def test_ids_of_many_threads_never_repeat_and_grow_in_each() -> None:
    def make(_: int) -> list[CheckpointId]:
        return [CheckpointId.now() for _ in range(2_000)]

    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(make, range(8)))

    assert all(ids == sorted(ids) for ids in made)
    assert len({each for ids in made for each in ids}) == 8 * 2_000


def test_a_clock_that_is_set_back_moves_no_id_back() -> None:
    clock = FakeClock()
    generator = IdGenerator(clock)
    before = generator.next()
    clock.set_back(3600)

    after = [generator.next() for _ in range(100)]

    assert sorted({before, *after}) == [before, *after]
    assert after[-1] >> 80 == before >> 80, "the time of the last id is held, not counted up"


def test_a_full_counter_moves_on_to_the_next_millisecond() -> None:
    clock = FakeClock()
    generator = IdGenerator(clock, random_bytes=lambda count: b"\xff" * count)
    first = generator.next()
    generator._counter = (1 << 42) - 1

    second = generator.next()

    assert second > first
    assert second >> 80 == (first >> 80) + 1


@pytest.mark.parametrize(
    "after",
    [
        pytest.param(TEXT, id="the past"),
        pytest.param("01ffffff-ffff-7000-8000-000000000000", id="the future"),
        pytest.param("01ffffff-ffff-7fff-bfff-ffffffffffff", id="the future with a full counter"),
        pytest.param("01ffffff-ffff-4fff-bfff-ffffffffffff", id="the future by another version"),
        pytest.param("01ffffff-ffff-ffff-ffff-ffffffffffff", id="the future by a foreign variant"),
        pytest.param("00000000-0000-0000-0000-000000000000", id="nil"),
    ],
)
def test_an_id_after_another_is_later_and_so_are_all_that_follow(after: str) -> None:
    generator = IdGenerator(FakeClock())
    earlier = CheckpointId.parse(after)

    made = CheckpointId(generator.next(earlier.number))

    assert made > earlier
    assert made.as_uuid().version == 7
    assert CheckpointId(generator.next()) > made


def test_after_an_id_of_this_very_millisecond_comes_a_later_one() -> None:
    clock = FakeClock()
    highest_of_now = (int(clock()) << 80) | (1 << 80) - 1

    made = IdGenerator(clock).next(highest_of_now)

    assert made > highest_of_now
    assert made >> 80 == clock() + 1


def test_after_the_last_possible_millisecond_there_is_a_clear_error_and_never_a_repetition() -> None:
    generator = IdGenerator(FakeClock())

    with pytest.raises(InvalidInputError, match="no id is left"):
        generator.next((1 << 128) - 1)


def test_the_child_of_a_fork_makes_other_ids_than_its_parent() -> None:
    # The child copies clock and counter: within a millisecond only the random tail would tell the two apart.
    clock = FakeClock()
    parent = IdGenerator(clock, random_bytes=lambda count: bytes(count))
    last_common = parent.next()
    child = copy.copy(parent)

    child.reseed_after_fork()

    assert {child.next() for _ in range(1_000)}.isdisjoint(parent.next() for _ in range(1_000))
    assert child.next() > last_common


def test_a_real_fork_reseeds_even_while_another_thread_holds_the_lock() -> None:
    from holdfast import ids

    before = CheckpointId.now()
    reading, writing = os.pipe()
    with ids._default_generator._lock:
        pid = os.fork()
        if pid == 0:  # pragma: no cover
            # Without a lock of its own the child would wait here for a thread that it does not have.
            os.write(writing, str(CheckpointId.now()).encode())
            os._exit(0)
    os.close(writing)
    try:
        answered, _, _ = select.select([reading], [], [], 20)
        theirs = CheckpointId.parse(os.read(reading, 100).decode()) if answered else None
    finally:
        os.close(reading)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)

    assert theirs is not None, "the child hangs"
    assert theirs > before
    assert theirs not in [CheckpointId.now() for _ in range(1_000)]
