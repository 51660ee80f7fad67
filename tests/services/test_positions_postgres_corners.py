"""PostgreSQL's odd corners: bytes, lost replies, a server that dies, the caller's own transaction."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from databases import Postgres, serving
from proxy import proxied

from holdfast.errors import (
    CorruptError,
    HoldfastError,
    InvalidInputError,
    NoActiveSessionError,
    OutcomeUnknownError,
    SequenceRegressionError,
    StoreUnavailableError,
    UnsupportedFormatError,
)
from holdfast.positions import Marker, SourceCheckpoint, open_positions
from holdfast.positions.sql import SQLSourceCheckpointStore
from holdfast.testing.positions import committed

if TYPE_CHECKING:
    from databases import Server
    from psycopg import Connection

pytestmark = pytest.mark.services
psycopg = pytest.importorskip("psycopg")


@pytest.fixture
def store(database: str) -> Iterator[SQLSourceCheckpointStore]:
    with open_positions(database, "q") as store:
        assert isinstance(store, SQLSourceCheckpointStore)
        yield store


@pytest.fixture
def bare(store: SQLSourceCheckpointStore, database: str) -> Iterator[Connection[Any]]:
    with psycopg.connect(database, autocommit=True) as connection:
        yield connection


@pytest.fixture
def mine(store: SQLSourceCheckpointStore, database: str) -> Iterator[Connection[Any]]:
    """The caller's own connection, and a table."""
    with psycopg.connect(database) as connection:
        connection.execute("CREATE TABLE mine (n INTEGER PRIMARY KEY)")
        connection.commit()
        yield connection


def rows(bare: Connection[Any]) -> list[int]:
    return [n for (n,) in bare.execute("SELECT n FROM mine ORDER BY n")]


def all_of(bare: Connection[Any], table: str, order: str) -> list[Any]:
    return bare.execute(f"SELECT * FROM {table} ORDER BY {order}").fetchall()


# -- bytes


def test_what_we_write_a_bare_client_reads(store: SQLSourceCheckpointStore, bare: Connection[Any]) -> None:
    committed(store, ("s", 2**64 - 1, b"\0p"), ("none", 1), ("empty", 258, b""))
    store.write_config_hash(1)
    store.write_marker(Marker.RESETTING)

    assert all_of(bare, "holdfast_positions", "source_id") == [
        ("q", "empty", b"\0\0\0\0\0\0\1\2", b""),
        ("q", "none", b"\0\0\0\0\0\0\0\1", None),
        ("q", "s", b"\xff" * 8, b"\0p"),
    ]
    assert all_of(bare, "holdfast_position_facts", "name") == [
        ("q", "config_hash", b"\0\0\0\0\0\0\0\1"),
        ("q", "marker:resetting", b""),
    ]
    store.clear_checkpoints()
    assert all_of(bare, "holdfast_positions", "source_id") == []
    assert all_of(bare, "holdfast_position_facts", "name") == [
        ("q", "generation", b"\0\0\0\0\0\0\0\1"),
        ("q", "marker:resetting", b""),
    ]


def test_what_a_bare_client_wrote_we_read(database: str) -> None:
    with psycopg.connect(database) as bare:
        bare.execute(
            "CREATE TABLE holdfast_positions "
            "(query_id TEXT, source_id TEXT, sequence BYTEA, source_position BYTEA, "
            "PRIMARY KEY (query_id, source_id))"
        )
        bare.execute(
            "CREATE TABLE holdfast_position_facts "
            "(query_id TEXT, name TEXT, value BYTEA, PRIMARY KEY (query_id, name))"
        )
        bare.execute("INSERT INTO holdfast_positions VALUES ('q', 's', '\\x0000000000000102', '\\x00ff')")
        bare.execute(
            "INSERT INTO holdfast_position_facts VALUES ('q', 'config_hash', '\\x8000000000000000'), "
            "('q', 'marker:bootstrapped', ''), ('q', 'theirs', '\\x01')"
        )

    with open_positions(database, "q") as store:
        assert store.read_all_checkpoints() == {"s": SourceCheckpoint(258, b"\0\xff")}
        assert store.read_config_hash() == 2**63
        assert store.read_markers() == {Marker.BOOTSTRAPPED}
        store.clear_checkpoints()
        assert store.read_markers() == frozenset()

    with psycopg.connect(database) as bare:
        assert [name for _, name, _ in all_of(bare, "holdfast_position_facts", "name")] == [
            "generation",
            "theirs",
        ]


