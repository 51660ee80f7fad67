"""Rows straight from Spark's tasks into a staging table, each task by its own connection.

Spark may run a task twice, and the first run may be dead, or only slow. So each run marks its rows
with a token of its own, and tells it when they are durable. Then the table gets its name:

    {staging}_     being loaded; a run that is late can still write here, until it is renamed
    {staging}      sealed: the rows of those runs that Spark counts, and no others ever
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.errors import ConflictError
from holdfast.spark.sinks.dialects import Dialect, Row, open_dialect
from holdfast.spark.sinks.values import Field, bound, carriers

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame


def load_on_executors(
    dialect: Dialect, url: str, staging: str, batch: DataFrame, fields: Sequence[Field]
) -> int:
    """Load ``batch`` into a new table ``staging``. One action, that computes every partition once.

    Returns the number of rows.
    """
    loading = f"{staging}_"
    with dialect.transaction() as connection:
        dialect.create_staging(connection, loading, [*(field.kind for field in fields), "string"])
    runs = carriers(batch, fields).mapInArrow(
        Loader(url, loading, tuple(fields)), "token STRING, count BIGINT"
    )
    counts = {run["token"]: run["count"] for run in runs.collect()}
    token = f"c{len(fields)}"
    with dialect.transaction() as connection:
        # Renaming waits for writers that are still at it; those that come later find no table.
        connection.execute(f"ALTER TABLE {dialect.quoted(loading)} RENAME TO {dialect.quoted(staging)}")
        table = dialect.quoted(staging)
        kept = ", ".join(f"'{one}'" for one in counts)
        connection.execute(f"DELETE FROM {table}" + (f" WHERE {token} NOT IN ({kept})" if kept else ""))
        connection.execute(f"ALTER TABLE {table} DROP COLUMN {token}")
        there = connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
        if there != sum(counts.values()):
            raise ConflictError(
                f"{dialect.place}: {there} rows were staged, {sum(counts.values())} were given"
            )
    return int(there)


class Loader:
    """What a task runs over its partition's rows. Spark ships it by pickle, the URL with it."""

    def __init__(self, url: str, table: str, fields: tuple[Field, ...]) -> None:
        self._url = url
        self._table = table
        self._fields = fields

    def __repr__(self) -> str:
        return f"Loader(table={self._table!r})"

    def __call__(self, batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        import pyarrow

        token, count = secrets.token_hex(8), 0

        def counted(rows: Iterator[Row]) -> Iterator[Row]:
            nonlocal count
            for row in rows:
                count += 1
                yield row

        rows = self._rows(batches, token)
        first = next(rows, None)
        if first is None:
            return  # most partitions of a small batch: not worth a connection
        dialect = open_dialect(self._url)
        with dialect.transaction() as connection:
            kinds = [*(field.kind for field in self._fields), "string"]
            dialect.load(connection, self._table, kinds, counted(_chained(first, rows)))
        yield pyarrow.RecordBatch.from_pydict({"token": [token], "count": [count]})

    def _rows(self, batches: Iterator[pyarrow.RecordBatch], token: str) -> Iterator[Row]:
        dialect = open_dialect(self._url)
        binders: list[Callable[[Any], Any]] = [dialect.binder(field.kind) for field in self._fields]
        for batch in batches:
            for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                yield (*bound(row, binders, self._fields), token)


def _chained(first: Row, rest: Iterator[Row]) -> Iterator[Row]:
    yield first
    yield from rest
