"""What differs from database to database, and how a URL finds its dialect. No epochs, no Spark.

A dialect opens short connections: a sink lives for weeks, its database may restart. Every error
that leaves one is typed, and names no password.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeAlias

from holdfast.errors import InvalidInputError

_URL = re.compile(r"([a-z][a-z0-9+]*)://(.*)", re.DOTALL)

Row: TypeAlias = tuple[Any, ...]


class Connection(Protocol):
    """As much of DB-API as a sink needs."""

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> Cursor: ...


class Cursor(Protocol):
    def fetchone(self) -> Any: ...
    def fetchall(self) -> list[Any]: ...


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of a table that is there. One with ``needs_value`` is NOT NULL and has no default."""

    name: str
    needs_value: bool
    is_generated: bool = False
    # Its type, where the database may refuse a value for it.
    strict_type: str | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """A table that is there. ``unique`` are the sets of columns that it keeps unique."""

    columns: tuple[TableColumn, ...]
    unique: tuple[frozenset[str], ...]
    # Whether it holds more rules than the key we would give it ourselves.
    may_refuse_rows: bool


class Dialect(ABC):
    """One database. ``place`` names it in messages, without its password."""

    #: Whether Spark's tasks can load rows into it, each by its own connection.
    takes_many_writers: ClassVar[bool] = False
    #: What stands for a parameter in SQL.
    mark: ClassVar[str] = "?"
    #: SQL type of a column by the kind of its values, ``name`` being short text that is compared.
    types: ClassVar[Mapping[str, str]]

    def __init__(self, place: str) -> None:
        self.place = place

    @abstractmethod
    def reading(self) -> AbstractContextManager[Connection | None]:
        """A connection that changes nothing; None where there is no database yet."""

    @abstractmethod
    def transaction(self) -> AbstractContextManager[Connection]:
        """A connection in one transaction, durable once the block has ended, undone if it raises."""

    @abstractmethod
    def table(self, connection: Connection, name: str) -> Table | None:
        """What is known of a table, or None if there is none."""

    @abstractmethod
    def tables(self, connection: Connection, prefix: str) -> list[str]:
        """Names of tables that start with ``prefix``."""

    @abstractmethod
    def create_staging(self, connection: Connection, name: str, kinds: Sequence[str]) -> None:
        """Make a staging table with the columns c0, c1, … for bound values of ``kinds``."""

    @abstractmethod
    def load(self, connection: Connection, table: str, kinds: Sequence[str], rows: Iterable[Row]) -> None:
        """Put rows of bound values, of these kinds, into a table, as fast as this database can."""

    @abstractmethod
    def binder(self, kind: str) -> Callable[[Any], Any]:
        """What turns a carrier of ``kind``, never None, into a bound value."""

    def before_creating(self, connection: Connection) -> None:  # noqa: B027
        """Wait until no rival transaction may create a table that this one is about to look for."""

    def same(self, name: str) -> str:
        """``name`` as this database compares names."""
        return name

    def quoted(self, name: str) -> str:
        """An identifier that means exactly ``name``."""
        if "\0" in name:
            raise InvalidInputError(f"{name!r} is no name for a table or column: it holds a NUL")
        return '"' + name.replace('"', '""') + '"'

    def quoted_table(self, name: str) -> str:
        return self.quoted(name)

    def sql_type(self, kind: str) -> str:
        """The column type for values of ``kind``."""
        name, bracket, size = kind.partition("(")
        return self.types[name] + (bracket + size if self.types[name] in ("numeric", "decimal") else "")

    def upsert(self, table: str, columns: Sequence[str], key: Sequence[str], select: str) -> str:
        """INSERT what ``select`` gives, replacing rows of the same key."""
        others = [column for column in columns if column not in key]
        replaced = ", ".join(f"{column} = excluded.{column}" for column in others)
        action = f"DO UPDATE SET {replaced}" if others else "DO NOTHING"
        return f"INSERT INTO {table} ({', '.join(columns)}) {select} ON CONFLICT ({', '.join(key)}) {action}"


def open_dialect(url: str) -> Dialect:
    """The dialect of a database's URL. Raises InvalidInputError, and never repeats the URL's secrets."""
    matched = _URL.fullmatch(url) if isinstance(url, str) else None
    if matched is None:
        raise InvalidInputError("a database is named by a URL: sqlite:///relative.db or sqlite:////abs.db")
    scheme, rest = matched.groups()
    if scheme == "sqlite":
        from holdfast.spark.sinks.sqlite import SQLite

        return SQLite.at(rest)
    if scheme == "duckdb":
        from holdfast.spark.sinks.duckdb import DuckDB

        return DuckDB.at(rest)
    if scheme in ("postgresql", "postgres"):
        from holdfast.spark.sinks.postgres import PostgreSQL

        return PostgreSQL(url)
    raise InvalidInputError(f"a Database sink on {scheme}:// is not supported yet").with_hint(
        "sqlite:///relative.db, sqlite:////abs.db, duckdb:///relative.duckdb and postgresql://host/db are"
    )