def test_a_number_that_is_not_8_bytes_is_corrupt(
    store: SQLSourceCheckpointStore, bare: Connection[Any]
) -> None:
    committed(store, ("s", 1), ("t", 2))
    bare.execute("UPDATE holdfast_positions SET sequence = '\\x01' WHERE source_id = 's'")
    bare.execute("INSERT INTO holdfast_position_facts VALUES ('q', 'config_hash', '\\x000000000000000001')")

    for read in (lambda: store.read_checkpoint("s"), store.read_all_checkpoints, store.read_config_hash):
        with pytest.raises(CorruptError):
            read()
    with store.session(), pytest.raises(CorruptError):
        store.stage_checkpoint("s", 9)
    assert store.read_checkpoint("t") == SourceCheckpoint(2, None)


def test_a_newer_schema_is_refused(
    store: SQLSourceCheckpointStore, bare: Connection[Any], database: str
) -> None:
    bare.execute("INSERT INTO holdfast_position_facts VALUES ('q', 'schema_version', '\\x0000000000000002')")

    with pytest.raises(UnsupportedFormatError):
        open_positions(database, "q")


def test_an_id_longer_than_an_index_holds_is_refused_and_the_store_goes_on(
    store: SQLSourceCheckpointStore,
) -> None:
    long = "".join(uuid4().hex for _ in range(300))

    with pytest.raises(InvalidInputError):
        committed(store, ("s", 1), (long, 1))

    assert store.read_all_checkpoints() == {}
    committed(store, ("s", 1))


