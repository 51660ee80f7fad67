"""How a batch's rows come to the driver: in one go when they are few, else a bounded piece at a time.

Spark hands over one partition by one job, which for 200 small partitions takes seconds; all at once is
one job, and as much memory as there are rows. The runner has cached the batch by then, so how many
rows there are is known exactly, and the pieces can be cut to measure. Never is the whole batch here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# A piece. The bytes are those of Spark's cache, which may be packed: hence the rows as well.
_PIECE_BYTES = 16 << 20
_PIECE_ROWS = 200_000


@dataclass(frozen=True, slots=True)
class Cached:
    """The size of a batch that lies in Spark's cache, whole."""

    size_bytes: int
    rows: int


def rows_of(batch: DataFrame, source: DataFrame) -> Iterator[tuple[Any, ...]]:
    """The rows of ``batch``, which is a projection of ``source`` row by row."""
    cached = cached_size(source)
    if cached is None:
        # Every partition is computed when it is asked for, and only then: merging them would make
        # one task of what several cores could do.
        yield from batch.toLocalIterator(prefetchPartitions=True)
        return
    pieces = max(-(-cached.size_bytes // _PIECE_BYTES), -(-cached.rows // _PIECE_ROWS))
    if pieces > 1:
        yield from batch.coalesce(pieces).toLocalIterator(prefetchPartitions=True)
        return
    for chunk in batch.toArrow().to_batches():
        yield from zip(*(column.to_pylist() for column in chunk.columns), strict=True)


def cached_size(batch: DataFrame) -> Cached | None:
    """The exact size of a cached batch. None if it is not cached, or Spark does not tell (Connect)."""
    if not hasattr(batch, "_jdf"):
        return None
    # A new plan: the batch's own may have been made before it was cached.
    plan = batch.select("*")._jdf.queryExecution().optimizedPlan()
    if plan.getClass().getSimpleName() != "InMemoryRelation":
        return None
    stats = plan.stats()
    # Without a row count the cache is not filled yet, and the size a guess.
    if not stats.rowCount().isDefined():
        return None
    return Cached(int(stats.sizeInBytes()), int(stats.rowCount().get()))
