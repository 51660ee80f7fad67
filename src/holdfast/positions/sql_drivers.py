"""The three kinds of database connection we speak through, and how they differ. No schema in here.

    sqlite3            standard library, dialect sqlite
    psycopg            the extra ``postgres``, dialect postgresql
    ADBC's DBAPI       whatever the caller's function returns, either dialect

A driver's ``begin`` may return a token of the transaction; ``fate`` later answers, over a fresh
connection, what became of it. That is how a commit whose reply was lost is settled.
"""

from __future__ import annotations

import sqlite3
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeAlias

from holdfast.errors import (
    CorruptError,
    HoldfastError,
    InvalidInputError,
    MissingExtraError,
    StoreUnavailableError,
)
from holdfast.positions.session import logger

Connection: TypeAlias = Any
Row: TypeAlias = Sequence[Any]
Connect: TypeAlias = Callable[[], Connection]

BUSY_TIMEOUT_SECONDS = 5.0
_SETTLE_SECONDS = 5.0
_TERMINATE_AFTER_SECONDS = 1.0


class UncertainCommit(Exception):
    """A commit gave no clear answer. Never leaves this package; ``error`` is what it would have been."""

    def __init__(self, error: HoldfastError, *, settled_by_rollback: bool) -> None:
        super().__init__(error, settled_by_rollback)
        self.error = error
        #: The database itself says that nothing was written.
        self.settled_by_rollback = settled_by_rollback


class Driver(ABC):
    """Statements are written with ``?``; each driver puts its own placeholder."""

    dialect: str
    #: A connection opened in one thread may be used by another, later.
    shareable = True

    def __init__(self, connect: Connect, where: str, *, sync: bool) -> None:
        self._connect = connect
        self.where = where
        self.sync = sync

    def open(self) -> Connection:
        """A connection of our own, ready to use."""
        with self.errors():
            connection = self._connect()
        try:
            with self.errors():
                self._set_up(connection)
        except BaseException:
            self.close(connection)
            raise
        return connection

    @abstractmethod
    def _set_up(self, connection: Connection) -> None: ...

    @abstractmethod
    def begin(self, connection: Connection) -> Any:
        """Open a write transaction on a connection of ours; returns its token or None."""

    def token(self, connection: Connection) -> Any:  # noqa: ARG002
        """The token of the transaction that is open on a caller's connection, or None."""
        return None

    @abstractmethod
    def commit(self, connection: Connection) -> None:
        """Commit a transaction of ours. Raises UncertainCommit, nothing else, when it does not return."""

    @abstractmethod
    def commit_theirs(self, connection: Connection) -> None:
        """The same for a caller's connection."""

    @abstractmethod
    def rollback(self, connection: Connection) -> None: ...

    def fate(self, token: Any) -> bool | None:  # noqa: ARG002
        """Whether the transaction was committed; None: cannot be told."""
        return None

    @abstractmethod
    def rows(self, connection: Connection, statement: str, values: Sequence[Any]) -> list[Row]: ...

    def end_read(self, connection: Connection) -> None:  # noqa: B027
        """Let go of the moment that a read on a connection of ours saw."""

    @abstractmethod
    def execute_many(self, connection: Connection, statement: str, rows: Sequence[Row]) -> int:
        """Run ``statement`` for each row; returns how many rows it changed, or -1 where that is not known."""

    def execute(self, connection: Connection, statement: str, values: Sequence[Any] = ()) -> None:
        self.execute_many(connection, statement, [values])

    def insert_many(self, connection: Connection, insert: str, on_conflict: str, rows: Sequence[Row]) -> int:
        """Insert ``rows``: columns of text, text, and then bytes. Returns what ``execute_many`` does."""
        marks = ", ".join("?" * len(rows[0]))
        return self.execute_many(connection, f"{insert} VALUES ({marks}) {on_conflict}", rows)

    @abstractmethod
    def check_theirs(self, connection: Connection) -> None:
        """Raises InvalidInputError for a connection of another kind, or in autocommit."""

    def is_lost(self, connection: Connection) -> bool:  # noqa: ARG002
        """Whether the connection itself is gone, so that a fresh one may fare better."""
        return False

    def close(self, connection: Connection) -> None:
        # It is given up in any case; most often it is broken already, and says so once more.
        with suppress(Exception):
            connection.close()

    @contextmanager
    def errors(self) -> Iterator[None]:
        """The driver's errors in our words."""
        try:
            yield
        except HoldfastError:
            raise
        except Exception as error:
            translated = self.translate(error)
            if translated is None:
                raise
            raise translated from error

    @abstractmethod
    def translate(self, error: Exception) -> HoldfastError | None: ...