def test_many_first_opens_at_once_make_the_tables_once(database: str) -> None:
    failures: list[HoldfastError] = []

    def first() -> None:
        try:
            open_positions(database, "q").close()
        except HoldfastError as error:
            failures.append(error)

    threads = [threading.Thread(target=first) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert failures == []


@pytest.mark.parametrize(("sync", "level"), [(True, "on"), (False, "off")])
def test_sync_is_the_sessions_own_setting(database: str, sync: bool, level: str) -> None:
    contrary = f"{database}%20-c%20synchronous_commit%3D{'off' if sync else 'on'}"

    with open_positions(contrary, "q", sync=sync) as store:
        assert isinstance(store, SQLSourceCheckpointStore)
        told = store._idle.run(lambda connection: connection.execute("SHOW synchronous_commit").fetchone())

    assert told == (level,)


# -- replies that are lost


def through(port: int, database: str) -> str:
    """The same place, by way of another port."""
    return re.sub(r":\d+/", f":{port}/", database)


@pytest.mark.parametrize("lose", ["reply", "request"])
def test_a_commit_whose_reply_is_lost_is_settled(postgres_server: Server, database: str, lose: str) -> None:
    with (
        proxied(postgres_server.port) as proxy,
        open_positions(through(proxy.port, database), "q") as store,
    ):
        committed(store, ("s", 1, b"one"))
        proxy.arm(b"COMMIT", lose)

        if lose == "reply":
            committed(store, ("s", 2, b"two"), ("t", 1))
        else:
            with pytest.raises(StoreUnavailableError):
                committed(store, ("s", 2, b"two"), ("t", 1))

        assert proxy.happened.is_set()
        written = {"s": SourceCheckpoint(2, b"two"), "t": SourceCheckpoint(1, None)}
        assert store.read_all_checkpoints() == (
            written if lose == "reply" else {"s": SourceCheckpoint(1, b"one")}
        )
        committed(store, ("s", 3))


@pytest.mark.parametrize("lose", ["reply", "request"])
def test_a_lost_reply_that_reading_back_cannot_settle_is_unknown(
    postgres_server: Server, database: str, lose: str
) -> None:
    with (
        proxied(postgres_server.port) as proxy,
        open_positions(through(proxy.port, database), "q") as store,
    ):
        committed(store, ("s", 1, b"one"))
        proxy.arm(b"COMMIT", lose, stay_down=True)

        with store.session() as session:
            store.stage_checkpoint("s", 2, b"two")
            with pytest.raises(OutcomeUnknownError):
                session.commit()
            with pytest.raises(NoActiveSessionError):
                session.commit()

        proxy.down = False
        expected = SourceCheckpoint(2, b"two") if lose == "reply" else SourceCheckpoint(1, b"one")
        assert store.read_checkpoint("s") == expected
        committed(store, ("s", 3))


def test_a_commit_that_may_still_arrive_is_ended_before_it_is_called_failed(
    postgres_server: Server, database: str
) -> None:
    with (
        proxied(postgres_server.port) as proxy,
        open_positions(through(proxy.port, database), "q") as store,
    ):
        committed(store, ("s", 1, b"one"))
        proxy.arm(b"COMMIT", "late")
        with pytest.raises(StoreUnavailableError):
            committed(store, ("s", 2, b"two"))

        proxy.release()
        assert proxy.delivered.wait(15)

        assert store.read_checkpoint("s") == SourceCheckpoint(1, b"one")


def test_a_clear_and_a_write_at_once_whose_replies_are_lost_are_settled(
    postgres_server: Server, database: str
) -> None:
    with (
        proxied(postgres_server.port) as proxy,
        open_positions(through(proxy.port, database), "q") as store,
    ):
        committed(store, ("s", 1))
        proxy.arm(b"COMMIT", "reply")
        store.clear_checkpoints()
        assert proxy.happened.is_set()
        assert store.read_generation() == 1

        proxy.arm(b"COMMIT", "reply")
        store.write_config_hash(7)
        assert proxy.happened.is_set()
        assert store.read_config_hash() == 7


def test_the_callers_transaction_whose_reply_is_lost_is_settled(
    postgres_server: Server, database: str, mine: Connection[Any], bare: Connection[Any], store: Any
) -> None:
    with proxied(postgres_server.port) as proxy, psycopg.connect(through(proxy.port, database)) as theirs:
        proxy.arm(b"COMMIT", "reply")
        with store.session(theirs) as session:
            theirs.execute("INSERT INTO mine VALUES (1)")
            store.stage_checkpoint("s", 1, b"p")
            session.commit()
        assert proxy.happened.is_set()

    with proxied(postgres_server.port) as proxy, psycopg.connect(through(proxy.port, database)) as theirs:
        proxy.arm(b"COMMIT", "request")
        with store.session(theirs) as session:
            theirs.execute("INSERT INTO mine VALUES (2)")
            store.stage_checkpoint("s", 2, b"p")
            with pytest.raises(StoreUnavailableError):
                session.commit()

    assert rows(bare) == [1]
    assert store.read_checkpoint("s") == SourceCheckpoint(1, b"p")


# -- a server that dies


@pytest.fixture
def mortal() -> Iterator[Postgres]:
    try:
        for server in serving("postgres"):
            assert isinstance(server, Postgres)
            yield server
    except LookupError as error:
        pytest.skip(str(error))


def test_a_server_killed_in_mid_session(mortal: Postgres) -> None:
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
        with store.session() as session:
            store.stage_checkpoint("s", 2, b"two")
            mortal.kill()
            mortal.start()
            session.commit()  # on a connection that is gone: found out before anything was written
        assert store.read_checkpoint("s") == SourceCheckpoint(2, b"two")


# -- the caller's own transaction


def test_the_callers_rows_and_the_positions_land_together(
    store: SQLSourceCheckpointStore, mine: Connection[Any], bare: Connection[Any]
) -> None:
    with store.session(mine) as session:
        mine.execute("INSERT INTO mine VALUES (1)")
        store.stage_checkpoint("s", 1, b"p")
        assert rows(bare) == []
        session.commit()
    with store.session(mine):
        mine.execute("INSERT INTO mine VALUES (2)")
        store.stage_checkpoint("s", 2, b"p")

    assert rows(bare) == [1]
    assert store.read_checkpoint("s") == SourceCheckpoint(1, b"p")
    assert mine.info.transaction_status.name == "IDLE"


def test_a_connection_that_makes_dicts_of_rows_is_as_good(database: str, bare: Connection[Any]) -> None:
    def connect() -> Any:
        return psycopg.connect(
            database, row_factory=psycopg.rows.dict_row, cursor_factory=psycopg.ClientCursor
        )

    with SQLSourceCheckpointStore(connect, "q") as store, connect() as mine:
        with store.session(mine) as session:
            store.stage_checkpoint("s", 1, b"p")
            store.stage_checkpoint("t", 1)
            session.commit()
        with store.session(mine) as session:
            store.stage_checkpoint("s", 2)
            committed_by_a_rival = "UPDATE holdfast_positions SET sequence = '\\x0000000000000009'"
            bare.execute(committed_by_a_rival)
            with pytest.raises(SequenceRegressionError):
                session.commit()

        assert store.read_checkpoint("s") == SourceCheckpoint(9, b"p")


def test_a_rival_that_went_past_takes_the_callers_rows_back(
    store: SQLSourceCheckpointStore, mine: Connection[Any], bare: Connection[Any], database: str
) -> None:
    with store.session(mine) as session:
        mine.execute("INSERT INTO mine VALUES (1)")
        store.stage_checkpoint("s", 1)
        with open_positions(database, "q") as rival:
            committed(rival, ("s", 5))
        with pytest.raises(SequenceRegressionError):
            session.commit()

    assert rows(bare) == []
    assert store.read_checkpoint("s") == SourceCheckpoint(5, None)


def test_a_transaction_that_failed_already_writes_nothing(
    store: SQLSourceCheckpointStore, mine: Connection[Any], bare: Connection[Any]
) -> None:
    with store.session(mine) as session:
        mine.execute("INSERT INTO mine VALUES (1)")
        store.stage_checkpoint("s", 1)
        with pytest.raises(psycopg.Error):
            mine.execute("INSERT INTO mine VALUES (1)")
        with pytest.raises(StoreUnavailableError):
            session.commit()

    assert rows(bare) == []
    assert store.read_checkpoint("s") is None
    committed(store, ("s", 1))


def test_a_connection_of_another_kind_or_in_autocommit_is_refused(
    store: SQLSourceCheckpointStore, bare: Connection[Any]
) -> None:
    for wrong in (bare, object()):
        with pytest.raises(InvalidInputError):
            store.session(wrong)


def test_an_adbc_connection_lands_rows_and_positions_together(database: str, bare: Connection[Any]) -> None:
    dbapi = pytest.importorskip("adbc_driver_postgresql.dbapi")
    bare.execute("CREATE TABLE mine (n INTEGER PRIMARY KEY)")

    with (
        SQLSourceCheckpointStore(lambda: dbapi.connect(database), "q") as store,
        dbapi.connect(database) as mine,
    ):
        for number, commits in ((1, True), (2, False)):
            with store.session(mine) as session, mine.cursor() as cursor:
                cursor.execute(f"INSERT INTO mine VALUES ({number})")
                store.stage_checkpoint("s", number, b"")
                if commits:
                    session.commit()

        assert rows(bare) == [1]
        assert store.read_checkpoint("s") == SourceCheckpoint(1, b"")
