"""SQLite's odd corners: bytes, bad values, locks, full disks, and the caller's own transaction."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import (
    CorruptError,
    ForeignSessionError,
    InvalidInputError,
    NoActiveSessionError,
    OutcomeUnknownError,
    SequenceRegressionError,
    StoreUnavailableError,
    UnsupportedFormatError,
)
from holdfast.positions import Marker, SourceCheckpoint, open_positions, sql_drivers
from holdfast.positions.sql import SQLSourceCheckpointStore
from holdfast.testing.positions import committed


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "positions.db"


@pytest.fixture
def bare(store: SQLSourceCheckpointStore, path: Path) -> Iterator[sqlite3.Connection]:
    """A client that knows nothing of ours."""
    connection = sqlite3.connect(path, isolation_level=None)
    yield connection
    connection.close()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SQLSourceCheckpointStore]:
    with open_positions(tmp_path, "q") as store:
        assert isinstance(store, SQLSourceCheckpointStore)
        yield store


# -- bytes


def test_what_we_write_a_bare_client_reads(store: SQLSourceCheckpointStore, bare: sqlite3.Connection) -> None:
    committed(store, ("s", 2**64 - 1, b"\0p"), ("none", 1), ("empty", 258, b""))
    store.write_config_hash(1)
    store.write_result_sequence("q", 2)
    store.write_marker(Marker.RESETTING)
    fresh = bare.execute("SELECT * FROM holdfast_position_facts ORDER BY name").fetchall()

    entries = bare.execute("SELECT * FROM holdfast_positions ORDER BY source_id").fetchall()

    assert entries == [
        ("q", "empty", b"\0\0\0\0\0\0\1\2", b""),
        ("q", "none", b"\0\0\0\0\0\0\0\1", None),
        ("q", "s", b"\xff" * 8, b"\0p"),
    ]
    assert fresh == [
        ("q", "config_hash", b"\0\0\0\0\0\0\0\1"),
        ("q", "marker:resetting", b""),
        ("q", "result_sequence:q", b"\0\0\0\0\0\0\0\2"),
    ]
    store.clear_checkpoints()
    assert bare.execute("SELECT * FROM holdfast_positions").fetchall() == []
    assert bare.execute("SELECT * FROM holdfast_position_facts ORDER BY name").fetchall() == [
        ("q", "generation", b"\0\0\0\0\0\0\0\1"),
        ("q", "marker:resetting", b""),
    ]


def test_what_a_bare_client_wrote_we_read(tmp_path: Path, path: Path) -> None:
    bare = sqlite3.connect(path)
    bare.executescript(
        """
        CREATE TABLE holdfast_positions (query_id TEXT, source_id TEXT, sequence BLOB, source_position BLOB,
            PRIMARY KEY (query_id, source_id));
        CREATE TABLE holdfast_position_facts (query_id TEXT, name TEXT, value BLOB,
            PRIMARY KEY (query_id, name));
        INSERT INTO holdfast_positions VALUES ('q', 's', x'0000000000000102', x'00ff'),
            ('p', 's', x'07', NULL);
        INSERT INTO holdfast_position_facts VALUES ('q', 'config_hash', x'8000000000000000'),
            ('q', 'generation', x'0000000000000003'), ('q', 'marker:bootstrapped', x''),
            ('q', 'marker:unheard of', x'01'), ('q', 'something else', x'01'),
            ('q', 'result_sequence:other', x'0000000000000009'), ('q', 'schema_version', x'0000000000000001');
        """
    )
    bare.close()

    with open_positions(tmp_path, "q") as store:
        assert store.read_all_checkpoints() == {"s": SourceCheckpoint(258, b"\0\xff")}
        assert store.read_config_hash() == 2**63
        assert store.read_generation() == 3
        assert store.read_markers() == {Marker.BOOTSTRAPPED}
        assert store.read_result_sequence("other") == 9
        store.clear_checkpoints()
        assert store.read_generation() == 4

    bare = sqlite3.connect(path)
    kept = bare.execute("SELECT name FROM holdfast_position_facts ORDER BY name").fetchall()
    assert kept == [("generation",), ("marker:unheard of",), ("schema_version",), ("something else",)]
    assert bare.execute("SELECT count(*) FROM holdfast_positions").fetchone() == (1,)
    bare.close()


def test_a_newer_schema_is_refused_and_a_clear_keeps_the_version(tmp_path: Path, path: Path) -> None:
    open_positions(tmp_path, "q").close()
    bare = sqlite3.connect(path, isolation_level=None)
    bare.execute("INSERT INTO holdfast_position_facts VALUES ('q', 'schema_version', x'0000000000000002')")

    with pytest.raises(UnsupportedFormatError):
        open_positions(tmp_path, "q")

    bare.execute("UPDATE holdfast_position_facts SET value = x'0000000000000001'")
    with open_positions(tmp_path, "q") as store:
        store.clear_checkpoints()
    assert ("schema_version",) in bare.execute("SELECT name FROM holdfast_position_facts").fetchall()
    bare.close()


BAD_SEQUENCES = {"short": b"\0" * 7, "long": b"\0" * 9, "empty": b"", "text": "00000001", "number": 7}


@pytest.mark.parametrize("bad", BAD_SEQUENCES.values(), ids=BAD_SEQUENCES.keys())
def test_a_stored_value_of_the_wrong_shape_is_corrupt_and_never_a_default(
    store: SQLSourceCheckpointStore, bare: sqlite3.Connection, bad: Any
) -> None:
    committed(store, ("s", 5, b"p"), ("t", 6))
    for name in ("config_hash", "generation", "result_sequence:q"):
        bare.execute("INSERT INTO holdfast_position_facts VALUES ('q', ?, ?)", (name, bad))
    bare.execute("UPDATE holdfast_positions SET sequence = ? WHERE source_id = 's'", (bad,))

    for read in (
        lambda: store.read_checkpoint("s"),
        store.read_all_checkpoints,
        store.read_config_hash,
        store.read_generation,
        lambda: store.read_result_sequence("q"),
        store.clear_checkpoints,
    ):
        with pytest.raises(CorruptError):
            read()
    with store.session(), pytest.raises(CorruptError):
        store.stage_checkpoint("s", 9)
    assert store.read_checkpoint("t") == SourceCheckpoint(6, None)


def test_a_position_that_is_no_blob_and_a_marker_with_a_value_are_corrupt(
    store: SQLSourceCheckpointStore, bare: sqlite3.Connection
) -> None:
    committed(store, ("s", 5, b"p"))
    bare.execute("UPDATE holdfast_positions SET source_position = 'text'")
    bare.execute("INSERT INTO holdfast_position_facts VALUES ('q', 'marker:bootstrapped', x'01')")

    with pytest.raises(CorruptError):
        store.read_checkpoint("s")
    with pytest.raises(CorruptError):
        store.read_markers()


def test_a_file_that_is_no_database_is_corrupt(tmp_path: Path, path: Path) -> None:
    path.write_bytes(b"this is no database, and long enough to be looked at " * 100)

    with pytest.raises(CorruptError):
        open_positions(tmp_path, "q")


def test_tables_of_somebody_else_are_not_ours(tmp_path: Path, path: Path) -> None:
    bare = sqlite3.connect(path)
    bare.execute("CREATE TABLE holdfast_positions (colour TEXT)")
    bare.close()

    with pytest.raises((CorruptError, StoreUnavailableError)):
        open_positions(tmp_path, "q").read_all_checkpoints()


# -- bad days


def test_a_database_locked_by_another_process_is_unavailable_and_nothing_changes(
    store: SQLSourceCheckpointStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_drivers, "BUSY_TIMEOUT_SECONDS", 0.1)
    committed(store, ("s", 1, b"one"))
    store._idle.drop_all()
    holder = subprocess.Popen(
        [
            *(sys.executable, "-c"),
            "import sqlite3, sys; c = sqlite3.connect(sys.argv[1], isolation_level=None); "
            "c.execute('BEGIN IMMEDIATE'); print('held', flush=True); sys.stdin.read()",
            str(path),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"

    with store.session() as session:
        store.stage_checkpoint("s", 2)
        with pytest.raises(StoreUnavailableError):
            session.commit()
        with pytest.raises(NoActiveSessionError):
            session.commit()
    with pytest.raises(StoreUnavailableError):
        store.write_config_hash(1)
    with pytest.raises(StoreUnavailableError):
        store.clear_checkpoints()
    assert store.read_checkpoint("s") == SourceCheckpoint(1, b"one")

    holder.communicate(b"")
    committed(store, ("s", 2))
    assert store.read_checkpoint("s") == SourceCheckpoint(2, b"one")


def test_a_read_only_database_can_be_read_and_says_so_when_written(tmp_path: Path, path: Path) -> None:
    with open_positions(tmp_path, "q") as writer:
        committed(writer, ("s", 1))

        store = SQLSourceCheckpointStore(lambda: sqlite3.connect(f"file:{path}?mode=ro", uri=True), "q")
        with store:
            assert store.read_checkpoint("s") == SourceCheckpoint(1, None)
            with pytest.raises(StoreUnavailableError):
                committed(store, ("s", 2))
            with pytest.raises(StoreUnavailableError):
                store.write_marker(Marker.RESETTING)
            assert store.read_checkpoint("s") == SourceCheckpoint(1, None)


FULL_DISK = """
import resource, signal, sys
from holdfast.errors import HoldfastError, StoreUnavailableError, OutcomeUnknownError
from holdfast.positions import open_positions
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = open_positions(sys.argv[1], "q")
with store.session() as session:
    store.stage_checkpoint("s", 1, b"one")
    session.commit()
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
error = None
for number in range(2, 60):
    try:
        with store.session() as session:
            for name in "stuv":
                store.stage_checkpoint(name, number, bytes(60_000))
            session.commit()
        last = number
    except HoldfastError as caught:
        error = caught
        break