class SqliteDriver(Driver):
    dialect = "sqlite"

    def __init__(self, connect: Connect, where: str, *, sync: bool, shareable: bool) -> None:
        super().__init__(connect, where, sync=sync)
        self.shareable = shareable

    def _set_up(self, connection: sqlite3.Connection) -> None:
        connection.isolation_level = None
        connection.row_factory = None
        connection.execute(f"PRAGMA busy_timeout = {int(BUSY_TIMEOUT_SECONDS * 1000)}")
        _prefer_wal(connection)
        # FULL fsyncs the log at each commit. NORMAL may lose the last ones to a power cut, never half of one.
        connection.execute(f"PRAGMA synchronous = {'FULL' if self.sync else 'NORMAL'}")

    def begin(self, connection: sqlite3.Connection) -> None:
        # IMMEDIATE: wait for the write lock here, where waiting is allowed, not halfway through.
        connection.execute("BEGIN IMMEDIATE")

    def commit(self, connection: sqlite3.Connection) -> None:
        try:
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise self._uncertain(error) from error

    def commit_theirs(self, connection: sqlite3.Connection) -> None:
        try:
            connection.commit()
        except sqlite3.Error as error:
            raise self._uncertain(error) from error

    def _uncertain(self, error: sqlite3.Error) -> UncertainCommit:
        # After an I/O error the log may hold a complete commit that a recovery would believe.
        code = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
        return UncertainCommit(
            self.translate(error) or StoreUnavailableError(str(error)),
            settled_by_rollback=code != sqlite3.SQLITE_IOERR,
        )

    def rollback(self, connection: sqlite3.Connection) -> None:
        connection.rollback()

    def rows(self, connection: sqlite3.Connection, statement: str, values: Sequence[Any]) -> list[Row]:
        cursor = connection.cursor()
        cursor.row_factory = None  # a caller's connection may be set to make dicts of rows
        return cursor.execute(statement, values).fetchall()

    def execute_many(self, connection: sqlite3.Connection, statement: str, rows: Sequence[Row]) -> int:
        if len(rows) == 1:
            return connection.execute(statement, rows[0]).rowcount
        return connection.executemany(statement, rows).rowcount

    def check_theirs(self, connection: Any) -> None:
        if not isinstance(connection, sqlite3.Connection):
            raise InvalidInputError(f"this store needs a sqlite3 connection, not {_kind(connection)}")
        # Python 3.12 has a second way to say autocommit.
        if connection.isolation_level is None and getattr(connection, "autocommit", -1) is not False:
            raise InvalidInputError("a session needs a connection that is not in autocommit mode")
        if getattr(connection, "autocommit", -1) is True:
            raise InvalidInputError("a session needs a connection that is not in autocommit mode")

    def translate(self, error: Exception) -> HoldfastError | None:
        if not isinstance(error, sqlite3.Error):
            return None
        code = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            return CorruptError(self.where, str(error))
        if code == sqlite3.SQLITE_TOOBIG:
            return InvalidInputError(str(error))
        if isinstance(error, sqlite3.ProgrammingError):
            return InvalidInputError(str(error))
        if "no such column" in str(error) or "has no column" in str(error):
            return CorruptError(self.where, f"its tables are not ours: {error}")
        return StoreUnavailableError(f"{self.where}: {error}")


