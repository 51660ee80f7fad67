"""A sink of rows in a database's table. Its SQL is its dialect's, the types of Spark are ``values``'.

    prepare     rows ─► a staging table of this attempt, durable
    commit      one transaction: epoch row, staging table ─► table, staging table dropped
    outcome     is the epoch row there?

Beside the table stands ``_holdfast_epochs (flow, sink, epoch, checkpoint_id, rewound)``: an epoch's
rows are in the table if and only if its row is there and not rewound. Invariants; the code cites them:

T1  The epoch row and the epoch's rows are written by one transaction.
T2  The epoch row comes first in it: of two processes that commit the same epoch, one waits, then sees it.
T3  What would make the commit fail for good (a missing column, a key given twice, a broken rule of the
    table) is looked for in ``prepare``: after the decision it is too late.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from holdfast.coordinator.sink import Decided, Epoch, Outcome, SinkFlow, StagedOutputGoneError
from holdfast.errors import ConflictError, InvalidInputError
from holdfast.manifest import Receipt
from holdfast.spark.sinks.attempts import Attempt, attempt_tables, parse_table, part_table, table_prefix
from holdfast.spark.sinks.dialects import Connection, Row, Table, open_dialect
from holdfast.spark.sinks.epoch_table import EpochTable
from holdfast.spark.sinks.fetching import rows_of
from holdfast.spark.sinks.loading import load_on_executors
from holdfast.spark.sinks.values import Field, bound, carriers, fields_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Rows staged in one transaction: enough to hide its cost, few enough to hold in memory.
_ROWS_AT_ONCE = 20_000


class Database:
    """Rows in ``table`` of the database at ``url``: appended, or with ``key`` upserted.

    ``epoch_column`` is a column of the table that Holdfast fills with the epoch's number; appended
    rows that have one can be rewound.
    """

    def __init__(
        self, url: str, table: str, key: Sequence[str] = (), epoch_column: str | None = None
    ) -> None:
        if isinstance(key, str):
            raise InvalidInputError(f"key is a list of columns: [{key!r}]")
        if not table or table.lower().startswith(("_holdfast", "_hf_", "sqlite_")):
            raise InvalidInputError(f"{table!r} is no name for a sink's table")
        self._dialect = open_dialect(url)
        self.url = url
        self.table = table
        self.key = tuple(key)
        self.epoch_column = epoch_column
        self._same = self._dialect.same
        if len({self._same(name) for name in self.key}) < len(self.key):
            raise InvalidInputError(f"key names a column twice: {', '.join(self.key)}")
        self._owner: SinkFlow | None = None

    @property
    def computes_once(self) -> bool:
        """Whether ``prepare`` is one action that computes each partition once: nothing need be cached."""
        return self._dialect.takes_many_writers

    def __repr__(self) -> str:
        # Never the URL: it may hold a password.
        return f"Database({self._dialect.place!r}, table={self.table!r}, key={self.key!r})"

    @property
    def rewind_refusal(self) -> str | None:
        """Why ``rewind`` cannot be done, or None if it can."""
        if self.key:
            return f"rows that were upserted into {self.table!r} replaced older ones, which are not kept"
        if self.epoch_column is None:
            return f"no epoch_column says which rows of {self.table!r} came with which epoch"
        return None

    def open(self, flow: SinkFlow) -> Epoch | None:
        """Check the table, changing nothing, and say which epoch of ``flow`` is in it."""
        self._owner = flow
        with self._dialect.reading() as connection:
            if connection is None:
                return None
            table = self._dialect.table(connection, self.table)
            if table is not None:
                self._check_key(table)
            return self._epochs.newest(connection)

    def begin(self, epoch: Epoch) -> None:
        """See that the epoch can come next."""
        with self._dialect.reading() as connection:
            newest = self._epochs.newest(connection) if connection is not None else None
        if newest is not None and newest.number >= epoch.number:
            raise ConflictError(
                f"{self._dialect.place} already shows epoch {newest.number} of sink {self._flow.sink!r}; "
                f"epoch {epoch.number} was to come next"
            ).with_hint(
                "another store's flow of the same name wrote it; give the flow or the sink a new name"
            )

    def prepare(self, batch: DataFrame, epoch: Epoch, part: int) -> Receipt:
        """Put the rows into a staging table, and see that the table will take them (T3)."""
        fields = fields_of(batch.schema)
        self._check_fields(fields)
        with self._dialect.reading() as connection:
            table = self._dialect.table(connection, self.table) if connection is not None else None
        if table is not None:
            self._check_key(table)
            self._check_columns(table, fields)
        staging = part_table(self._flow, Attempt.of(epoch), part)
        if self._dialect.takes_many_writers:
            count = load_on_executors(self._dialect, self.url, staging, batch, fields)
        else:
            count = self._stage(staging, self._rows(batch, fields), fields)
        receipt = {"table": staging, "rows": count, "columns": [[field.name, field.kind] for field in fields]}
        if count:
            self._check_keys_given(staging, fields)
            if table is not None and self._may_refuse(table, fields):
                self._rehearse(epoch, receipt)
        return receipt

    def commit(self, epoch: Epoch, receipts: Sequence[Receipt]) -> None:
        """Move the staged rows into the table, with the epoch's row, in one transaction."""
        with self._dialect.transaction() as connection:
            self._epochs.create(connection)
            if self._epochs.take(connection, epoch):
                for receipt in receipts:
                    self._move_in(connection, epoch, receipt)
            for receipt in receipts:
                connection.execute(f"DROP TABLE IF EXISTS {self._dialect.quoted(receipt['table'])}")

    def abort(self, epoch: Epoch, receipts: Sequence[Receipt]) -> None:
        """Drop the attempt's staging tables."""
        del receipts  # their names begin with the attempt's, with or without a receipt
        prefix = attempt_tables(self._flow, Attempt.of(epoch))
        self._drop(lambda _, name: name.startswith(prefix))

    def outcome(self, epoch: Epoch, receipts: Sequence[Receipt]) -> Outcome:
        """Never UNKNOWN: the epoch's row says it (T1)."""
        del receipts
        with self._dialect.reading() as connection:
            found = self._epochs.find(connection, epoch.number) if connection is not None else None
        if found is None or found.rewound:
            return Outcome.NOT_COMMITTED
        self._epochs.check_same_attempt(found, epoch)
        return Outcome.COMMITTED

    def sweep(self, generation: int, decided: Decided) -> None:
        """Drop what older generations staged and nobody will ever commit, or already has."""

        def is_done_with(connection: Connection, name: str) -> bool:
            attempt = parse_table(name)
            if attempt is None or attempt.generation >= generation:
                return False
            if not decided(attempt.number, attempt.id):
                return True
            found = self._epochs.find(connection, attempt.number)
            return found is not None and (found.rewound or found.id == attempt.id)

        self._drop(is_done_with)

    def rewind(self, first: int, last: int) -> None:
        """Take back the epochs from ``first`` to ``last``, both included, for good. May be repeated."""
        if not 0 < first <= last:
            raise InvalidInputError(f"epochs {first} to {last} are no range")
        if self.rewind_refusal is not None or self.epoch_column is None:
            raise InvalidInputError(
                f"sink {self._flow.sink!r} cannot be rewound: {self.rewind_refusal}"
            ).with_hint("restore with --sinks rebase, which leaves what the sinks show alone")
        with self._dialect.transaction() as connection:
            self._epochs.create(connection)
            self._check_alone(connection)
            self._epochs.bury(connection, first, last)
            for name in self._dialect.tables(connection, table_prefix(self._flow)):
                attempt = parse_table(name)
                if attempt is not None and first <= attempt.number <= last:
                    connection.execute(f"DROP TABLE {self._dialect.quoted(name)}")
            if self._dialect.table(connection, self.table) is not None:
                epoch_column = self._dialect.quoted(self.epoch_column)
                connection.execute(
                    f"DELETE FROM {self._target} WHERE {epoch_column} BETWEEN {first:d} AND {last:d}"
                )

    # --- who and where -------------------------------------------------------------------------

    @property
    def _flow(self) -> SinkFlow:
        if self._owner is None:
            raise InvalidInputError(f"{self!r} has not been opened for a flow")
        return self._owner

    @property
    def _epochs(self) -> EpochTable:
        return EpochTable(self._dialect, self._flow)

    @property
    def _target(self) -> str:
        return self._dialect.quoted_table(self.table)

    # --- checking, before the decision ---------------------------------------------------------

    def _check_fields(self, fields: Sequence[Field]) -> None:
        """The batch alone: its columns can be those of one table, and hold the key."""
        names = [self._same(field.name) for field in fields]
        twice = sorted({field.name for field in fields if names.count(self._same(field.name)) > 1})
        if twice:
            raise InvalidInputError(f"the query gives several columns of one name: {_listed(twice)}")
        if not fields:
            raise InvalidInputError("the query gives no columns")
        missing = [name for name in self.key if self._same(name) not in names]
        if missing:
            raise InvalidInputError(
                f"the key of {self.table!r} names {_listed(missing)}, which the query does not give; "
                f"it gives {_listed([field.name for field in fields])}"
            )
        if self.epoch_column is not None and self._same(self.epoch_column) in names:
            raise InvalidInputError(
                f"{self.epoch_column!r} is both the epoch_column of {self.table!r} and a column of the query"
            )

    def _check_key(self, table: Table) -> None:
        """ON CONFLICT works on columns that the table keeps unique, and on no others."""
        if self.key and frozenset(map(self._same, self.key)) not in table.unique:
            columns = ", ".join(map(self._dialect.quoted, self.key))
            raise InvalidInputError(
                f"table {self.table!r} does not keep its key ({_listed(self.key)}) unique, so rows cannot "
                "be upserted by it"
            ).with_hint(f"CREATE UNIQUE INDEX … ON {self._target} ({columns})")

    def _check_columns(self, table: Table, fields: Sequence[Field]) -> None:
        there = {self._same(column.name): column for column in table.columns}
        given = [field.name for field in fields] + ([self.epoch_column] if self.epoch_column else [])
        unknown = [name for name in given if self._same(name) not in there]
        if unknown:
            raise InvalidInputError(
                f"table {self.table!r} has no column {_listed(unknown)}; "
                f"it has {_listed([column.name for column in table.columns])}"
            ).with_hint("add the column to the table, or leave it out of the query")
        generated = [name for name in given if there[self._same(name)].is_generated]
        if generated:
            raise InvalidInputError(f"table {self.table!r} computes {_listed(generated)} itself")
        wanted = set(map(self._same, given))
        left_out = [
            column.name for name, column in there.items() if column.needs_value and name not in wanted
        ]
        if left_out:
            raise InvalidInputError(
                f"table {self.table!r} wants a value in {_listed(left_out)}, which the query does not give"
            )

    def _check_keys_given(self, staging: str, fields: Sequence[Field]) -> None:
        """Each key once, and none NULL. A winner among equals would be any; NULLs equal nothing."""
        if not self.key:
            return
        numbers = {self._same(field.name): number for number, field in enumerate(fields)}
        columns = [f"c{numbers[self._same(name)]}" for name in self.key]
        listed, table = ", ".join(columns), self._dialect.quoted(staging)
        is_null = " OR ".join(f"{column} IS NULL" for column in columns)
        with self._dialect.reading() as connection:
            assert connection is not None  # it was staged into
            null = connection.execute(f"SELECT {listed} FROM {table} WHERE {is_null} LIMIT 1").fetchone()
            twice = connection.execute(
                f"SELECT {listed} FROM {table} GROUP BY {listed} HAVING count(*) > 1 LIMIT 1"
            ).fetchone()
        if null is not None:
            raise InvalidInputError(f"a row for {self.table!r} has NULL in its key: {self._shown(null)}")
        if twice is not None:
            raise InvalidInputError(
                f"one micro-batch has several rows of the key {self._shown(twice)} for {self.table!r}; "
                "which of them should win cannot be told"
            ).with_hint("aggregate in the query, so that it gives one row a key; or append, without a key")

    def _shown(self, values: Sequence[object]) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in zip(self.key, values, strict=True))

    def _may_refuse(self, table: Table, fields: Sequence[Field]) -> bool:
        """Whether the table differs in anything that counts from the one we would make."""
        ours = frozenset(map(self._same, self.key))
        types = {self._same(field.name): self._dialect.sql_type(field.kind) for field in fields}
        if self.epoch_column is not None:
            types[self._same(self.epoch_column)] = self._dialect.sql_type("bigint")
        return (
            table.may_refuse_rows
            or any(unique != ours for unique in table.unique)
            or any(
                column.strict_type not in (None, types.get(self._same(column.name)))
                or (column.needs_value and self._same(column.name) not in ours)
                for column in table.columns
            )
        )

    def _rehearse(self, epoch: Epoch, receipt: Receipt) -> None:
        """Do what the commit will do, and undo it: a rule that these rows break is found out now."""
        try:
            with self._dialect.transaction() as connection:
                self._epochs.create(connection)
                self._move_in(connection, epoch, receipt)
                raise _Undone
        except _Undone:
            return

    # --- staging -------------------------------------------------------------------------------

    def _rows(self, batch: DataFrame, fields: Sequence[Field]) -> Iterator[Row]:
        """The batch's rows as bound values, never all of them on the driver."""
        binders = [self._dialect.binder(field.kind) for field in fields]
        for row in rows_of(carriers(batch, fields), batch):
            yield bound(row, binders, fields)

    def _stage(self, staging: str, rows: Iterator[Row], fields: Sequence[Field]) -> int:
        """Several transactions, so that no lock is held while Spark computes. Returns the number of rows."""
        kinds = [field.kind for field in fields]
        count = 0
        while chunk := list(islice(rows, _ROWS_AT_ONCE)):
            with self._dialect.transaction() as connection:
                if not count:
                    self._dialect.create_staging(connection, staging, kinds)
                self._dialect.load(connection, staging, kinds, chunk)
            count += len(chunk)
        return count

    # --- committing ----------------------------------------------------------------------------

    def _move_in(self, connection: Connection, epoch: Epoch, receipt: Receipt) -> None:
        fields = [Field(name, kind) for name, kind in receipt["columns"]]
        self._create_target(connection, fields)
        if not receipt["rows"]:
            return
        self._check_staged(connection, epoch, receipt)
        columns = [self._dialect.quoted(field.name) for field in fields]
        values = [f"c{number}" for number in range(len(fields))]
        if self.epoch_column is not None:
            columns.append(self._dialect.quoted(self.epoch_column))
            values.append(f"{epoch.number:d}")
            self._epochs.remember_target(connection, self.table)
        # WHERE true: without it, SQLite takes the ON of ON CONFLICT for a join's.
        select = f"SELECT {', '.join(values)} FROM {self._dialect.quoted(receipt['table'])} WHERE true"
        if self.key:
            key = [self._dialect.quoted(name) for name in self.key]
            connection.execute(self._dialect.upsert(self._target, columns, key, select))
        else:
            connection.execute(f"INSERT INTO {self._target} ({', '.join(columns)}) {select}")

    def _check_staged(self, connection: Connection, epoch: Epoch, receipt: Receipt) -> None:
        name, wanted = receipt["table"], receipt["rows"]
        if self._dialect.table(connection, name) is None:
            raise StagedOutputGoneError(self._flow.sink, epoch.number, f"table {name} is not there")
        there = connection.execute(f"SELECT count(*) FROM {self._dialect.quoted(name)}").fetchone()[0]
        if there != wanted:
            raise StagedOutputGoneError(
                self._flow.sink, epoch.number, f"table {name} has {there} rows of {wanted}"
            )

    def _create_target(self, connection: Connection, fields: Sequence[Field]) -> None:
        if self._dialect.table(connection, self.table) is not None:
            return
        self._dialect.before_creating(connection)
        columns = [
            f"{self._dialect.quoted(field.name)} {self._dialect.sql_type(field.kind)}" for field in fields
        ]
        if self.epoch_column is not None:
            columns.append(f"{self._dialect.quoted(self.epoch_column)} {self._dialect.sql_type('bigint')}")
        if self.key:
            columns.append(f"PRIMARY KEY ({', '.join(map(self._dialect.quoted, self.key))})")
        connection.execute(f"CREATE TABLE IF NOT EXISTS {self._target} ({', '.join(columns)})")

    # --- removing ------------------------------------------------------------------------------

    def _drop(self, wanted: Callable[[Connection, str], bool]) -> None:
        """Drop those staging tables of this sink that are wanted gone."""
        with self._dialect.reading() as connection:
            if connection is None:
                return
            names = self._dialect.tables(connection, table_prefix(self._flow))
            names = [name for name in names if wanted(connection, name)]
        if not names:
            return
        with self._dialect.transaction() as connection:
            for name in names:
                connection.execute(f"DROP TABLE IF EXISTS {self._dialect.quoted(name)}")

    def _check_alone(self, connection: Connection) -> None:
        others = self._epochs.others_in(connection, self.table)
        if others:
            raise ConflictError(
                f"table {self.table!r} also holds rows of {others[0].flow!r} (sink {others[0].sink!r}), with "
                f"epoch numbers of their own in {self.epoch_column!r}: rewinding would take them too"
            ).with_hint("give each sink a table of its own; or restore with --sinks rebase")


class _Undone(Exception):
    """Raised to undo a rehearsal. Never leaves this module."""


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))