assert isinstance(error, (StoreUnavailableError, OutcomeUnknownError)), error
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
seen = store.read_all_checkpoints()
assert len({each.sequence for name, each in seen.items() if len(seen) > 1}) <= 1, seen
print(type(error).__name__, seen["s"].sequence, number)
with store.session() as session:
    store.stage_checkpoint("s", 1000, b"after")
    session.commit()
assert store.read_checkpoint("s").source_position == b"after"
store.close()
print("usable")
"""


def test_a_full_disk_is_said_and_the_store_is_usable_afterwards(tmp_path: Path) -> None:
    told = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path)], capture_output=True, text=True, check=False
    )

    assert told.returncode == 0, told.stderr
    kind, stands_at, failed_at = told.stdout.split()[:3]
    assert kind in ("StoreUnavailableError", "OutcomeUnknownError")
    if kind == "StoreUnavailableError":
        assert int(stands_at) < int(failed_at), "an error that claims failure, for a commit that was done"
    assert told.stdout.split()[-1] == "usable"


def test_a_commit_that_ends_in_an_io_error_never_claims_failure(
    store: SQLSourceCheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = sql_drivers.SqliteDriver.commit

    def failing(driver: Any, connection: Any) -> None:
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
        raise driver._uncertain(error)

    monkeypatch.setattr(sql_drivers.SqliteDriver, "commit", failing)
    with pytest.raises(OutcomeUnknownError):
        committed(store, ("s", 1))

    monkeypatch.setattr(sql_drivers.SqliteDriver, "commit", real)
    committed(store, ("s", 1))


def test_a_clear_that_dies_between_two_statements_changes_nothing(
    store: SQLSourceCheckpointStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    committed(store, ("s", 5, b"p"), ("t", 6))
    store.write_config_hash(7)
    store.write_result_sequence("q", 8)
    store.write_marker(Marker.BOOTSTRAPPED)
    real = sql_drivers.SqliteDriver.execute_many
    left = 0

    def dying(driver: Any, *args: Any) -> int:
        nonlocal left
        left -= 1
        if left < 0:
            raise sqlite3.OperationalError("the disk is gone")
        return real(driver, *args)

    for survived in range(3):
        left = survived
        monkeypatch.setattr(sql_drivers.SqliteDriver, "execute_many", dying)
        with pytest.raises(StoreUnavailableError):
            store.clear_checkpoints()
        monkeypatch.setattr(sql_drivers.SqliteDriver, "execute_many", real)

        with open_positions(tmp_path, "q") as again:
            assert again.read_all_checkpoints() == {
                "s": SourceCheckpoint(5, b"p"),
                "t": SourceCheckpoint(6, None),
            }
            assert (again.read_config_hash(), again.read_result_sequence("q")) == (7, 8)
            assert (again.read_markers(), again.read_generation()) == ({Marker.BOOTSTRAPPED}, 0)
    store.clear_checkpoints()
    assert store.read_generation() == 1


def test_every_commit_is_fsynced_and_sync_false_asks_for_none(tmp_path: Path) -> None:
    levels = {}
    for sync in (True, False):
        with open_positions(tmp_path, "q", sync=sync) as store:
            assert isinstance(store, SQLSourceCheckpointStore)
            levels[sync] = store._idle.run(
                lambda connection: connection.execute("PRAGMA synchronous").fetchone()
            )

    assert levels == {True: (2,), False: (1,)}


def test_a_session_holds_no_lock_before_its_commit(
    store: SQLSourceCheckpointStore, bare: sqlite3.Connection
) -> None:
    bare.execute("PRAGMA busy_timeout = 0")
    with store.session() as session:
        store.stage_checkpoint("s", 1)
        bare.execute("CREATE TABLE theirs (n INTEGER)")
        bare.execute("INSERT INTO theirs VALUES (1)")
        session.commit()

    assert store.read_checkpoint("s") == SourceCheckpoint(1, None)


WRITER = """
import sys
from holdfast.positions import open_positions
place, *sources = sys.argv[1:]
with open_positions(place, "q") as store:
    print("open", flush=True)
    sys.stdin.readline()
    for number in range(1, 41):
        with store.session() as session:
            for source in sources:
                store.stage_checkpoint(source, number, b"%d" % number)
            session.commit()