def _prefer_wal(connection: sqlite3.Connection) -> None:
    """Readers that never wait for a writer, where the file lets us have them."""
    if connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal":
        return
    try:
        connection.execute("PRAGMA journal_mode = WAL")
    except sqlite3.OperationalError as error:
        # Read-only, or in use just now. The old mode is as safe; it only makes readers wait.
        logger.debug("a SQLite database stays out of WAL mode: %s", error)


class PsycopgDriver(Driver):
    dialect = "postgresql"

    def _set_up(self, connection: Any) -> None:
        if connection.info.transaction_status.name != "IDLE":
            connection.rollback()
        connection.autocommit = True
        (level,) = self._cursor(connection).execute("SHOW synchronous_commit").fetchone()
        if self.sync and level == "off":
            connection.execute("SET synchronous_commit = on")
        elif not self.sync and level != "off":
            connection.execute("SET synchronous_commit = off")

    def begin(self, connection: Any) -> Any:
        # Two statements, one round trip.
        cursor = self._cursor(connection).execute(f"BEGIN; {_TOKEN}")
        cursor.nextset()
        return cursor.fetchone()

    def token(self, connection: Any) -> Any:
        return self._cursor(connection).execute(_TOKEN).fetchone()

    def _cursor(self, connection: Any) -> Any:
        # A cursor of our own kind: a caller's connection may be set to make dicts of rows.
        import psycopg

        return psycopg.Cursor(connection, row_factory=psycopg.rows.tuple_row)

    def commit(self, connection: Any) -> None:
        import psycopg

        try:
            status = connection.execute("COMMIT").statusmessage
        except psycopg.Error as error:
            raise self._uncertain(connection, error) from error
        if status != "COMMIT":
            # An aborted transaction answers COMMIT with ROLLBACK, and no error.
            raise UncertainCommit(
                StoreUnavailableError(f"{self.where}: the transaction was rolled back"),
                settled_by_rollback=True,
            )

    def commit_theirs(self, connection: Any) -> None:
        import psycopg

        try:
            connection.commit()
        except psycopg.Error as error:
            raise self._uncertain(connection, error) from error

    def _uncertain(self, connection: Any, error: Exception) -> UncertainCommit:
        return UncertainCommit(
            self.translate(error) or StoreUnavailableError(str(error)),
            settled_by_rollback=not self.is_lost(connection),
        )

    def rollback(self, connection: Any) -> None:
        if connection.autocommit:
            connection.execute("ROLLBACK")
        else:
            connection.rollback()

    def fate(self, token: Any) -> bool | None:
        return _fate(self, token)

    def rows(self, connection: Any, statement: str, values: Sequence[Any]) -> list[Row]:
        cursor = self._cursor(connection).execute(statement.replace("?", "%s"), values, binary=True)
        rows: list[Row] = cursor.fetchall()
        return rows

    def execute_many(self, connection: Any, statement: str, rows: Sequence[Row]) -> int:
        statement = statement.replace("?", "%s")
        with self._cursor(connection) as cursor:
            if len(rows) == 1:
                cursor.execute(statement, rows[0])
            else:
                cursor.executemany(statement, rows)
            return int(cursor.rowcount)

    def insert_many(self, connection: Any, insert: str, on_conflict: str, rows: Sequence[Row]) -> int:
        # One statement over arrays: the server parses, plans and answers once.
        types = ["text", "text", *["bytea"] * (len(rows[0]) - 2)]
        arrays = ", ".join(f"?::{each}[]" for each in types)
        columns = [list(column) for column in zip(*rows, strict=True)]
        return self.execute_many(
            connection, f"{insert} SELECT * FROM unnest({arrays}) {on_conflict}", [columns]
        )

    def check_theirs(self, connection: Any) -> None:
        import psycopg

        if not isinstance(connection, psycopg.Connection):
            raise InvalidInputError(f"this store needs a psycopg connection, not {_kind(connection)}")
        if connection.autocommit:
            raise InvalidInputError("a session needs a connection that is not in autocommit mode")

    def is_lost(self, connection: Any) -> bool:
        return bool(connection.closed or connection.broken)

    def translate(self, error: Exception) -> HoldfastError | None:
        import psycopg
        from psycopg import errors

        if not isinstance(error, psycopg.Error):
            return None
        if isinstance(error, (errors.ProgramLimitExceeded, errors.DataError)):
            return InvalidInputError(f"{self.where}: {error}")
        if isinstance(error, (errors.UndefinedColumn, errors.DatatypeMismatch, errors.UndefinedFunction)):
            return CorruptError(self.where, f"its tables are not ours: {error}")
        return StoreUnavailableError(f"{self.where}: {error}")


