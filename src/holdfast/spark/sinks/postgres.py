"""PostgreSQL, as a Database sink needs it: Spark's tasks load rows with COPY, side by side.

The tables of ours lie where the sink's own would be made, in the first schema of the search path; a URL
chooses it: ``postgresql://host/database?options=-csearch_path%3Dmarts``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from holdfast.errors import (
    ConflictError,
    CorruptError,
    HoldfastError,
    InvalidInputError,
    MissingExtraError,
    StoreUnavailableError,
)
from holdfast.spark.sinks.dialects import Connection, Dialect, Row, Table, TableColumn
from holdfast.spark.sinks.values import timestamp_text

if TYPE_CHECKING:
    import psycopg

_CONNECT_SECONDS = 10
_LOCK_SECONDS = 20
_MAX_NAME_BYTES = 63
# Nobody else's, one hopes: "holdfast" as a number. It guards the making of tables, for moments.
_CREATING = 0x686F6C6466617374

# Classes of SQLSTATE after which the same call may go well.
_TRY_LATER = ("08", "40", "53", "55", "57", "58")

_SETTINGS = (
    # Whatever the database's default: a commit that returned is on disk, and no time zone takes part.
    "SET synchronous_commit = on",
    "SET TIME ZONE 'UTC'",
    f"SET lock_timeout = '{_LOCK_SECONDS}s'",
)

_COLUMNS = """
SELECT a.attname, a.attnotnull, a.atthasdef OR a.attidentity <> '', a.attgenerated <> '',
       format_type(a.atttypid, a.atttypmod), a.attnum
FROM pg_attribute a WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
_UNIQUE = """
SELECT i.indkey::int2[], i.indnkeyatts,
       i.indisvalid AND i.indimmediate AND i.indpred IS NULL AND i.indexprs IS NULL
FROM pg_index i WHERE i.indrelid = %s AND i.indisunique
"""
_RULES = """
SELECT EXISTS (SELECT FROM pg_constraint WHERE conrelid = %(oid)s AND contype IN ('c', 'f', 'x'))
    OR EXISTS (SELECT FROM pg_trigger WHERE tgrelid = %(oid)s AND NOT tgisinternal)
    OR EXISTS (SELECT FROM pg_class WHERE oid = %(oid)s AND (relkind <> 'r' OR relhasrules OR relrowsecurity))
"""


