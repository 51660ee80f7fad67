"""Odd corners of servers that speak Redis: bytes, wrong shapes, lost replies, a server that dies."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from databases import RedisLike, serving
from proxy import proxied

from holdfast.errors import (
    CorruptError,
    HoldfastError,
    NoActiveSessionError,
    OutcomeUnknownError,
    StoreUnavailableError,
    UnsupportedFormatError,
)
from holdfast.positions import Marker, SourceCheckpoint, SourceCheckpointStore, open_positions
from holdfast.testing.positions import committed

if TYPE_CHECKING:
    from databases import Server

pytestmark = pytest.mark.services
redis = pytest.importorskip("redis")


@pytest.fixture(params=["redis_server", "valkey_server"])
def server(request: pytest.FixtureRequest) -> Server:
    found: Server = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def query() -> str:
    return f"q-{uuid4().hex}"


@pytest.fixture
def store(server: Server, query: str) -> Iterator[SourceCheckpointStore]:
    with open_positions(server.url, query) as store:
        yield store


@pytest.fixture
def bare(server: Server) -> Iterator[Any]:
    with redis.Redis.from_url(server.url) as client:
        yield client


def everything(bare: Any, query: str) -> dict[str, Any]:
    """All keys of a query, by what follows its prefix, as a bare client sees them."""
    prefix = f"ss:{{{query}}}:"
    found: dict[str, Any] = {}
    for key in bare.keys("*"):
        name = key.decode()
        if name.startswith(prefix):
            kind = bare.type(key)
            read = {b"string": bare.get, b"hash": bare.hgetall, b"set": bare.smembers}[kind]
            found[name.removeprefix(prefix)] = read(key)
    return found


# -- bytes


def test_what_we_write_a_bare_client_reads(store: SourceCheckpointStore, bare: Any, query: str) -> None:
    committed(store, ("s:1", 2**64 - 1, b"\0\xff"), ("ü", 1), ("empty", 258, b""))
    committed(store, ("a", 3))
    store.write_config_hash(2**63)
    store.write_result_sequence(query, 4)
    store.write_result_sequence("other", 5)
    store.write_marker(Marker.RESETTING)

    assert everything(bare, query) == {
        "seq:s:1": b"18446744073709551615",
        "pos:s:1": b"\0\xff",
        "seq:ü": b"1",
        "seq:empty": b"258",
        "pos:empty": b"",
        "seq:a": b"3",
        "sources": '["s:1","ü","empty","a"]'.encode(),
        "config_hash": b"9223372036854775808",
        "result_seq": b"4",
        "result_seqs": {b"other": b"5"},
        "markers": {b"resetting"},
    }

    store.clear_checkpoints()

    assert everything(bare, query) == {"generation": b"1", "markers": {b"resetting"}}


def test_what_a_bare_client_wrote_we_read(server: Server, bare: Any, query: str) -> None:
    prefix = f"ss:{{{query}}}:"
    bare.mset(
        {
            f"{prefix}seq:s": "258",
            f"{prefix}pos:s": b"\0\xff",
            f"{prefix}seq:t": "0",
            f"{prefix}sources": '["s", "t", "\\u00fc-not-there"]',
            f"{prefix}config_hash": "18446744073709551615",
            f"{prefix}result_seq": "7",
            f"{prefix}schema_version": "1",
            f"{prefix}theirs": "kept",
        }
    )
    bare.sadd(f"{prefix}markers", "bootstrapped", "unheard of")

    with open_positions(server.url, query) as store:
        assert store.read_all_checkpoints() == {
            "s": SourceCheckpoint(258, b"\0\xff"),
            "t": SourceCheckpoint(0, None),
        }
        assert store.read_config_hash() == 2**64 - 1
        assert store.read_result_sequence(query) == 7
        assert store.read_markers() == {Marker.BOOTSTRAPPED}
        store.clear_checkpoints()

    assert everything(bare, query) == {
        "generation": b"1",
        "schema_version": b"1",
        "theirs": b"kept",
        "markers": {b"unheard of"},
    }


def test_a_session_is_one_transaction_and_no_command_looks_for_keys(
    store: SourceCheckpointStore, bare: Any, query: str
) -> None:
    seen: list[str] = []
    with bare.monitor() as monitor:
        committed(store, ("s", 1, b"p"), ("t", 2))
        store.read_all_checkpoints()
        store.clear_checkpoints()
        bare.echo("end")
        for command in monitor.listen():
            if command["command"].startswith("ECHO"):
                break
            seen.append(command["command"].split()[0].upper())

    first = seen[: seen.index("EXEC") + 1]
    assert first[first.index("MULTI") :] == ["MULTI", "SET", "SET", "SET", "DEL", "SET", "EXEC"]
    assert not {"KEYS", "SCAN", "EVAL", "EVALSHA"} & set(seen)


def test_a_newer_schema_is_refused(server: Server, bare: Any, query: str) -> None:
    bare.set(f"ss:{{{query}}}:schema_version", "2")

    with pytest.raises(UnsupportedFormatError):
        open_positions(server.url, query)


def test_a_stray_position_never_becomes_somebodys(
    store: SourceCheckpointStore, bare: Any, query: str
) -> None:
    bare.set(f"ss:{{{query}}}:pos:s", b"stray")
    assert store.read_checkpoint("s") is None

    committed(store, ("s", 1))

    assert store.read_checkpoint("s") == SourceCheckpoint(1, None)
    assert store.read_all_checkpoints() == {"s": SourceCheckpoint(1, None)}


BAD_NUMBERS = [
    b"",
    b"-1",
    b"+1",
    b" 1",
    b"1.5",
    b"abc",
    b"18446744073709551616",
    b"\0\0\0\0\0\0\0\1",
    "١".encode(),
]


@pytest.mark.parametrize("bad", BAD_NUMBERS)
def test_a_number_that_is_no_decimal_u64_is_corrupt(
    store: SourceCheckpointStore, bare: Any, query: str, bad: bytes
) -> None:
    committed(store, ("s", 1, b"p"), ("t", 2))
    for name in ("seq:s", "config_hash", "generation", "result_seq"):
        bare.set(f"ss:{{{query}}}:{name}", bad)
    bare.hset(f"ss:{{{query}}}:result_seqs", "other", bad)

    for read in (
        lambda: store.read_checkpoint("s"),
        store.read_all_checkpoints,
        store.read_config_hash,
        store.read_generation,
        store.clear_checkpoints,
        lambda: store.read_result_sequence(query),
        lambda: store.read_result_sequence("other"),
    ):
        with pytest.raises(CorruptError):
            read()
    with store.session(), pytest.raises(CorruptError):
        store.stage_checkpoint("s", 9)
    assert store.read_checkpoint("t") == SourceCheckpoint(2, None)


@pytest.mark.parametrize("bad", [b"{", b'{"s": 1}', b"[1]", b'"s"', b"\xff"])
def test_a_broken_list_of_sources_is_corrupt(
    store: SourceCheckpointStore, bare: Any, query: str, bad: bytes
) -> None:
    committed(store, ("s", 1))
    bare.set(f"ss:{{{query}}}:sources", bad)

    for call in (store.read_all_checkpoints, store.clear_checkpoints, lambda: committed(store, ("new", 1))):
        with pytest.raises(CorruptError):
            call()
    assert store.read_checkpoint("s") == SourceCheckpoint(1, None)
    assert store.read_checkpoint("new") is None


def test_a_key_of_another_type_is_corrupt(store: SourceCheckpointStore, bare: Any, query: str) -> None:
    committed(store, ("s", 1, b"p"), ("t", 2))
    prefix = f"ss:{{{query}}}:"
    for name in ("pos:t", "config_hash", "result_seqs", "markers"):
        bare.delete(prefix + name)
        bare.rpush(prefix + name, "a list")

    for call in (
        lambda: store.read_checkpoint("t"),
        store.read_all_checkpoints,
        store.read_config_hash,
        lambda: store.read_result_sequence("other"),
        store.read_markers,
        store.clear_checkpoints,
    ):
        with pytest.raises(CorruptError):
            call()

    def both() -> None:
        with store.session() as session:
            store.stage_checkpoint("s", 2, b"q")
            store.stage_result_sequence("other", 1)
            session.commit()

    # EXEC does not undo: the wrong type must be seen before anything is written.
    with pytest.raises(CorruptError):
        both()
    assert store.read_checkpoint("s") == SourceCheckpoint(1, b"p")


# -- replies that are lost


def test_a_commit_whose_reply_is_lost_is_settled_by_reading_back(server: Server, query: str) -> None:
    with proxied(server.port) as proxy, open_positions(f"redis://127.0.0.1:{proxy.port}", query) as store:
        committed(store, ("s", 1, b"one"))
        proxy.arm(b"EXEC", "reply")

        committed(store, ("s", 2, b"two"), ("t", 1))

        assert proxy.happened.is_set()
        assert store.read_all_checkpoints() == {
            "s": SourceCheckpoint(2, b"two"),
            "t": SourceCheckpoint(1, None),
        }


def test_a_commit_that_never_arrived_is_sent_again(server: Server, query: str) -> None:
    with proxied(server.port) as proxy, open_positions(f"redis://127.0.0.1:{proxy.port}", query) as store:
        committed(store, ("s", 1, b"one"))
        proxy.arm(b"EXEC", "request")

        committed(store, ("s", 2, b"two"))

        assert proxy.happened.is_set()
        assert store.read_checkpoint("s") == SourceCheckpoint(2, b"two")


def test_a_commit_that_arrives_late_does_nothing_any_more(server: Server, query: str) -> None:
    with proxied(server.port) as proxy, open_positions(f"redis://127.0.0.1:{proxy.port}", query) as store:
        committed(store, ("s", 1, b"one"))
        proxy.arm(b"EXEC", "late")
        committed(store, ("s", 2, b"two"))
        committed(store, ("s", 3, b"three"))

        proxy.release()
        assert proxy.delivered.wait(10)

        assert store.read_checkpoint("s") == SourceCheckpoint(3, b"three")
        assert store.read_generation() == 0


@pytest.mark.parametrize("lose", ["request", "reply", "late"])
def test_a_lost_reply_that_reading_back_cannot_settle_is_unknown(
    server: Server, query: str, lose: str
) -> None:
    with proxied(server.port) as proxy, open_positions(f"redis://127.0.0.1:{proxy.port}", query) as store:
        committed(store, ("s", 1, b"one"))
        proxy.arm(b"EXEC", lose, stay_down=True)

        with store.session() as session:
            store.stage_checkpoint("s", 2, b"two")
            with pytest.raises(OutcomeUnknownError):
                session.commit()
            with pytest.raises(NoActiveSessionError):
                session.commit()

        proxy.release()
        proxy.down = False
        committed(store, ("s", 3, b"three"))
        assert store.read_checkpoint("s") == SourceCheckpoint(3, b"three")


@pytest.mark.parametrize("lose", ["request", "reply"])
def test_a_clear_whose_reply_is_lost_counts_once(server: Server, query: str, lose: str) -> None:
    with proxied(server.port) as proxy, open_positions(f"redis://127.0.0.1:{proxy.port}", query) as store:
        committed(store, ("s", 1))
        proxy.arm(b"EXEC", lose)

        store.clear_checkpoints()

        assert proxy.happened.is_set()
        assert store.read_generation() == 1
        assert store.read_all_checkpoints() == {}


@pytest.mark.parametrize("lose", ["request", "reply"])
def test_a_write_at_once_and_a_read_survive_a_lost_reply(server: Server, query: str, lose: str) -> None:
    with proxied(server.port) as proxy, open_positions(f"redis://127.0.0.1:{proxy.port}", query) as store:
        proxy.arm(b"config_hash", lose)
        store.write_config_hash(7)
        assert proxy.happened.is_set()

        proxy.arm(b"config_hash", lose)
        assert store.read_config_hash() == 7
        assert proxy.happened.is_set()


# -- a server that dies


@pytest.fixture(params=["redis", "valkey"])
def mortal(request: pytest.FixtureRequest) -> Iterator[RedisLike]:
    """A server of this test's own, to be killed."""
    try:
        for server in serving(request.param):
            assert isinstance(server, RedisLike)
            yield server
    except LookupError as error:
        pytest.skip(str(error))