class AdbcDriver(Driver):
    """Any ADBC connection through its DBAPI layer, in its manual commit mode."""

    def __init__(self, connect: Connect, where: str, *, sync: bool, dialect: str) -> None:
        super().__init__(connect, where, sync=sync)
        self.dialect = dialect

    def _set_up(self, connection: Any) -> None:
        if self.dialect == "sqlite":
            connection.adbc_connection.set_autocommit(True)
            for pragma in (
                f"busy_timeout = {int(BUSY_TIMEOUT_SECONDS * 1000)}",
                "journal_mode = WAL",
                f"synchronous = {'FULL' if self.sync else 'NORMAL'}",
            ):
                self.rows(connection, f"PRAGMA {pragma}", ())
            connection.adbc_connection.set_autocommit(False)
        elif not self.sync:
            self.execute(connection, "SET synchronous_commit = off")
            connection.commit()

    def begin(self, connection: Any) -> Any:
        # Whatever a read left open ends here: a write must see what is committed now.
        connection.rollback()
        return self.token(connection)

    def token(self, connection: Any) -> Any:
        return self.rows(connection, _TOKEN, ())[0] if self.dialect == "postgresql" else None

    def commit(self, connection: Any) -> None:
        try:
            connection.commit()
        except Exception as error:
            translated = self.translate(error)
            if translated is None:
                raise
            # SQLite's transaction is still open after a refused commit, and is rolled back by the caller.
            raise UncertainCommit(translated, settled_by_rollback=self.dialect == "sqlite") from error

    commit_theirs = commit

    def rollback(self, connection: Any) -> None:
        connection.rollback()

    def fate(self, token: Any) -> bool | None:
        return _fate(self, token) if token else None

    def rows(self, connection: Any, statement: str, values: Sequence[Any]) -> list[Row]:
        with connection.cursor() as cursor:
            cursor.execute(self._numbered(statement), list(values) or None)
            rows: list[Row] = cursor.fetchall()
            return rows

    def end_read(self, connection: Any) -> None:
        connection.rollback()

    def execute_many(self, connection: Any, statement: str, rows: Sequence[Row]) -> int:
        statement = self._numbered(statement)
        with connection.cursor() as cursor:
            if len(rows) == 1:
                cursor.execute(statement, list(rows[0]) or None)
            else:
                cursor.executemany(statement, [list(row) for row in rows])
        return -1

    def _numbered(self, statement: str) -> str:
        if self.dialect != "postgresql":
            return statement
        parts = statement.split("?")
        return parts[0] + "".join(f"${n}{part}" for n, part in enumerate(parts[1:], start=1))

    def check_theirs(self, connection: Any) -> None:
        if not _is_adbc(connection):
            raise InvalidInputError(f"this store needs an ADBC connection, not {_kind(connection)}")
        if getattr(connection, "_autocommit", False):
            raise InvalidInputError("a session needs a connection that is not in autocommit mode")

    def is_lost(self, connection: Any) -> bool:  # noqa: ARG002
        # ADBC does not say. A write that failed before its commit may be tried once more in any case.
        return self.dialect == "postgresql"

    def translate(self, error: Exception) -> HoldfastError | None:
        import adbc_driver_manager

        if not isinstance(error, adbc_driver_manager.Error):
            return None
        if isinstance(error, adbc_driver_manager.ProgrammingError) and "closed" in str(error):
            return InvalidInputError(str(error))
        if "file is not a database" in str(error) or "malformed" in str(error):
            return CorruptError(self.where, str(error))
        return StoreUnavailableError(f"{self.where}: {error}")


