"""What every store of source positions must do, as tests. A backend's own file is ten lines:

    class TestSQLite(SharedPositionSuite):
        @pytest.fixture
        def open_store(self, tmp_path: Path) -> OpenStore:
            return lambda query_id, **options: open_positions(tmp_path, query_id, **options)

``open_store`` opens the store of a query in one place, which is empty for each test. Three suites, each
of which holds the one before: ``PositionSuite`` for any store, ``PersistentPositionSuite`` for one that
survives its process, ``SharedPositionSuite`` where a place may be open more than once.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import pickle
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias, TypeVar

import pytest

from holdfast.errors import (
    ForeignSessionError,
    InvalidInputError,
    NoActiveSessionError,
    SequenceRegressionError,
    SessionError,
)
from holdfast.positions import (
    KEEP,
    MAX_SOURCE_POSITION_BYTES,
    Marker,
    SourceCheckpoint,
    SourceCheckpointStore,
    aio,
)

T = TypeVar("T")
OpenStore: TypeAlias = Callable[..., SourceCheckpointStore]

MAX_U64 = 2**64 - 1
NUMBERS = [0, 1, 255, 2**31, 2**53 + 1, 2**63 - 1, 2**63, MAX_U64]
POSITIONS = [b"", b"\0", b"\xff\xfe\0\x80", bytes(range(256)), b"p" * MAX_SOURCE_POSITION_BYTES]
IDS = ["s", "s:1", "{s}", "a b", "ümlaut", "日本🐚", "s'; --", 's"\\', "%s?$1", "*?[", "s\n", "S", "x" * 500]
BAD_IDS: list[Any] = ["", "a\0b", "\ud800", None, 7, b"s", ["s"]]
BAD_NUMBERS: list[Any] = [-1, 2**64, True, 1.0, "1", None]


def committed(store: SourceCheckpointStore, *entries: tuple[Any, ...], **options: Any) -> None:
    """Stage and commit in one session."""
    with store.session() as session:
        for entry in entries:
            store.stage_checkpoint(*entry, **options)
        session.commit()


def elsewhere(call: Callable[[], T]) -> T:
    """The result of ``call`` in another thread. Fails if it waits for us."""
    pool = ThreadPoolExecutor(max_workers=1)
    try:
        return pool.submit(call).result(timeout=10)
    finally:
        pool.shutdown(wait=False)


class PositionSuite:
    """The contract of ``SourceCheckpointStore`` that holds for every store."""

    @pytest.fixture
    def open_store(self) -> OpenStore:
        raise NotImplementedError("override this fixture: opens the store of a query id in one empty place")

    @pytest.fixture
    def store(self, open_store: OpenStore) -> Iterator[SourceCheckpointStore]:
        with open_store("q") as store:
            yield store

    # -- values

    def test_a_new_store_knows_nothing(self, store: SourceCheckpointStore) -> None:
        assert store.read_all_checkpoints() == {}
        assert store.read_checkpoint("s") is None
        assert store.read_config_hash() is None
        assert store.read_result_sequence("q") is None
        assert store.read_markers() == frozenset()
        assert store.read_generation() == 0

    @pytest.mark.parametrize("number", NUMBERS)
    def test_every_u64_can_be_stored(self, store: SourceCheckpointStore, number: int) -> None:
        committed(store, ("s", number))
        store.write_config_hash(number)
        store.write_result_sequence("q", number)
        store.write_result_sequence("other", number)

        assert store.read_checkpoint("s") == SourceCheckpoint(number, None)
        assert store.read_config_hash() == number
        assert store.read_result_sequence("q") == number
        assert store.read_result_sequence("other") == number

    @pytest.mark.parametrize("position", POSITIONS, ids=lambda position: f"{len(position)} bytes")
    def test_a_position_comes_back_byte_for_byte(self, store: SourceCheckpointStore, position: bytes) -> None:
        committed(store, ("s", 1, position))

        assert store.read_checkpoint("s") == SourceCheckpoint(1, position)
        assert store.read_all_checkpoints() == {"s": SourceCheckpoint(1, position)}

    def test_a_position_may_be_anything_like_bytes_and_is_copied(self, store: SourceCheckpointStore) -> None:
        buffer = bytearray(b"abc")
        with store.session() as session:
            store.stage_checkpoint("s", 1, buffer)
            store.stage_checkpoint("t", 1, memoryview(b"xyz")[1:])
            buffer[:] = b"zzz"
            session.commit()

        assert store.read_checkpoint("s") == SourceCheckpoint(1, b"abc")
        assert store.read_checkpoint("t") == SourceCheckpoint(1, b"yz")

    def test_none_deletes_the_position_and_keep_leaves_it(self, store: SourceCheckpointStore) -> None:
        committed(store, ("kept", 1, b"k"), ("deleted", 1, b"d"), ("empty", 1, b"e"))

        committed(store, ("kept", 2), ("deleted", 2, None), ("empty", 2, b""), ("new", 2, KEEP))

        assert store.read_all_checkpoints() == {
            "kept": SourceCheckpoint(2, b"k"),
            "deleted": SourceCheckpoint(2, None),
            "empty": SourceCheckpoint(2, b""),
            "new": SourceCheckpoint(2, None),
        }

    def test_a_deleted_position_stays_deleted(self, store: SourceCheckpointStore) -> None:
        committed(store, ("s", 1, b"p"))
        committed(store, ("s", 2, None))
        committed(store, ("s", 3))

        assert store.read_checkpoint("s") == SourceCheckpoint(3, None)

    def test_keep_means_what_is_staged_so_far(self, store: SourceCheckpointStore) -> None:
        committed(store, ("a", 1, b"old"), ("b", 1, b"old"), ("c", 1, b"old"))

        committed(
            store,
            *[("a", 2, b"new"), ("a", 3)],
            *[("b", 2, None), ("b", 3)],
            *[("c", 2), ("c", 3)],
        )

        assert store.read_all_checkpoints() == {
            "a": SourceCheckpoint(3, b"new"),
            "b": SourceCheckpoint(3, None),
            "c": SourceCheckpoint(3, b"old"),
        }

    def test_keep_stays_itself(self) -> None:
        assert copy.copy(KEEP) is KEEP
        assert copy.deepcopy([KEEP])[0] is KEEP
        assert pickle.loads(pickle.dumps(KEEP)) is KEEP

    @pytest.mark.parametrize("source_id", IDS)
    def test_any_text_can_be_an_id(self, store: SourceCheckpointStore, source_id: str) -> None:
        committed(store, (source_id, 1, b"a"), (source_id + "0", 2, b"b"))
        store.write_result_sequence(source_id, 3)

        assert store.read_checkpoint(source_id) == SourceCheckpoint(1, b"a")
        assert set(store.read_all_checkpoints()) == {source_id, source_id + "0"}
        assert store.read_result_sequence(source_id) == 3
        assert store.read_result_sequence(source_id + "0") is None

    def test_the_returned_dict_is_the_callers_own(self, store: SourceCheckpointStore) -> None:
        committed(store, ("s", 1))

        store.read_all_checkpoints().clear()

        assert set(store.read_all_checkpoints()) == {"s"}

    def test_many_sources_are_read_in_one_call(self, store: SourceCheckpointStore) -> None:
        wanted = {f"source-{n}": SourceCheckpoint(n, b"p%d" % n) for n in range(1_500)}
        committed(store, *[(name, entry.sequence, entry.source_position) for name, entry in wanted.items()])

        assert store.read_all_checkpoints() == wanted

        committed(store, *[(name, entry.sequence + 1) for name, entry in wanted.items()])

        assert store.read_checkpoint("source-1499") == SourceCheckpoint(1500, b"p1499")

    # -- bad input

    @pytest.mark.parametrize("bad", BAD_IDS, ids=repr)
    def test_an_id_that_no_backend_can_hold_is_refused(self, store: SourceCheckpointStore, bad: Any) -> None:
        with store.session() as session:
            calls: list[Callable[[], object]] = [
                lambda: store.stage_checkpoint(bad, 1),
                lambda: store.stage_result_sequence(bad, 1),
                lambda: store.write_result_sequence(bad, 1),
                lambda: store.read_checkpoint(bad),
                lambda: store.read_result_sequence(bad),
            ]
            for call in calls:
                with pytest.raises(InvalidInputError):
                    call()
            session.commit()

        assert store.read_all_checkpoints() == {}

    @pytest.mark.parametrize("bad", BAD_NUMBERS, ids=repr)
    def test_a_number_that_is_no_u64_is_refused(self, store: SourceCheckpointStore, bad: Any) -> None:
        with store.session():
            calls: list[Callable[[], object]] = [
                lambda: store.stage_checkpoint("s", bad),
                lambda: store.stage_result_sequence("q", bad),
                lambda: store.write_result_sequence("q", bad),
                lambda: store.write_config_hash(bad),
            ]
            for call in calls:
                with pytest.raises(InvalidInputError):
                    call()

        assert store.read_checkpoint("s") is None
        assert store.read_config_hash() is None
        assert store.read_result_sequence("q") is None

    @pytest.mark.parametrize(
        "bad", [b"p" * (MAX_SOURCE_POSITION_BYTES + 1), "text", 7, [1], object()], ids=type
    )
    def test_a_bad_position_stages_nothing_and_the_session_goes_on(
        self, store: SourceCheckpointStore, bad: Any
    ) -> None:
        committed(store, ("s", 1, b"good"))

        with store.session() as session:
            with pytest.raises(InvalidInputError):
                store.stage_checkpoint("s", 2, bad)
            assert store.read_checkpoint("s") == SourceCheckpoint(1, b"good")
            store.stage_checkpoint("t", 1)
            session.commit()

        assert store.read_checkpoint("s") == SourceCheckpoint(1, b"good")
        assert store.read_checkpoint("t") == SourceCheckpoint(1, None)

    def test_unknown_words_are_refused(self, store: SourceCheckpointStore, open_store: OpenStore) -> None:
        with store.session(), pytest.raises(InvalidInputError):
            store.stage_checkpoint("s", 1, guard="perhaps")  # type: ignore[arg-type]
        with pytest.raises(InvalidInputError):
            store.write_marker("odd")  # type: ignore[arg-type]
        store.close()
        with pytest.raises(InvalidInputError):
            open_store("q2", guard="perhaps")

    # -- the guard against going back

    def test_a_step_back_is_refused_and_the_session_stays_usable(self, store: SourceCheckpointStore) -> None:
        committed(store, ("s", 5, b"five"))

        with store.session() as session:
            with pytest.raises(SequenceRegressionError) as caught:
                store.stage_checkpoint("s", 4, b"four")
            store.stage_checkpoint("t", 1)
            session.commit()

        error = pickle.loads(pickle.dumps(caught.value))
        assert (error.source_id, error.stored_sequence, error.sequence) == ("s", 5, 4)
        assert store.read_checkpoint("s") == SourceCheckpoint(5, b"five")
        assert store.read_checkpoint("t") == SourceCheckpoint(1, None)

    def test_the_guard_compares_with_what_is_staged(self, store: SourceCheckpointStore) -> None:
        with store.session() as session:
            store.stage_checkpoint("s", 5)
            with pytest.raises(SequenceRegressionError):
                store.stage_checkpoint("s", 4)
            session.commit()

        assert store.read_checkpoint("s") == SourceCheckpoint(5, None)

    def test_an_equal_sequence_may_replace_the_position(self, store: SourceCheckpointStore) -> None:
        committed(store, ("s", 5, b"a"))
        committed(store, ("s", 5, b"b"))

        assert store.read_checkpoint("s") == SourceCheckpoint(5, b"b")

    def test_ignore_drops_the_whole_call(self, store: SourceCheckpointStore) -> None:
        committed(store, ("s", 5, b"five"))
        committed(store, ("s", 4, b"four"), ("t", 1), guard="ignore")

        assert store.read_checkpoint("s") == SourceCheckpoint(5, b"five")
        assert store.read_checkpoint("t") == SourceCheckpoint(1, None)

    def test_allow_goes_back_in_that_one_call(self, store: SourceCheckpointStore) -> None:
        committed(store, ("s", 5, b"five"))
        committed(store, ("s", 2, b"two"), guard="allow")

        assert store.read_checkpoint("s") == SourceCheckpoint(2, b"two")
        with pytest.raises(SequenceRegressionError):
            committed(store, ("s", 1))

    def test_after_a_rewind_the_session_goes_on_from_there(self, store: SourceCheckpointStore) -> None:
        committed(store, ("s", 50, b"fifty"))

        with store.session() as session:
            store.stage_checkpoint("s", 2, b"two", guard="allow")
            store.stage_checkpoint("s", 3, b"three")
            session.commit()

        assert store.read_checkpoint("s") == SourceCheckpoint(3, b"three")

    @pytest.mark.parametrize("guard", ["ignore", "allow"])
    def test_a_store_has_a_guard_of_its_own_and_a_call_may_override_it(
        self, open_store: OpenStore, guard: str
    ) -> None:
        with open_store("q", guard=guard) as store:
            committed(store, ("s", 5))
            with pytest.raises(SequenceRegressionError):
                committed(store, ("s", 4), guard="reject")
            committed(store, ("s", 4))

            assert store.read_checkpoint("s") == SourceCheckpoint(4 if guard == "allow" else 5, None)

    def test_result_sequences_and_the_hash_have_no_guard(self, store: SourceCheckpointStore) -> None:
        store.write_result_sequence("q", 5)
        store.write_result_sequence("q", 4)
        store.write_config_hash(5)
        store.write_config_hash(4)
        with store.session() as session:
            store.stage_result_sequence("other", 5)
            store.stage_result_sequence("other", 4)
            session.commit()

        assert store.read_result_sequence("q") == 4
        assert store.read_config_hash() == 4
        assert store.read_result_sequence("other") == 4

    # -- facts, and clearing them

    def test_markers_are_set_and_deleted_and_neither_needs_the_other(
        self, store: SourceCheckpointStore
    ) -> None:
        store.delete_marker(Marker.RESETTING)
        store.write_marker(Marker.BOOTSTRAPPED)
        store.write_marker(Marker.BOOTSTRAPPED)
        store.write_marker(Marker.RESETTING)
        assert store.read_markers() == {Marker.BOOTSTRAPPED, Marker.RESETTING}

        store.delete_marker(Marker.BOOTSTRAPPED)

        assert store.read_markers() == {Marker.RESETTING}

    def test_result_sequences_are_kept_apart(self, store: SourceCheckpointStore) -> None:
        for number, query_id in enumerate(["q", "q1", "q10", "result_sequence:q"]):
            store.write_result_sequence(query_id, number)

        assert [store.read_result_sequence(each) for each in ("q", "q1", "q10", "result_sequence:q")] == [
            0,
            1,
            2,
            3,
        ]

    def test_clear_removes_everything_but_the_reset_and_counts(self, store: SourceCheckpointStore) -> None:
        committed(store, ("s", 5, b"p"), ("t", 1))
        store.write_config_hash(7)
        store.write_result_sequence("q", 8)
        store.write_result_sequence("other", 9)
        store.write_marker(Marker.BOOTSTRAPPED)
        store.write_marker(Marker.RESETTING)

        store.clear_checkpoints()

        assert store.read_all_checkpoints() == {}
        assert store.read_checkpoint("s") is None
        assert store.read_config_hash() is None
        assert store.read_result_sequence("q") is None
        assert store.read_result_sequence("other") is None
        assert store.read_markers() == {Marker.RESETTING}
        assert store.read_generation() == 1
        committed(store, ("s", 1))
        assert store.read_all_checkpoints() == {"s": SourceCheckpoint(1, None)}

    def test_every_clear_adds_one_to_the_generation(self, store: SourceCheckpointStore) -> None:
        for _ in range(3):
            store.clear_checkpoints()

        assert store.read_generation() == 3

    # -- closing

    def test_closing_twice_is_fine(self, open_store: OpenStore) -> None:
        store = open_store("q")
        with store as same:
            assert same is store
        store.close()

    # -- sessions, as far as every store has them

    def test_an_error_in_the_block_is_passed_on_unchanged(self, store: SourceCheckpointStore) -> None:
        mine = KeyError("mine")

        with pytest.raises(KeyError) as caught, store.session():
            raise mine

        assert caught.value is mine

    def test_readers_never_see_a_mix(self, store: SourceCheckpointStore) -> None:
        wrong: list[Any] = []
        stop = threading.Event()
        committed(store, *[(name, 0, b"%d" % 0) for name in "abc"])

        def watch() -> None:
            while not stop.is_set():
                one = store.read_checkpoint("a")
                if one is None or one.source_position != b"%d" % one.sequence:
                    wrong.append(one)
                entries = store.read_all_checkpoints()
                if store.is_persistent() and len({entry.sequence for entry in entries.values()}) != 1:
                    wrong.append(entries)
                wrong.extend(e for e in entries.values() if e.source_position != b"%d" % e.sequence)

        readers = [threading.Thread(target=watch) for _ in range(2)]
        for reader in readers:
            reader.start()
        for number in range(1, 60):
            committed(store, *[(name, number, b"%d" % number) for name in "abc"])
        stop.set()
        for reader in readers:
            reader.join()

        assert wrong == []

    def test_the_same_store_serves_a_loop(self, store: SourceCheckpointStore) -> None:
        async def use() -> None:
            positions = aio.SourceCheckpointStore(store)
            async with positions.session() as session:
                await positions.stage_checkpoint("s", 1, b"p")
                assert await positions.read_checkpoint("s") == SourceCheckpoint(1, b"p")
                await session.commit()
            await positions.write_config_hash(3)

        asyncio.run(use())

        assert store.read_checkpoint("s") == SourceCheckpoint(1, b"p")
        assert store.read_config_hash() == 3


class PersistentPositionSuite(PositionSuite):
    """What a store that survives its process adds: sessions, owners, and coming back."""

    def test_it_is_persistent(self, store: SourceCheckpointStore) -> None:
        assert store.is_persistent() is True

    def test_everything_is_there_after_opening_again(self, open_store: OpenStore) -> None:
        with open_store("q") as store:
            committed(store, ("s", 5, b"p"), ("t", 1))
            store.write_config_hash(7)
            store.write_result_sequence("q", 8)
            store.clear_checkpoints()
            committed(store, ("s", 6, b""), ("t", 2))
            store.write_config_hash(9)
            store.write_marker(Marker.BOOTSTRAPPED)

        with open_store("q") as again:
            assert again.read_all_checkpoints() == {
                "s": SourceCheckpoint(6, b""),
                "t": SourceCheckpoint(2, None),
            }
            assert again.read_config_hash() == 9
            assert again.read_result_sequence("q") is None
            assert again.read_markers() == {Marker.BOOTSTRAPPED}
            assert again.read_generation() == 1

    def test_staging_needs_a_session(self, store: SourceCheckpointStore) -> None:
        with pytest.raises(NoActiveSessionError):
            store.stage_checkpoint("s", 1)
        with pytest.raises(NoActiveSessionError):
            store.stage_result_sequence("q", 1)

        assert store.read_checkpoint("s") is None

    def test_leaving_the_block_does_not_commit(self, store: SourceCheckpointStore) -> None:
        with store.session():
            store.stage_checkpoint("s", 1)
            store.stage_result_sequence("q", 1)

        assert store.read_checkpoint("s") is None
        assert store.read_result_sequence("q") is None

    def test_an_error_in_the_block_rolls_back(self, store: SourceCheckpointStore) -> None:
        def fail() -> None:
            with store.session():
                store.stage_checkpoint("s", 1)
                raise KeyError

        with pytest.raises(KeyError):
            fail()

        assert store.read_checkpoint("s") is None
        committed(store, ("s", 1))

    def test_the_owner_reads_what_is_staged_and_others_what_is_committed(
        self, store: SourceCheckpointStore
    ) -> None:
        committed(store, ("s", 1, b"one"))

        with store.session() as session:
            store.stage_checkpoint("s", 2)
            store.stage_checkpoint("t", 3, b"three")
            store.stage_result_sequence("q", 4)

            assert store.read_checkpoint("s") == SourceCheckpoint(2, b"one")
            assert store.read_all_checkpoints() == {
                "s": SourceCheckpoint(2, b"one"),
                "t": SourceCheckpoint(3, b"three"),
            }
            assert store.read_result_sequence("q") == 4
            assert elsewhere(lambda: store.read_checkpoint("s")) == SourceCheckpoint(1, b"one")
            assert elsewhere(store.read_all_checkpoints) == {"s": SourceCheckpoint(1, b"one")}
            assert elsewhere(lambda: store.read_result_sequence("q")) is None
            session.commit()

        assert elsewhere(lambda: store.read_checkpoint("s")) == SourceCheckpoint(2, b"one")
        assert store.read_result_sequence("q") == 4

    def test_what_is_written_at_once_outlives_the_rollback(self, store: SourceCheckpointStore) -> None:
        store.write_marker(Marker.RESETTING)
        with store.session():
            store.stage_checkpoint("s", 1)
            store.write_config_hash(7)
            store.write_result_sequence("q", 8)
            store.write_marker(Marker.BOOTSTRAPPED)
            store.delete_marker(Marker.RESETTING)
            assert elsewhere(store.read_config_hash) == 7

        assert store.read_checkpoint("s") is None
        assert store.read_config_hash() == 7
        assert store.read_result_sequence("q") == 8
        assert store.read_markers() == {Marker.BOOTSTRAPPED}

    def test_clear_is_refused_while_anybody_has_a_session(self, store: SourceCheckpointStore) -> None:
        committed(store, ("s", 1))
        store.write_config_hash(7)

        with store.session() as session:
            for ask in (store.clear_checkpoints, lambda: elsewhere(store.clear_checkpoints)):
                with pytest.raises(SessionError):
                    ask()
            store.stage_checkpoint("s", 2)
            session.commit()

        assert store.read_checkpoint("s") == SourceCheckpoint(2, None)
        assert store.read_config_hash() == 7
        assert store.read_generation() == 0

    # -- the depth table

    def test_commit_at_depth_zero_is_an_error_and_rollback_is_not(self, store: SourceCheckpointStore) -> None:
        session = store.session()

        with pytest.raises(NoActiveSessionError):
            session.commit()
        session.rollback()

    def test_an_inner_commit_writes_nothing_and_the_outer_one_everything(
        self, store: SourceCheckpointStore
    ) -> None:
        with store.session() as outer:
            store.stage_checkpoint("a", 1)
            with store.session() as inner:
                store.stage_checkpoint("b", 1)
                inner.commit()
            assert elsewhere(store.read_all_checkpoints) == {}
            store.stage_checkpoint("c", 1)
            outer.commit()

        assert set(store.read_all_checkpoints()) == {"a", "b", "c"}

    def test_an_outer_rollback_after_an_inner_commit_discards_everything(
        self, store: SourceCheckpointStore
    ) -> None:
        with store.session(), store.session() as inner:
            store.stage_checkpoint("b", 1)
            inner.commit()

        assert store.read_all_checkpoints() == {}

    def test_an_inner_rollback_dooms_the_outer_session(self, store: SourceCheckpointStore) -> None:
        outer = store.session()
        outer.begin()
        store.stage_checkpoint("a", 1)
        with store.session():
            pass

        with pytest.raises(NoActiveSessionError):
            store.stage_checkpoint("b", 1)
        with pytest.raises(NoActiveSessionError):
            outer.commit()
        outer.rollback()
        assert store.read_all_checkpoints() == {}
        committed(store, ("a", 1))

    def test_an_empty_session_commits(self, store: SourceCheckpointStore) -> None:
        committed(store)

        assert store.read_all_checkpoints() == {}

    # -- owners

    def test_a_stranger_is_refused_at_once_and_changes_nothing(self, store: SourceCheckpointStore) -> None:
        with store.session() as session:
            store.stage_checkpoint("s", 1)
            for call in (
                lambda: store.session().begin(),
                lambda: session.begin(),
                lambda: session.commit(),
                lambda: session.rollback(),
                lambda: store.stage_checkpoint("s", 9),
                lambda: store.stage_result_sequence("q", 9),
            ):
                with pytest.raises(ForeignSessionError):
                    elsewhere(call)
            store.stage_checkpoint("t", 1)
            session.commit()

        assert store.read_all_checkpoints() == {
            "s": SourceCheckpoint(1, None),
            "t": SourceCheckpoint(1, None),
        }
        assert elsewhere(lambda: committed(store, ("s", 2))) is None

    def test_a_session_left_by_a_dead_thread_belongs_to_nobody_else(
        self, store: SourceCheckpointStore
    ) -> None:
        elsewhere(lambda: store.session().begin())

        for _ in range(3):  # the system may give a new thread the number of the old one
            with pytest.raises(ForeignSessionError):
                elsewhere(lambda: store.session().begin())

    def test_closing_rolls_an_open_session_back_and_says_so(
        self, open_store: OpenStore, caplog: pytest.LogCaptureFixture
    ) -> None:
        store = open_store("q")
        session = store.session()
        session.begin()
        store.stage_checkpoint("s", 1)

        with caplog.at_level(logging.WARNING, logger="holdfast.positions"):
            store.close()

        assert [record.name for record in caplog.records] == ["holdfast.positions"]
        session.rollback()
        with open_store("q") as again:
            assert again.read_all_checkpoints() == {}

    def test_a_closed_store_says_so(self, open_store: OpenStore) -> None:
        store = open_store("q")
        store.close()

        for call in (
            store.read_all_checkpoints,
            lambda: store.read_checkpoint("s"),
            lambda: store.write_config_hash(1),
            lambda: store.session().begin(),
            store.clear_checkpoints,
        ):
            with pytest.raises(InvalidInputError, match="closed"):
                call()


class SharedPositionSuite(PersistentPositionSuite):
    """What a place adds that may be open more than once: several queries, and a rival on the same one."""

    def test_queries_in_one_place_never_touch_each_other(self, open_store: OpenStore) -> None:
        with open_store("q1") as mine, open_store("q10") as other:
            committed(other, ("s", 9, b"nine"))
            other.write_config_hash(9)
            other.write_result_sequence("q1", 9)
            other.write_marker(Marker.BOOTSTRAPPED)
            committed(mine, ("s", 1, b"one"))
            mine.write_result_sequence("q10", 1)

            mine.clear_checkpoints()

            assert mine.read_all_checkpoints() == {}
            assert mine.read_result_sequence("q10") is None
            assert other.read_all_checkpoints() == {"s": SourceCheckpoint(9, b"nine")}
            assert other.read_config_hash() == 9
            assert other.read_result_sequence("q1") == 9
            assert other.read_markers() == {Marker.BOOTSTRAPPED}
            assert other.read_generation() == 0

    def test_a_second_handle_sees_what_is_committed_and_nothing_else(self, open_store: OpenStore) -> None:
        with open_store("q") as mine, open_store("q") as other:
            with mine.session() as session:
                mine.stage_checkpoint("s", 1, b"p")
                assert other.read_all_checkpoints() == {}
                session.commit()

            assert other.read_checkpoint("s") == SourceCheckpoint(1, b"p")
            mine.clear_checkpoints()
            other.clear_checkpoints()
            assert mine.read_generation() == 2

    def test_the_guard_knows_what_a_rival_committed(self, open_store: OpenStore) -> None:
        with open_store("q") as mine, open_store("q") as rival:
            committed(mine, ("s", 5))
            committed(rival, ("s", 10))

            with mine.session(), pytest.raises(SequenceRegressionError):
                mine.stage_checkpoint("s", 7)

            assert mine.read_checkpoint("s") == SourceCheckpoint(10, None)

    def test_a_rival_that_went_past_during_the_session_is_not_taken_back(self, open_store: OpenStore) -> None:
        with open_store("q") as mine, open_store("q") as rival:
            committed(mine, ("s", 5), ("t", 5))
            with mine.session() as session:
                mine.stage_checkpoint("s", 7, b"mine")
                mine.stage_checkpoint("t", 7, b"mine")
                committed(rival, ("s", 10, b"rival"))

                with pytest.raises(SequenceRegressionError) as caught:
                    session.commit()

            assert (caught.value.source_id, caught.value.stored_sequence, caught.value.sequence) == (
                "s",
                10,
                7,
            )
            assert mine.read_all_checkpoints() == {
                "s": SourceCheckpoint(10, b"rival"),
                "t": SourceCheckpoint(5, None),
            }
            committed(mine, ("t", 8))

    def test_where_a_rival_went_past_ignore_drops_and_allow_writes(self, open_store: OpenStore) -> None:
        with open_store("q") as mine, open_store("q") as rival:
            with mine.session() as session:
                mine.stage_checkpoint("s", 7, b"mine", guard="ignore")
                mine.stage_checkpoint("t", 7, b"mine", guard="allow")
                mine.stage_checkpoint("u", 7, guard="ignore")
                committed(rival, ("s", 10, b"rival"), ("t", 10, b"rival"), ("u", 10, b"rival"))
                session.commit()

            assert mine.read_all_checkpoints() == {
                "s": SourceCheckpoint(10, b"rival"),
                "t": SourceCheckpoint(7, b"mine"),
                "u": SourceCheckpoint(10, b"rival"),
            }

    def test_two_handles_opened_at_once_count_every_clear(self, open_store: OpenStore) -> None:
        def clear() -> None:
            with open_store("q") as store:
                for _ in range(5):
                    store.clear_checkpoints()

        threads = [threading.Thread(target=clear) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        with open_store("q") as store:
            assert store.read_generation() == 15
