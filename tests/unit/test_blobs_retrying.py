"""RetryingBlobs: asked again, never twice done, and never told a success that was somebody else's."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest

from holdfast.blobs import MemoryBlobs, RetryingBlobs, RetryPolicy, probe
from holdfast.blobs.base import BlobInfo, BlobStore, Data, RefusedError
from holdfast.blobs.files import FileBlobs
from holdfast.errors import (
    InvalidInputError,
    KeyExistsError,
    KeyNotFoundError,
    OutcomeUnknownError,
    StoreUnavailableError,
)
from holdfast.testing import FakeClock, FaultyBlobs, When


class Rig:
    """A store in memory, faults around it, retries around those, and a clock that takes no time."""

    def __init__(self) -> None:
        self.memory = MemoryBlobs()
        self.faulty = FaultyBlobs(self.memory)
        self.clock = FakeClock()
        self.blobs = RetryingBlobs(self.faulty, sleep=self.clock.sleep, jitter=lambda: 0.0)

    @property
    def pauses(self) -> list[float]:
        return self.clock.slept


@pytest.fixture
def rig() -> Rig:
    return Rig()


READS: dict[str, Callable[[BlobStore], object]] = {
    "get": lambda blobs: blobs.get("there"),
    "get_range": lambda blobs: blobs.get_range("there", 0, 1),
    "head": lambda blobs: blobs.head("there"),
    "list": lambda blobs: list(blobs.list("")),
}
WRITES: dict[str, Callable[[BlobStore], object]] = {
    "create": lambda blobs: blobs.create("new", b"data"),
    "put": lambda blobs: blobs.put("new", b"data"),
    "delete": lambda blobs: blobs.delete("there"),
    "sweep_leftovers": lambda blobs: blobs.sweep_leftovers(min_age_seconds=0),
}


@pytest.mark.parametrize("method", [*READS, *WRITES])
def test_every_call_is_tried_again_with_growing_pauses(rig: Rig, method: str) -> None:
    rig.memory.create("there", b"1")
    rig.faulty.fail(method, times=4)

    (READS | WRITES)[method](rig.blobs)

    assert len(rig.faulty.happened) == 4
    assert rig.pauses == [0.1, 0.4, 1.6, 2.0]


@pytest.mark.parametrize("method", [*READS, *WRITES])
def test_tries_are_bounded_and_the_last_error_comes_through(rig: Rig, method: str) -> None:
    rig.memory.create("there", b"1")
    rig.faulty.fail(method, times=None)

    with pytest.raises(StoreUnavailableError, match="injected"):
        (READS | WRITES)[method](rig.blobs)

    assert len(rig.faulty.happened) == 5


@pytest.mark.parametrize("method", [*READS, *WRITES])
def test_what_the_store_refuses_is_not_asked_twice(rig: Rig, method: str) -> None:
    rig.memory.create("there", b"1")
    rig.faulty.fail(method, RefusedError("wrong credentials"), times=None)

    with pytest.raises(RefusedError):
        (READS | WRITES)[method](rig.blobs)

    assert len(rig.faulty.happened) == 1
    assert rig.pauses == []


def test_answers_are_no_failures(rig: Rig) -> None:
    with pytest.raises(KeyNotFoundError):
        rig.blobs.get("missing")
    rig.blobs.create("key", b"")
    with pytest.raises(KeyExistsError):
        rig.blobs.create("key", b"")
    with pytest.raises(InvalidInputError):
        rig.blobs.list("../")

    assert rig.pauses == []


def test_pauses_are_shortened_at_random_so_that_rivals_do_not_march_in_step() -> None:
    policy = RetryPolicy(attempts=4, first_pause_seconds=1, factor=2, longest_pause_seconds=3)

    assert list(policy.pauses(lambda: 0.0)) == [1, 2, 3]
    assert list(policy.pauses(lambda: 1.0)) == [0.5, 1, 1.5]
    with pytest.raises(InvalidInputError):
        RetryPolicy(attempts=0)


# -- create has three outcomes


def test_a_create_whose_reply_was_lost_is_ours(rig: Rig) -> None:
    rig.faulty.lose_reply("create")

    rig.blobs.create("key", [b"ou", b"rs"])

    assert rig.memory.get("key") == b"ours"
    assert rig.pauses == [], "settled by reading, not by trying again"


def test_taken_after_our_own_attempt_without_an_answer_is_ours_if_the_bytes_are() -> None:
    # The request lands late: after we looked, found nothing, and sent it again. "Taken" is then by ourselves.
    class Late(MemoryBlobs):
        calls = 0

        def create(self, key: str, data: Data) -> None:
            self.calls += 1
            if self.calls == 1:
                raise OutcomeUnknownError("timed out")
            if self.calls == 2:
                super().create(key, data)
            super().create(key, data)

    late = Late()

    RetryingBlobs(late, sleep=FakeClock().sleep).create("key", b"ours")

    assert late.calls == 2
    assert late.get("key") == b"ours"


def test_taken_by_a_rival_is_taken_whatever_became_of_our_attempt(rig: Rig) -> None:
    rig.memory.create("key", b"theirs")
    rig.faulty.fail("create", OutcomeUnknownError("timed out"))

    with pytest.raises(KeyExistsError):
        rig.blobs.create("key", b"ours")

    assert rig.memory.get("key") == b"theirs"


def test_taken_at_the_first_attempt_is_taken_even_with_equal_bytes(rig: Rig) -> None:
    rig.memory.create("key", b"same")

    with pytest.raises(KeyExistsError):
        rig.blobs.create("key", b"same")


def test_an_attempt_that_did_nothing_is_made_again(rig: Rig) -> None:
    rig.faulty.fail("create", OutcomeUnknownError("timed out"))

    rig.blobs.create("key", b"ours")

    assert rig.memory.get("key") == b"ours"


@pytest.mark.parametrize("length", [1, 3, 5])
def test_a_prefix_of_our_bytes_is_not_ours(rig: Rig, length: int) -> None:
    rig.memory.create("key", b"ours!!"[:length])
    rig.faulty.fail("create", OutcomeUnknownError("timed out"))

    with pytest.raises(KeyExistsError):
        rig.blobs.create("key", [b"ou", b"rs"])


def test_what_can_not_be_settled_stays_unknown_and_is_never_called_a_failure(rig: Rig) -> None:
    rig.faulty.lose_reply("create")
    rig.faulty.fail("get", times=None)

    with pytest.raises(OutcomeUnknownError):
        rig.blobs.create("key", b"ours")

    assert rig.memory.get("key") == b"ours"


def test_a_doubt_is_not_forgotten_when_the_store_then_goes_away(rig: Rig) -> None:
    for error in (StoreUnavailableError("down"), RefusedError("key withdrawn")):
        rig.faulty.heal()
        rig.faulty.fail("create", OutcomeUnknownError("timed out"))
        rig.faulty.fail("create", error, times=None)

        with pytest.raises(OutcomeUnknownError):
            rig.blobs.create("key", b"ours")


def test_reading_back_is_tried_again_too(rig: Rig) -> None:
    rig.faulty.lose_reply("create")
    rig.faulty.fail("get", times=3)

    rig.blobs.create("key", b"ours")

    assert rig.memory.get("key") == b"ours"


# -- the others


def test_a_put_or_delete_whose_reply_was_lost_is_simply_done_again(rig: Rig) -> None:
    rig.memory.create("old", b"")
    rig.faulty.lose_reply("put")
    rig.faulty.lose_reply("delete")

    rig.blobs.put("key", b"data")
    rig.blobs.delete("old")

    assert [info.key for info in rig.memory.list("")] == ["key"]


def test_a_listing_that_breaks_off_goes_on_where_it_was_and_repeats_nothing() -> None:
    class Breaking(MemoryBlobs):
        """Every listing ends in an error after two keys."""

        def list(self, prefix: str, start_after: str | None = None):  # type: ignore[no-untyped-def]
            def listing():  # type: ignore[no-untyped-def]
                for number, info in enumerate(super(Breaking, self).list(prefix, start_after)):
                    if number == 2:
                        raise StoreUnavailableError("connection reset")
                    yield info

            return listing()

    breaking = Breaking()
    for number in range(7):
        breaking.create(f"dir/{number}", b"")

    listed: list[BlobInfo] = list(RetryingBlobs(breaking, sleep=FakeClock().sleep).list("dir/", "dir/0"))

    assert [info.key for info in listed] == [f"dir/{number}" for number in range(1, 7)]


def test_data_is_taken_once_however_often_it_is_sent(rig: Rig) -> None:
    rig.faulty.fail("put", times=2)
    rig.faulty.fail("create", OutcomeUnknownError("timed out"), times=2)

    rig.blobs.put("put", [b"a", b"b"])
    rig.blobs.create("created", (b"a", b"b"))
    with pytest.raises(InvalidInputError):
        rig.blobs.create("iterator", iter([b"a", b"b"]))  # type: ignore[arg-type]

    assert rig.memory.get("put") == rig.memory.get("created") == b"ab"


def test_it_travels_with_its_policy(tmp_path: object) -> None:
    retrying = RetryingBlobs(FileBlobs(str(tmp_path)), RetryPolicy(attempts=2))

    assert repr(pickle.loads(pickle.dumps(retrying))) == repr(retrying)
    assert "FileBlobs" in repr(retrying)


# -- the probe


def test_the_probe_accepts_an_honest_store_and_leaves_nothing() -> None:
    memory = MemoryBlobs()

    probe(memory)

    assert list(memory.list("")) == []


def test_the_probe_refuses_a_store_that_overwrites() -> None:
    class Overwriting(MemoryBlobs):
        def create(self, key: str, data: Data) -> None:
            self.put(key, data)

    blobs = Overwriting()

    with pytest.raises(InvalidInputError, match="ignores conditional writes"):
        probe(blobs)
    assert list(blobs.list("")) == []


def test_the_probe_refuses_a_store_that_refuses_and_overwrites_all_the_same() -> None:
    class Lying(MemoryBlobs):
        def create(self, key: str, data: Data) -> None:
            taken = self.head(key)
            self.put(key, data)
            if taken:
                raise KeyExistsError(key)

    with pytest.raises(InvalidInputError, match="ignores conditional writes"):
        probe(Lying())


def test_the_probe_refuses_a_store_that_lists_out_of_order() -> None:
    class Backwards(MemoryBlobs):
        def list(self, prefix: str, start_after: str | None = None):  # type: ignore[no-untyped-def]
            return reversed(list(super().list(prefix, start_after)))

    with pytest.raises(InvalidInputError, match="ascending"):
        probe(Backwards())


def test_a_probe_that_gets_no_answer_says_so_and_not_that_the_store_is_bad() -> None:
    faulty = FaultyBlobs(MemoryBlobs())
    faulty.fail("create", when=When.BEFORE, skip=1)

    with pytest.raises(StoreUnavailableError):
        probe(faulty)