def test_a_server_killed_in_mid_session(mortal: RedisLike) -> None:
    with open_positions(mortal.url, "q") as store:
        committed(store, ("s", 1, b"one"))
        with store.session() as session:
            store.stage_checkpoint("s", 2, b"two")
            mortal.kill()
            with pytest.raises((StoreUnavailableError, OutcomeUnknownError)):
                session.commit()
            with pytest.raises(NoActiveSessionError):
                session.commit()
        for call in (
            store.read_all_checkpoints,
            lambda: store.write_config_hash(1),
            store.clear_checkpoints,
            lambda: committed(store, ("s", 2)),
        ):
            with pytest.raises(StoreUnavailableError):
                call()

        mortal.start()

        assert store.read_all_checkpoints() == {"s": SourceCheckpoint(1, b"one")}
        committed(store, ("s", 2, b"two"))
        assert store.read_checkpoint("s") == SourceCheckpoint(2, b"two")


def test_a_server_that_came_back_during_the_session_loses_nothing(mortal: RedisLike) -> None:
    with open_positions(mortal.url, "q") as store:
        committed(store, ("s", 1, b"one"))
        with store.session() as session:
            store.stage_checkpoint("s", 2, b"two")
            mortal.kill()
            mortal.start()
            try:
                session.commit()
                expected = SourceCheckpoint(2, b"two")
            except StoreUnavailableError:
                expected = SourceCheckpoint(1, b"one")

        assert store.read_checkpoint("s") == expected
        committed(store, ("s", 3))


def test_a_server_that_refuses_writes_is_unavailable_and_nothing_is_half_written(mortal: RedisLike) -> None:
    with open_positions(mortal.url, "q") as store, redis.Redis.from_url(mortal.url) as bare:
        committed(store, ("s", 1, b"one"), ("t", 1, b"one"))
        bare.config_set("maxmemory", "1")

        with pytest.raises(StoreUnavailableError):
            committed(store, ("s", 2, b"two"), ("t", 2, b"two"))
        with pytest.raises(StoreUnavailableError):
            store.write_config_hash(1)
        assert {entry.sequence for entry in store.read_all_checkpoints().values()} == {1}

        bare.config_set("maxmemory", "0")
        committed(store, ("s", 2, b"two"), ("t", 2, b"two"))


# -- rivals


def test_rivals_on_one_query_never_lose_each_others_sources(server: Server, query: str) -> None:
    failures: list[BaseException] = []

    def work(name: str) -> None:
        try:
            with open_positions(server.url, query) as store:
                for number in range(15):
                    committed(store, (f"{name}-{number}", 1))
        except HoldfastError as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert failures == []
    with open_positions(server.url, query) as store:
        assert len(store.read_all_checkpoints()) == 45