"""


def test_two_processes_write_and_a_third_never_reads_a_mix(tmp_path: Path) -> None:
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path), *names],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for names in (["a1", "a2"], ["b1", "b2"])
    ]
    with open_positions(tmp_path, "q") as store:
        for writer in writers:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"open\n"
        for writer in writers:
            assert writer.stdin is not None
            writer.stdin.write(b"go\n")
            writer.stdin.flush()
        looked = 0
        while any(writer.poll() is None for writer in writers):
            seen = store.read_all_checkpoints()
            looked += 1
            for one, two in (("a1", "a2"), ("b1", "b2")):
                assert seen.get(one) == seen.get(two)
            for entry in seen.values():
                assert entry.source_position == b"%d" % entry.sequence
        for writer in writers:
            writer.communicate()

        assert looked
        assert [writer.returncode for writer in writers] == [0, 0]
        assert {entry.sequence for entry in store.read_all_checkpoints().values()} == {40}


def test_threads_share_a_store_made_of_connections_that_they_may_not_share(path: Path) -> None:
    store = SQLSourceCheckpointStore(lambda: sqlite3.connect(path), "q")
    failures: list[BaseException] = []

    def use(name: str) -> None:
        try:
            for number in range(20):
                store.write_result_sequence(name, number)
                assert store.read_result_sequence(name) == number
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=use, args=(f"q{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    store.close()

    assert failures == []


# -- the caller's own transaction


@pytest.fixture
def mine(store: SQLSourceCheckpointStore, path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE mine (n INTEGER PRIMARY KEY)")
    connection.commit()
    yield connection
    connection.close()


def rows(path: Path) -> list[int]:
    connection = sqlite3.connect(path)
    found = [n for (n,) in connection.execute("SELECT n FROM mine ORDER BY n")]
    connection.close()
    return found


def test_the_callers_rows_and_the_positions_land_together(
    store: SQLSourceCheckpointStore, mine: sqlite3.Connection, path: Path
) -> None:
    with store.session(mine) as session:
        mine.execute("INSERT INTO mine VALUES (1)")
        store.stage_checkpoint("s", 1, b"p")
        store.stage_result_sequence("q", 1)
        assert rows(path) == []
        session.commit()

    assert rows(path) == [1]
    assert store.read_checkpoint("s") == SourceCheckpoint(1, b"p")
    assert store.read_result_sequence("q") == 1


def test_leaving_without_a_commit_takes_the_callers_rows_back_too(
    store: SQLSourceCheckpointStore, mine: sqlite3.Connection, path: Path
) -> None:
    with store.session(mine):
        mine.execute("INSERT INTO mine VALUES (1)")
        store.stage_checkpoint("s", 1)

    assert rows(path) == []
    assert mine.in_transaction is False
    assert store.read_checkpoint("s") is None


def test_a_session_with_nothing_staged_still_commits_the_callers_rows(
    store: SQLSourceCheckpointStore, mine: sqlite3.Connection, path: Path
) -> None:
    with store.session(mine) as session:
        mine.execute("INSERT INTO mine VALUES (1)")
        session.commit()

    assert rows(path) == [1]


def test_an_inner_session_joins_and_another_connection_does_not(
    store: SQLSourceCheckpointStore, mine: sqlite3.Connection, path: Path
) -> None:
    other = sqlite3.connect(path)
    with store.session(mine) as session:
        mine.execute("INSERT INTO mine VALUES (1)")
        with store.session() as inner:
            store.stage_checkpoint("s", 1)
            inner.commit()
        with store.session(mine) as inner:
            inner.commit()
        with pytest.raises(InvalidInputError):
            store.session(other).begin()
        session.commit()
    other.close()

    assert rows(path) == [1]
    assert store.read_checkpoint("s") == SourceCheckpoint(1, None)


def test_a_connection_that_makes_dicts_of_rows_is_as_good(
    store: SQLSourceCheckpointStore, mine: sqlite3.Connection, path: Path
) -> None:
    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(path)
        connection.row_factory = lambda cursor, row: {"the": "row"}
        return connection

    connection = connect()
    with SQLSourceCheckpointStore(connect, "q") as dicts:
        with dicts.session(connection) as session:
            connection.execute("INSERT INTO mine VALUES (1)")
            dicts.stage_checkpoint("s", 1, b"p")
            session.commit()
        with dicts.session(connection) as session:
            dicts.stage_checkpoint("s", 2)
            committed(store, ("s", 9))
            with pytest.raises(SequenceRegressionError):
                session.commit()
        assert dicts.read_all_checkpoints() == {"s": SourceCheckpoint(9, b"p")}
    connection.close()


def test_a_rival_that_went_past_takes_the_callers_rows_back(
    store: SQLSourceCheckpointStore, mine: sqlite3.Connection, path: Path, tmp_path: Path
) -> None:
    with store.session(mine) as session:
        store.stage_checkpoint("s", 1)
        with open_positions(tmp_path, "q") as rival:
            committed(rival, ("s", 5))
        mine.execute("INSERT INTO mine VALUES (1)")
        with pytest.raises(SequenceRegressionError):
            session.commit()

    assert rows(path) == []
    assert mine.in_transaction is False
    assert store.read_checkpoint("s") == SourceCheckpoint(5, None)


def test_a_commit_that_is_refused_takes_the_callers_rows_back(
    store: SQLSourceCheckpointStore, mine: sqlite3.Connection, path: Path
) -> None:
    mine.execute("CREATE TABLE child (n INTEGER REFERENCES mine (n) DEFERRABLE INITIALLY DEFERRED)")
    mine.execute("PRAGMA foreign_keys = ON")
    mine.commit()

    with store.session(mine) as session:
        mine.execute("INSERT INTO mine VALUES (1)")
        mine.execute("INSERT INTO child VALUES (99)")
        store.stage_checkpoint("s", 1)
        with pytest.raises(StoreUnavailableError):
            session.commit()

    assert rows(path) == []
    assert mine.in_transaction is False
    assert store.read_checkpoint("s") is None


def test_a_connection_of_another_kind_or_in_autocommit_is_refused(
    store: SQLSourceCheckpointStore, path: Path
) -> None:
    auto = sqlite3.connect(path, isolation_level=None)
    wrong: list[Callable[[], Any]] = [lambda: auto, object, lambda: "connection"]

    for make in wrong:
        with pytest.raises(InvalidInputError):
            store.session(make())
    auto.close()


def test_a_stranger_cannot_roll_the_callers_transaction_back(
    store: SQLSourceCheckpointStore, path: Path, mine: sqlite3.Connection
) -> None:
    with store.session(mine) as session:
        mine.execute("INSERT INTO mine VALUES (1)")
        refused: list[type[BaseException]] = []

        def stranger() -> None:
            try:
                session.rollback()
            except ForeignSessionError:
                refused.append(ForeignSessionError)

        thread = threading.Thread(target=stranger)
        thread.start()
        thread.join()
        session.commit()

    assert refused == [ForeignSessionError]
    assert rows(path) == [1]


# -- which connections


def test_a_function_that_returns_no_database_connection_is_refused() -> None:
    class Odd:
        def close(self) -> None: ...

    for odd in (Odd, lambda: sqlite3.connect(":memory:")):
        with pytest.raises(InvalidInputError):
            SQLSourceCheckpointStore(odd, "q")


def test_a_dialect_that_contradicts_the_connection_is_refused(path: Path) -> None:
    for dialect in ("postgresql", "mysql"):
        with pytest.raises(InvalidInputError):
            SQLSourceCheckpointStore(lambda: sqlite3.connect(path), "q", dialect=dialect)
        with pytest.raises(InvalidInputError):
            SQLSourceCheckpointStore(f"sqlite:///{path}", "q", dialect=dialect)
    SQLSourceCheckpointStore(lambda: sqlite3.connect(path), "q", dialect="sqlite").close()


def test_after_close_no_file_is_held(tmp_path: Path, path: Path) -> None:
    with open_positions(tmp_path, "q") as store:
        committed(store, ("s", 1))
        store.read_all_checkpoints()

    held = [link for link in Path("/proc/self/fd").iterdir() if _target(link).startswith(str(path))]
    assert held == []


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:
        return ""
