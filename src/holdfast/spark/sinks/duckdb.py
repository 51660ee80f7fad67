"""DuckDB, as a Database sink needs it: one file, one process at a time.

Rows come through the driver, as Arrow. DuckDB locks its file for as long as a process has it open for
writing: a sink opens it for moments, and waits for its turn.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any, ClassVar

from holdfast.errors import (
    ConflictError,
    CorruptError,
    HoldfastError,
    InvalidInputError,
    MissingExtraError,
    StoreUnavailableError,
)
from holdfast.spark.sinks import disk
from holdfast.spark.sinks.dialects import Connection, Dialect, Row, Table, TableColumn

_BUSY_SECONDS = 20.0
_AGAIN_SECONDS = 0.02

# Words of a table's definition that may make it refuse a row, or compute a column.
_RULES = re.compile(r"\b(CHECK|FOREIGN|GENERATED|AS)\b|^CREATE VIEW", re.IGNORECASE)

# One process cannot have a file open twice with different settings, so its threads take turns.
_TURNS: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)


class DuckDB(Dialect):
    """The database file ``path``. It and its directory are made by the first transaction."""

    types: ClassVar[Mapping[str, str]] = {
        "name": "varchar",
        "smallint": "smallint",
        "int": "integer",
        "bigint": "bigint",
        "boolean": "boolean",
        "float": "float",
        "double": "double",
        "decimal": "decimal",
        "string": "varchar",
        "binary": "blob",
        "date": "date",
        "timestamp": "timestamp with time zone",
        "timestamp_ntz": "timestamp",
        "json": "json",
        "text": "varchar",
    }

    def __init__(self, path: str) -> None:
        super().__init__(f"the DuckDB database {path}")
        self.path = path
        self._duckdb = _imported()

    @classmethod
    def at(cls, rest: str) -> DuckDB:
        """The database of ``duckdb://{rest}``: ``/relative.duckdb``, or ``//absolute.duckdb``."""
        path = rest[1:]
        if not rest.startswith("/") or not path or "\0" in path or path == ":memory:":
            raise InvalidInputError("a DuckDB URL is duckdb:///relative.duckdb or duckdb:////absolute.duckdb")
        return cls(os.path.abspath(path))

    @contextmanager
    def reading(self) -> Iterator[Connection | None]:
        if not os.path.exists(self.path):
            yield None
            return
        with self._connected(read_only=True) as connection:
            yield connection

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        directory = os.path.dirname(self.path)
        if not os.path.isdir(directory):
            with disk.errors_of(directory, "creating"):
                disk.make_directory(directory)
        with self._connected(read_only=False) as connection:
            connection.execute("BEGIN")
            # Raising closes the connection, and with it the transaction.
            yield connection
            connection.execute("COMMIT")

    def table(self, connection: Connection, name: str) -> Table | None:
        found = connection.execute(
            "SELECT sql FROM (SELECT schema_name, table_name AS name, sql FROM duckdb_tables() UNION ALL "
            "SELECT schema_name, view_name, sql FROM duckdb_views() WHERE NOT internal) "
            "WHERE schema_name = current_schema() AND lower(name) = lower(?)",
            (name,),
        ).fetchone()
        if found is None:
            return None
        columns = connection.execute(
            "SELECT column_name, is_nullable, column_default, lower(data_type) FROM duckdb_columns() "
            "WHERE schema_name = current_schema() AND lower(table_name) = lower(?) ORDER BY column_index",
            (name,),
        ).fetchall()
        unique = connection.execute(
            "SELECT constraint_column_names FROM duckdb_constraints() WHERE schema_name = current_schema() "
            "AND lower(table_name) = lower(?) AND constraint_type IN ('PRIMARY KEY', 'UNIQUE')",
            (name,),
        ).fetchall()
        indexes = connection.execute(
            "SELECT 1 FROM duckdb_indexes() WHERE schema_name = current_schema() "
            "AND lower(table_name) = lower(?) AND is_unique LIMIT 1",
            (name,),
        ).fetchone()
        return Table(
            tuple(
                TableColumn(column, not nullable and default is None, strict_type=type_)
                for column, nullable, default, type_ in columns
            ),
            tuple(frozenset(map(self.same, names)) for (names,) in unique),
            indexes is not None or _RULES.search(found[0] or "") is not None,
        )

    def tables(self, connection: Connection, prefix: str) -> list[str]:
        rows = connection.execute(
            "SELECT table_name FROM duckdb_tables() WHERE schema_name = current_schema() "
            "AND starts_with(table_name, ?) ORDER BY table_name",
            (prefix,),
        ).fetchall()
        return [row[0] for row in rows]

    def create_staging(self, connection: Connection, name: str, kinds: Sequence[str]) -> None:
        columns = ", ".join(f"c{number} {self.sql_type(kind)}" for number, kind in enumerate(kinds))
        connection.execute(f"CREATE TABLE {self.quoted(name)} ({columns})")

    def load(self, connection: Connection, table: str, kinds: Sequence[str], rows: Iterable[Row]) -> None:
        arrow: Any = _arrow_table(kinds, rows)
        connection.register("_hf_rows", arrow)  # type: ignore[attr-defined]
        connection.execute(f"INSERT INTO {self.quoted(table)} SELECT * FROM _hf_rows")
        connection.unregister("_hf_rows")  # type: ignore[attr-defined]

    def binder(self, kind: str) -> Callable[[Any], Any]:
        return bytes if kind == "binary" else _as_it_is

    def same(self, name: str) -> str:
        return name.lower()

    # --- connections ---------------------------------------------------------------------------

    @contextmanager
    def _connected(self, *, read_only: bool) -> Iterator[Any]:
        until = time.monotonic() + _BUSY_SECONDS
        turn = _TURNS[self.path]
        if not turn.acquire(timeout=_BUSY_SECONDS):
            raise StoreUnavailableError(f"{self.place}: another thread holds it")
        try:
            with closing(self._connect(read_only=read_only, until=until)) as connection:
                yield connection
        except self._duckdb.Error as error:
            raise self._translated(error) from error
        finally:
            turn.release()

    def _connect(self, *, read_only: bool, until: float) -> Any:
        while True:
            try:
                return self._duckdb.connect(self.path, read_only=read_only)
            except self._duckdb.IOException as error:
                if "lock" not in str(error) or time.monotonic() > until:
                    raise
                time.sleep(_AGAIN_SECONDS)

    def _translated(self, error: Any) -> HoldfastError:
        # The first line says it; more lines are the statement, and advice.
        said = f"{self.place}: {str(error).splitlines()[0]}"
        if "not a valid DuckDB database" in said or isinstance(error, self._duckdb.SerializationException):
            return CorruptError(self.path, str(error).splitlines()[0])
        later = ("IOException", "TransactionException", "OutOfMemoryException", "FatalException")
        if isinstance(error, tuple(getattr(self._duckdb, name) for name in later)):
            return StoreUnavailableError(said)
        return ConflictError(said)


