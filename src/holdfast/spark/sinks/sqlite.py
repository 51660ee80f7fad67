"""SQLite, as a Database sink needs it: one file, one writer at a time, every commit on disk.

Rows come through the driver: only one process can write at a time, and the file is on its machine.
"""

from __future__ import annotations

import math
import os
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, ClassVar

from holdfast.errors import (
    ConflictError,
    CorruptError,
    HoldfastError,
    InvalidInputError,
    StoreUnavailableError,
)
from holdfast.spark.sinks import disk
from holdfast.spark.sinks.dialects import Connection, Dialect, Row, Table, TableColumn
from holdfast.spark.sinks.values import datetime_text, timestamp_text

# How long a statement waits while another process writes.
_BUSY_SECONDS = 20.0

# Words of a table's definition that may make it refuse a row. A column of that name costs a rehearsal.
_RULES = re.compile(r"\b(CHECK|UNIQUE|NOT|REFERENCES|STRICT|CONFLICT)\b", re.IGNORECASE)

_TRY_LATER = {
    sqlite3.SQLITE_BUSY: "another process holds its lock",
    sqlite3.SQLITE_LOCKED: "another connection holds its lock",
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_IOERR: "the disk reported an I/O error",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened",
    sqlite3.SQLITE_READONLY: "it is read-only",
    sqlite3.SQLITE_PERM: "permission is denied",
    sqlite3.SQLITE_NOMEM: "out of memory",
    sqlite3.SQLITE_PROTOCOL: "its lock could not be had",
}


