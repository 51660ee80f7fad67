"""Source positions in two tables of a SQL database: SQLite, the embedded default, and PostgreSQL.

    holdfast_positions      (query_id, source_id, sequence, source_position)   one row an entry
    holdfast_position_facts (query_id, name, value)                            numbers and markers

Numbers are 8 bytes big-endian, so that the database compares them as what they are: neither
engine has an unsigned 64-bit type. A session is one transaction, on a connection of the store's or
on the caller's own: then the caller's rows and the positions land together or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from holdfast.errors import (
    CorruptError,
    InvalidInputError,
    OutcomeUnknownError,
    SequenceRegressionError,
    StoreUnavailableError,
)
from holdfast.positions.base import KEEP, MAX_U64, Guard, Marker, SourceCheckpoint, checked_id
from holdfast.positions.persistent import (
    PersistentStore,
    Staged,
    StagedCheckpoint,
    check_schema,
    known_markers,
    make_directory,
    number_from_bytes,
    number_to_bytes,
    session_through,
)
from holdfast.positions.session import Session
from holdfast.positions.sql_drivers import (
    Connection,
    Driver,
    Row,
    UncertainCommit,
    driver_for_function,
    postgresql_driver,
    sqlite_driver,
)
from holdfast.positions.sql_idle import Idle

_TABLES = """
CREATE TABLE IF NOT EXISTS holdfast_positions (
    query_id TEXT NOT NULL, source_id TEXT NOT NULL, sequence {blob} NOT NULL, source_position {blob},
    PRIMARY KEY (query_id, source_id)
);
CREATE TABLE IF NOT EXISTS holdfast_position_facts (
    query_id TEXT NOT NULL, name TEXT NOT NULL, value {blob} NOT NULL,
    PRIMARY KEY (query_id, name)
)
"""
_COLUMNS = "SELECT source_id, sequence, source_position FROM holdfast_positions WHERE query_id = ?"
_FACT = "SELECT value FROM holdfast_position_facts WHERE query_id = ? AND name = ?"
_MARKERS = (
    "SELECT name, value FROM holdfast_position_facts WHERE query_id = ? AND substr(name, 1, 7) = 'marker:'"
)
_INSERT_FACT = "INSERT INTO holdfast_position_facts (query_id, name, value)"
_OVER_FACT = "ON CONFLICT (query_id, name) DO UPDATE SET value = excluded.value"
# Locks the row as well, whether it was there or not: two clears at once count twice.
_LOCK_GENERATION = (
    "INSERT INTO holdfast_position_facts (query_id, name, value) VALUES (?, 'generation', ?) "
    "ON CONFLICT (query_id, name) DO UPDATE SET value = holdfast_position_facts.value RETURNING value"
)
# Neither LIKE, which ignores case on SQLite, nor a range, which a collation may order otherwise.
_CLEAR_FACTS = (
    "DELETE FROM holdfast_position_facts WHERE query_id = ? AND "
    "(name IN ('config_hash', 'marker:bootstrapped') OR substr(name, 1, 16) = 'result_sequence:')"
)


class SQLSourceCheckpointStore(PersistentStore):
    """One query's positions in a database that others may share.

    ``target`` is a URL (``sqlite:///…``, ``postgresql://…``) or a function that returns a new
    DBAPI connection, called once per connection needed. ``sync``: every commit and every write at
    once is fsynced before it returns; without, a power cut may cost the last ones, never half of one.
    """

    def __init__(
        self,
        target: str | Callable[[], Connection],
        query_id: str,
        *,
        dialect: str | None = None,
        sync: bool = True,
        guard: Guard = "reject",
    ) -> None:
        super().__init__(guard=guard)
        self._query = checked_id(query_id, "query id")
        self._driver = _driver(target, dialect, sync)
        self._idle = Idle(self._driver)
        # The sources of the last session: the next one asks for all of them at once.
        self._hot: tuple[str, ...] = ()
        try:
            self._ensure_tables()
            check_schema(self._load_number("schema_version"), self._driver.where)
        except BaseException:
            self._idle.close()
            raise

    def session(self, connection: Connection | None = None) -> Session:
        """A handle on the store's session.

        Given the caller's open connection, the outer commit writes the staged rows through it and
        commits *that* connection; a rollback rolls it back. Such a commit is as durable as the
        caller's connection is set to be.
        """
        if connection is not None:
            self._driver.check_theirs(connection)
        return session_through(self, connection)

    # -- reading -------------------------------------------------------------------------------

    def _load(self, source_id: str) -> SourceCheckpoint | None:
        rows = self._rows(f"{_COLUMNS} AND source_id = ?", [self._query, source_id])
        return _entry(rows[0]) if rows else None

    def _load_all(self) -> dict[str, SourceCheckpoint]:
        entries: dict[str, SourceCheckpoint] = {}
        number = int.from_bytes
        for source_id, raw, position in self._rows(_COLUMNS, [self._query]):
            # What is plainly right goes the short way: there may be many thousands.
            if type(raw) is bytes and len(raw) == 8 and (type(position) is bytes or position is None):
                entries[source_id] = SourceCheckpoint(number(raw, "big"), position)
            else:
                entries[source_id] = _entry((source_id, raw, position))
        return entries

    def _load_number(self, name: str) -> int | None:
        rows = self._rows(_FACT, [self._query, name])
        return number_from_bytes(_bytes(rows[0][0], name), name) if rows else None

    def _load_markers(self) -> frozenset[Marker]:
        rows = self._rows(_MARKERS, [self._query])
        return known_markers({name.removeprefix("marker:"): _bytes(value, name) for name, value in rows})

    def _committed_sequence(self, source_id: str) -> int | None:
        # One statement for what this session will most likely stage. What a rival commits after
        # that is seen when the session is written: the write itself is guarded too.
        seen: dict[str, Any] | None = self._staged.seen
        if seen is None:
            seen = self._staged.seen = {}
        if source_id not in seen:
            wanted = dict.fromkeys([source_id, *(self._hot if not seen else ())])
            found: dict[str, Any] = {row[0]: row[1] for row in self._sequences(list(wanted))}
            seen.update({each: found.get(each) for each in wanted})
        raw = seen[source_id]
        return None if raw is None else number_from_bytes(raw, f"source_sequence:{source_id}")

    def _sequences(self, source_ids: Sequence[str]) -> list[Row]:
        marks = ", ".join("?" * len(source_ids))
        return self._rows(
            "SELECT source_id, sequence FROM holdfast_positions "
            f"WHERE query_id = ? AND source_id IN ({marks})",
            [self._query, *source_ids],
        )

    # -- writing -------------------------------------------------------------------------------

    def _store_number(self, name: str, value: int) -> None:
        self._set_fact(name, number_to_bytes(value))

    def _store_marker(self, marker: Marker) -> None:
        self._set_fact(f"marker:{marker}", b"")

    def _set_fact(self, name: str, value: bytes) -> None:
        row = (self._query, name, value)
        self._write(lambda connection: self._driver.insert_many(connection, _INSERT_FACT, _OVER_FACT, [row]))

    def _drop_marker(self, marker: Marker) -> None:
        self._write(
            lambda connection: self._driver.execute(
                connection,
                "DELETE FROM holdfast_position_facts WHERE query_id = ? AND name = ?",
                (self._query, f"marker:{marker}"),
            )
        )

    def _clear(self) -> None:
        def clear(connection: Connection) -> None:
            driver, query = self._driver, self._query
            ((raw,),) = driver.rows(connection, _LOCK_GENERATION, [query, number_to_bytes(0)])
            generation = number_from_bytes(_bytes(raw, "generation"), "generation")
            driver.execute(connection, "DELETE FROM holdfast_positions WHERE query_id = ?", [query])
            driver.execute(connection, _CLEAR_FACTS, [query])
            later = number_to_bytes(min(generation + 1, MAX_U64))
            driver.insert_many(connection, _INSERT_FACT, _OVER_FACT, [(query, "generation", later)])

        self._write(clear)

    def _write_session(self, staged: Staged) -> None:
        if staged.connection is not None:
            self._write_through(staged)
        elif staged:
            self._write(lambda connection: self._apply(connection, staged), staged)
        self._hot = tuple(staged.checkpoints)[:_HOT_SOURCES]

    def _write_through(self, staged: Staged) -> None:
        driver, connection = self._driver, staged.connection
        token = None
        try:
            with driver.errors():
                token = driver.token(connection)
                self._apply(connection, staged)
                driver.commit_theirs(connection)
        except UncertainCommit as uncertain:
            self._settle(uncertain, token, staged)
        except BaseException:
            self._discard(staged)
            raise

    def _discard(self, staged: Staged) -> None:
        if staged.connection is not None:
            with self._driver.errors():
                self._driver.rollback(staged.connection)

    def _apply(self, connection: Connection, staged: Staged) -> None:
        """Write what is staged inside the open transaction."""
        groups: dict[tuple[bool, bool], list[tuple[str, StagedCheckpoint]]] = {}
        # In one order everywhere, so that two writers never wait for each other in a ring.
        for source_id, entry in sorted(staged.checkpoints.items()):
            groups.setdefault((entry.position is KEEP, entry.guarded), []).append((source_id, entry))
        for (keeps, guarded), chosen in sorted(groups.items()):
            self._upsert(connection, chosen, keeps=keeps, guarded=guarded)
        facts = [
            (self._query, f"result_sequence:{query_id}", number_to_bytes(sequence))
            for query_id, sequence in sorted(staged.result_sequences.items())
        ]
        if facts:
            self._driver.insert_many(connection, _INSERT_FACT, _OVER_FACT, facts)

    def _upsert(
        self,
        connection: Connection,
        entries: list[tuple[str, StagedCheckpoint]],
        *,
        keeps: bool,
        guarded: bool,
    ) -> None:
        columns = (
            "query_id, source_id, sequence" if keeps else "query_id, source_id, sequence, source_position"
        )
        on_conflict = (
            "ON CONFLICT (query_id, source_id) DO UPDATE SET sequence = excluded.sequence"
            f"{'' if keeps else ', source_position = excluded.source_position'}"
            # Bytes of one length, big-endian: they compare as the numbers do.
            f"{' WHERE holdfast_positions.sequence <= excluded.sequence' if guarded else ''}"
        )
        rows: list[Row] = []
        for source_id, entry in entries:
            row = (self._query, source_id, number_to_bytes(entry.sequence))
            rows.append(row if keeps else (*row, entry.position))
        insert = f"INSERT INTO holdfast_positions ({columns})"
        changed = self._driver.insert_many(connection, insert, on_conflict, rows)
        if guarded and changed != len(rows):
            self._refuse_regression(connection, entries)

    def _refuse_regression(self, connection: Connection, entries: list[tuple[str, StagedCheckpoint]]) -> None:
        """A rival wrote since we looked. Names the first entry that would go back."""
        for source_id, entry in entries:
            if entry.ignored:
                continue
            ((raw,),) = self._driver.rows(
                connection,
                "SELECT sequence FROM holdfast_positions WHERE query_id = ? AND source_id = ?",
                [self._query, source_id],
            )
            stored = number_from_bytes(_bytes(raw, source_id), f"source_sequence:{source_id}")
            if stored > entry.sequence:
                raise SequenceRegressionError(source_id, stored, entry.sequence)

    # -- connections and transactions ----------------------------------------------------------

    def _rows(self, statement: str, values: Sequence[Any]) -> list[Row]:
        def read(connection: Connection) -> list[Row]:
            rows = self._driver.rows(connection, statement, values)
            self._driver.end_read(connection)
            return rows

        return self._idle.run(read)

    def _write(self, work: Callable[[Connection], object], staged: Staged | None = None) -> None:
        """Run ``work`` in a transaction of our own, durable on return."""
        token: Any = None

        def transaction(connection: Connection) -> None:
            nonlocal token
            token = self._driver.begin(connection)
            work(connection)
            self._driver.commit(connection)

        try:
            self._idle.run(transaction)
        except UncertainCommit as uncertain:
            self._settle(uncertain, token, staged)

    def _settle(self, uncertain: UncertainCommit, token: Any, staged: Staged | None) -> None:
        """Find out what a commit without a clear answer did. Returns if it was done."""
        if (
            staged is not None
            and staged.connection is not None
            and not self._driver.is_lost(staged.connection)
        ):
            self._discard(staged)
        if uncertain.settled_by_rollback:
            raise uncertain.error
        # Every other connection may be as broken as this one was.
        self._idle.drop_all()
        committed = self._driver.fate(token)
        if committed is False:
            raise uncertain.error
        # After a crash of the server a transaction number may be given out again, so what is
        # there must also be what we wrote.
        if committed and (staged is None or self._shows(staged)):
            return
        raise OutcomeUnknownError(
            f"{self._driver.where}: the reply to a commit was lost, and reading back did not settle it"
        ).with_hint("read the checkpoints back before staging again") from uncertain.error

    def _shows(self, staged: Staged) -> bool:
        try:
            entries = self._load_all()
            numbers = {each: self._load_number(f"result_sequence:{each}") for each in staged.result_sequences}
        except (StoreUnavailableError, CorruptError):
            return False
        return numbers == staged.result_sequences and all(
            source_id in entries and entries[source_id] == entry.over(entries[source_id])
            for source_id, entry in staged.checkpoints.items()
        )

    def _ensure_tables(self) -> None:
        try:
            self._rows(f"{_COLUMNS} AND source_id = ?", [self._query, ""])
            self._rows(_FACT, [self._query, ""])
        except (StoreUnavailableError, CorruptError):
            # Most likely not there yet. If it is something else, creating them says what.
            self._write(self._create_tables)

    def _create_tables(self, connection: Connection) -> None:
        if self._driver.dialect == "postgresql":
            # Two first opens at once: "if not exists" alone is not safe against a rival's create.
            self._driver.rows(connection, "SELECT pg_advisory_xact_lock(?::bigint)", [_CREATE_LOCK])
        blob = "BYTEA" if self._driver.dialect == "postgresql" else "BLOB"
        for statement in _TABLES.format(blob=blob).split(";"):
            self._driver.execute(connection, statement)

    def _release(self) -> None:
        self._idle.close()


def query_ids(target: str) -> list[str]:
    """The queries that have anything in the database at ``target``. Reads only: creates no tables."""
    driver = _driver(target, None, sync=True)
    connection = driver.open()
    try:
        with driver.errors():
            tables = driver.rows(connection, _TABLES_THERE[driver.dialect], ())
            found: set[str] = set()
            for (table,) in tables:
                found.update(
                    row[0] for row in driver.rows(connection, f"SELECT DISTINCT query_id FROM {table}", ())
                )
            return sorted(found)
    finally:
        driver.close(connection)


_OURS = "('holdfast_positions', 'holdfast_position_facts')"
_TABLES_THERE = {
    "sqlite": f"SELECT name FROM sqlite_master WHERE name IN {_OURS}",
    "postgresql": "SELECT relname FROM pg_class "
    f"WHERE relname IN {_OURS} AND relkind IN ('r', 'p') AND pg_table_is_visible(oid)",
}
_CREATE_LOCK = 0x686F6C6466617374  # "holdfast"
#: How many sources are looked up ahead. Databases limit the parameters of one statement.
_HOT_SOURCES = 1_000


def _driver(target: str | Callable[[], Connection], dialect: str | None, sync: bool) -> Driver:
    if callable(target):
        return driver_for_function(target, dialect, sync=sync)
    if isinstance(target, str) and target.startswith("sqlite:///"):
        path = target.removeprefix("sqlite:///")
        if not path or path.startswith(":memory:"):
            raise InvalidInputError("sqlite:/// needs the path of a file; memory:// is the store in memory")
        found = sqlite_driver(path, sync=sync)
        make_directory(Path(path).absolute().parent)
    elif isinstance(target, str) and target.startswith("postgresql://"):
        found = postgresql_driver(target, sync=sync)
    else:
        raise InvalidInputError(
            f"a target is sqlite:///…, postgresql://… or a function that returns a connection, not {target!r}"
        )
    if dialect is not None and dialect != found.dialect:
        raise InvalidInputError(f"the URL is {found.dialect}, and dialect says {dialect!r}")
    return found


def _entry(row: Row) -> SourceCheckpoint:
    source_id, raw, position = row
    key = f"source_sequence:{source_id}"
    sequence = number_from_bytes(_bytes(raw, key), key)
    return SourceCheckpoint(
        sequence, None if position is None else _bytes(position, f"source_position:{source_id}")
    )


def _bytes(raw: Any, key: str) -> bytes:
    """Drivers differ in what they call bytes; whatever is not, is corrupt."""
    if isinstance(raw, (bytes, bytearray, memoryview)):
        return bytes(raw)
    raise CorruptError(key, f"bytes were expected, and this is {type(raw).__name__}")