class PostgreSQL(Dialect):
    """The database at ``url``, as libpq understands it."""

    takes_many_writers = True
    mark = "%s"
    types: ClassVar[Mapping[str, str]] = {
        "name": "text",
        "smallint": "smallint",
        "int": "integer",
        "bigint": "bigint",
        "boolean": "boolean",
        "float": "real",
        "double": "double precision",
        "decimal": "numeric",
        "string": "text",
        "binary": "bytea",
        "date": "date",
        "timestamp": "timestamp with time zone",
        "timestamp_ntz": "timestamp without time zone",
        "json": "jsonb",
        "text": "text",
    }

    def __init__(self, url: str) -> None:
        self._url = url
        self._psycopg = _imported()
        try:
            told = self._psycopg.conninfo.conninfo_to_dict(url)
        except self._psycopg.Error:
            # Its own message may repeat the URL, password and all.
            raise InvalidInputError(
                "that is no PostgreSQL URL: postgresql://user@host:5432/database is one"
            ) from None
        self._secret = str(told.get("password") or "")
        where = f"{told.get('host') or 'localhost'}:{told.get('port') or 5432}"
        super().__init__(f"the PostgreSQL database {told.get('dbname') or 'of that user'} at {where}")

    @contextmanager
    def reading(self) -> Iterator[Connection | None]:
        with self._connected() as connection:
            connection.execute("SET default_transaction_read_only = on")
            yield connection

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        with self._connected() as connection:
            connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED")
            # Raising closes the connection, and with it the transaction.
            yield connection
            # A transaction that is broken answers COMMIT with ROLLBACK, and no error.
            if connection.execute("COMMIT").statusmessage != "COMMIT":
                raise StoreUnavailableError(f"{self.place} rolled the transaction back")

    def table(self, connection: Connection, name: str) -> Table | None:
        oid = connection.execute("SELECT to_regclass(%s)::oid", (self.quoted(name),)).fetchone()[0]
        if oid is None:
            return None
        columns, names = [], {}
        for column, not_null, has_value, generated, type_, number in connection.execute(
            _COLUMNS, (oid,)
        ).fetchall():
            needs_value = not_null and not has_value
            columns.append(TableColumn(column, needs_value, is_generated=generated, strict_type=type_))
            names[number] = column
        unique = []
        for numbers, count, whole in connection.execute(_UNIQUE, (oid,)).fetchall():
            unique.append(frozenset(names[number] for number in numbers[:count]) if whole else frozenset())
        rules = connection.execute(_RULES, {"oid": oid}).fetchone()[0]  # type: ignore[arg-type]
        return Table(tuple(columns), tuple(unique), rules)

    def tables(self, connection: Connection, prefix: str) -> list[str]:
        rows = connection.execute(
            "SELECT relname FROM pg_class WHERE relkind = 'r' "
            "AND relnamespace = to_regnamespace(quote_ident(current_schema())) "
            "AND starts_with(relname, %s) ORDER BY relname",
            (prefix,),
        ).fetchall()
        return [row[0] for row in rows]

    def create_staging(self, connection: Connection, name: str, kinds: Sequence[str]) -> None:
        # An ordinary table: what is UNLOGGED is empty after a crash.
        columns = ", ".join(f"c{number} {self.sql_type(kind)}" for number, kind in enumerate(kinds))
        connection.execute(f"CREATE TABLE {self.quoted(name)} ({columns})")

    def load(self, connection: Connection, table: str, kinds: Sequence[str], rows: Iterable[Row]) -> None:
        del kinds  # the table has typed columns
        cursor: Any = connection.cursor()  # type: ignore[attr-defined]
        with cursor, cursor.copy(f"COPY {self.quoted(table)} FROM STDIN") as copy:
            for row in rows:
                copy.write_row(row)

    def binder(self, kind: str) -> Callable[[Any], Any]:
        return _utc_text if kind == "timestamp" else bytes if kind == "binary" else _as_it_is

    def before_creating(self, connection: Connection) -> None:
        # CREATE TABLE IF NOT EXISTS of two transactions at once fails in one of them.
        connection.execute(f"SELECT pg_advisory_xact_lock({_CREATING})")

    def quoted(self, name: str) -> str:
        if len(name.encode()) > _MAX_NAME_BYTES:
            raise InvalidInputError(
                f"{name!r} is longer than the {_MAX_NAME_BYTES} bytes of a PostgreSQL name"
            )
        return super().quoted(name)

    # --- connections ---------------------------------------------------------------------------

    @contextmanager
    def _connected(self) -> Iterator[psycopg.Connection[Any]]:
        try:
            with self._psycopg.connect(
                self._url, autocommit=True, connect_timeout=_CONNECT_SECONDS
            ) as connection:
                for setting in _SETTINGS:
                    connection.execute(setting)
                yield connection
        except self._psycopg.Error as error:
            raise self._translated(error) from self._without_secret(error)

    def _translated(self, error: psycopg.Error) -> HoldfastError:
        said = f"{self.place}: {self._hidden(str(error).strip())}"
        state = error.sqlstate
        if state is None:
            if isinstance(error, self._psycopg.OperationalError):
                return StoreUnavailableError(said)
            # It never reached the server: a value that PostgreSQL has no form for.
            return ConflictError(said)
        if state.startswith(_TRY_LATER):
            return StoreUnavailableError(said)
        if state in ("XX001", "XX002"):
            return CorruptError(self.place, self._hidden(str(error)))
        if state.startswith(("28", "3D", "3F")):
            return InvalidInputError(said)
        return ConflictError(said)

    def _without_secret(self, error: psycopg.Error) -> psycopg.Error | None:
        return None if self._secret and self._secret in str(error) else error

    def _hidden(self, text: str) -> str:
        return text.replace(self._secret, "***") if self._secret else text


def _as_it_is(value: Any) -> Any:
    return value


def _utc_text(microseconds: int) -> str:
    return timestamp_text(microseconds) + "+00"


def _imported() -> Any:
    try:
        import psycopg
        import psycopg.conninfo
    except ImportError as error:
        raise MissingExtraError("postgres", "a Database sink on PostgreSQL") from error
    return psycopg