class SQLite(Dialect):
    """The database file ``path``. It and its directory are made by the first transaction."""

    #: SQLite has few types, and stores in a column what it is given: text stays text.
    types: ClassVar[Mapping[str, str]] = {
        "name": "TEXT",
        "smallint": "INTEGER",
        "int": "INTEGER",
        "bigint": "INTEGER",
        "boolean": "INTEGER",
        "float": "REAL",
        "double": "REAL",
        "decimal": "TEXT",
        "string": "TEXT",
        "binary": "BLOB",
        "date": "TEXT",
        "timestamp": "TEXT",
        "timestamp_ntz": "TEXT",
        "json": "TEXT",
        "text": "TEXT",
    }

    def __init__(self, path: str) -> None:
        super().__init__(f"the SQLite database {path}")
        self.path = path

    @classmethod
    def at(cls, rest: str) -> SQLite:
        """The database of ``sqlite://{rest}``: ``/relative.db``, or ``//absolute.db``."""
        path = rest[1:]
        if not rest.startswith("/") or not path or "\0" in path:
            raise InvalidInputError("a SQLite URL is sqlite:///relative.db or sqlite:////absolute.db")
        if path == ":memory:" or path.startswith("file:"):
            raise InvalidInputError("a Database sink needs a database file: what is in memory is not durable")
        return cls(os.path.abspath(path))

    @contextmanager
    def reading(self) -> Iterator[Connection | None]:
        if not os.path.exists(self.path):
            yield None
            return
        with self._errors():
            connection = self._for_reading()
            with closing(connection):
                yield connection

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        directory = os.path.dirname(self.path)
        if not os.path.isdir(directory):
            with disk.errors_of(directory, "creating"):
                disk.make_directory(directory)
        with self._errors(), closing(self._connect("rwc")) as connection:
            # EXTRA is FULL, and syncs the directory once the journal is gone: without that, a power cut
            # right after a commit may bring the journal back, and with it the rows before the commit.
            connection.execute("PRAGMA synchronous = EXTRA")
            # IMMEDIATE: wait for the lock here, not halfway through, where SQLite would rather fail.
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

    def table(self, connection: Connection, name: str) -> Table | None:
        found = connection.execute(
            "SELECT name, sql FROM sqlite_schema WHERE type IN ('table', 'view') AND lower(name) = lower(?)",
            (name,),
        ).fetchone()
        if found is None:
            return None
        quoted = self.quoted(found[0])
        columns, primary = [], []
        # Of each column: cid, name, type, notnull, default, place in the primary key, hidden.
        for _, column, type_, not_null, default, place, hidden in connection.execute(
            f"PRAGMA table_xinfo({quoted})"
        ).fetchall():
            # The one kind of key that SQLite numbers by itself.
            is_rowid = place == 1 and type_.upper() == "INTEGER"
            needs_value = bool(not_null) and default is None and not is_rowid
            columns.append(TableColumn(column, needs_value, is_generated=hidden in (2, 3)))
            if place:
                primary.append(column)
        unique = [frozenset(map(self.same, primary))] if primary else []
        # Of each index: seq, name, unique, origin, partial.
        for _, index, is_unique, origin, partial in connection.execute(
            f"PRAGMA index_list({quoted})"
        ).fetchall():
            if is_unique and origin != "pk":
                parts = [
                    row[2]
                    for row in connection.execute(f"PRAGMA index_info({self.quoted(index)})").fetchall()
                ]
                # A partial index, or one on an expression, keeps no columns unique; it may still refuse.
                whole = not partial and None not in parts
                unique.append(frozenset(map(self.same, parts)) if whole else frozenset())
        triggers = connection.execute(
            "SELECT 1 FROM sqlite_schema WHERE type = 'trigger' AND lower(tbl_name) = lower(?) LIMIT 1",
            (name,),
        ).fetchone()
        rules = triggers is not None or _RULES.search(found[1] or "") is not None
        return Table(tuple(columns), tuple(unique), rules)

    def tables(self, connection: Connection, prefix: str) -> list[str]:
        rows = connection.execute(
            "SELECT name FROM sqlite_schema WHERE type = 'table' AND substr(name, 1, ?) = ? ORDER BY name",
            (len(prefix), prefix),
        ).fetchall()
        return [row[0] for row in rows]

    def create_staging(self, connection: Connection, name: str, kinds: Sequence[str]) -> None:
        # Without types: what is staged is stored as it is bound, and the target's columns decide the rest.
        columns = ", ".join(f"c{number}" for number in range(len(kinds)))
        connection.execute(f"CREATE TABLE {self.quoted(name)} ({columns})")

    def load(self, connection: Connection, table: str, kinds: Sequence[str], rows: Iterable[Row]) -> None:
        marks = ", ".join("?" * len(kinds))
        # sqlite3's own executemany: a loop in C, one row after the other.
        connection.executemany(f"INSERT INTO {self.quoted(table)} VALUES ({marks})", rows)  # type: ignore[attr-defined]

    def binder(self, kind: str) -> Callable[[Any], Any]:
        return _BINDERS.get(kind.partition("(")[0], _as_it_is)

    def same(self, name: str) -> str:
        # SQLite folds ASCII alone.
        return "".join(chr(ord(one) + 32) if "A" <= one <= "Z" else one for one in name)

    # --- connections ---------------------------------------------------------------------------

    def _for_reading(self) -> sqlite3.Connection:
        connection = self._connect("ro")
        try:
            connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone()
        except sqlite3.OperationalError as error:
            connection.close()
            if error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN):
                raise
            # A writer was killed, and left its journal: whoever reads next has to roll it back.
            return self._connect("rw")
        return connection

    def _connect(self, mode: str) -> sqlite3.Connection:
        # isolation_level=None: no transaction begins but those that we begin.
        return sqlite3.connect(
            f"{Path(self.path).as_uri()}?mode={mode}",
            uri=True,
            timeout=_BUSY_SECONDS,
            isolation_level=None,
            # A sink is told to commit from whichever thread is free.
            check_same_thread=False,
        )

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise self._translated(error) from error

    def _translated(self, error: sqlite3.Error) -> HoldfastError:
        # Wrong calls (too many parameters, say) come without a code.
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        if code in _TRY_LATER:
            return StoreUnavailableError(f"{self.place}: {_TRY_LATER[code]} ({error})")
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            return CorruptError(self.path, str(error))
        return ConflictError(f"{self.place} refused: {error}")


def _as_it_is(value: Any) -> Any:
    return value


def _float(value: float) -> float | str:
    # SQLite turns NaN into NULL without a word. As text it is kept, and float() reads it.
    return "NaN" if math.isnan(value) else value


_BINDERS: dict[str, Callable[[Any], Any]] = {
    "boolean": int,
    "float": _float,
    "double": _float,
    # Never with an exponent.
    "decimal": lambda value: format(value, "f"),
    "binary": bytes,
    "date": lambda value: value.isoformat(),
    "timestamp": timestamp_text,
    "timestamp_ntz": datetime_text,
}