_TOKEN = "SELECT pg_current_xact_id()::text, pg_backend_pid()"


def _fate(driver: Driver, token: Row) -> bool | None:
    """What became of a PostgreSQL transaction, asked over a connection of its own."""
    number, process = token
    started = time.monotonic()
    asked_to_end = False
    while time.monotonic() - started < _SETTLE_SECONDS:
        try:
            connection = driver.open()
        except HoldfastError:
            return None
        try:
            with driver.errors():
                ((status,),) = driver.rows(connection, "SELECT pg_xact_status(?::xid8)", [number])
                if status in ("committed", "aborted"):
                    return bool(status == "committed")
                # Its connection is gone and it has not noticed. Ending it makes the answer final.
                if not asked_to_end and time.monotonic() - started > _TERMINATE_AFTER_SECONDS:
                    driver.rows(connection, "SELECT pg_terminate_backend(?::int)", [process])
                    asked_to_end = True
        except HoldfastError:
            return None
        finally:
            driver.close(connection)
        time.sleep(0.05)
    return None


def driver_for_function(connect: Connect, dialect: str | None, *, sync: bool) -> Driver:
    """The driver of whatever connections ``connect`` returns. Opens one to find out."""
    if dialect not in (None, "sqlite", "postgresql"):
        raise InvalidInputError(f'a dialect is "sqlite" or "postgresql", not {dialect!r}')
    connection = connect()
    kind = type(connection).__module__.partition(".")[0]
    try:
        if isinstance(connection, sqlite3.Connection):
            connection.row_factory = None
            if not connection.execute("PRAGMA database_list").fetchone()[2]:
                raise InvalidInputError("a SQLite database in memory cannot keep positions")
            found: Driver = SqliteDriver(connect, "the SQLite database", sync=sync, shareable=False)
        elif kind == "psycopg":
            found = PsycopgDriver(connect, "the PostgreSQL database", sync=sync)
        elif _is_adbc(connection):
            told = dialect or _adbc_dialect(connection)
            found = AdbcDriver(connect, f"the {told} database", sync=sync, dialect=told)
        else:
            raise InvalidInputError(f"not a kind of connection this store knows: {_kind(connection)}")
    finally:
        connection.close()
    if dialect is not None and dialect != found.dialect:
        raise InvalidInputError(f"the connections are {found.dialect}, and dialect says {dialect}")
    return found


def sqlite_driver(path: str, *, sync: bool) -> Driver:
    def connect() -> sqlite3.Connection:
        return sqlite3.connect(path, timeout=BUSY_TIMEOUT_SECONDS, check_same_thread=False)

    return SqliteDriver(connect, path, sync=sync, shareable=True)


def postgresql_driver(url: str, *, sync: bool) -> Driver:
    try:
        import psycopg
    except ImportError as error:
        raise MissingExtraError("postgres", "a store of positions in PostgreSQL") from error
    try:
        options = psycopg.conninfo.conninfo_to_dict(url)
    except psycopg.Error as error:
        raise InvalidInputError(f"not a PostgreSQL URL: {error}") from error
    where = f"postgresql://{options.get('host', '')}:{options.get('port', '')}/{options.get('dbname', '')}"
    parameters: dict[str, Any] = {"connect_timeout": 10, **options}

    def connect() -> Any:
        return psycopg.connect(**parameters)

    return PsycopgDriver(connect, where, sync=sync)


def _is_adbc(connection: Any) -> bool:
    return hasattr(connection, "adbc_connection") and hasattr(connection, "adbc_get_info")


def _adbc_dialect(connection: Any) -> str:
    vendor = str(connection.adbc_get_info().get("vendor_name", "")).lower()
    if "sqlite" in vendor:
        return "sqlite"
    if "postgres" in vendor:
        return "postgresql"
    raise InvalidInputError(f"cannot tell the dialect of {vendor or 'this ADBC connection'}: pass dialect=")


def _kind(connection: Any) -> str:
    return f"{type(connection).__module__}.{type(connection).__qualname__}"