def _arrow_table(kinds: Sequence[str], rows: Iterable[Row]) -> Any:
    import pyarrow

    columns = list(zip(*rows, strict=True))
    arrays = [pyarrow.array(values, _arrow_type(kind)) for values, kind in zip(columns, kinds, strict=True)]
    return pyarrow.table(arrays, names=[f"c{number}" for number in range(len(arrays))])


def _arrow_type(kind: str) -> Any:
    import pyarrow

    if kind.startswith("decimal"):
        precision, scale = re.findall("[0-9]+", kind)
        return pyarrow.decimal128(int(precision), int(scale))
    types = {
        "smallint": pyarrow.int16(),
        "int": pyarrow.int32(),
        "bigint": pyarrow.int64(),
        "boolean": pyarrow.bool_(),
        "float": pyarrow.float32(),
        "double": pyarrow.float64(),
        "binary": pyarrow.binary(),
        "date": pyarrow.date32(),
        # The carrier is what Arrow stores: microseconds since 1970.
        "timestamp": pyarrow.timestamp("us", "UTC"),
        "timestamp_ntz": pyarrow.timestamp("us"),
    }
    return types.get(kind, pyarrow.string())


def _as_it_is(value: Any) -> Any:
    return value


def _imported() -> Any:
    try:
        import duckdb
    except ImportError as error:
        raise MissingExtraError("duckdb", "a Database sink on DuckDB") from error
    return duckdb
