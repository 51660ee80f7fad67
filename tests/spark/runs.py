"""What the tests of pipelines share: trades as files, what a windowed sum of them is, readers of sinks.

Every file is one micro-batch. No trade is late, so the answers can be computed here, without a watermark.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TypeAlias

from holdfast.blobs import FileBlobs
from holdfast.store import PartitionedCheckpointStore

#: Second of the day, symbol, quantity.
Trade: TypeAlias = tuple[int, str, int]
Rows: TypeAlias = "Counter[tuple[str, str, int]]"

MIDNIGHT = 1_767_225_600
FIRST: Sequence[Trade] = [(1, "A", 10), (2, "B", 20), (61, "A", 5)]
SECOND: Sequence[Trade] = [(62, "A", 1), (63, "B", 2), (125, "C", 7)]
THIRD: Sequence[Trade] = [(126, "C", 3), (130, "A", 4)]
SCHEMA = "ts TIMESTAMP, symbol STRING, qty BIGINT"
PER_MINUTE = """\
SELECT window.start AS minute, symbol, sum(qty) AS qty
      FROM trades GROUP BY window(ts, '1 minute'), symbol"""

YAML = """\
pipeline: shop
store: ./store
scratch: ./scratch
trigger: available-now
output_mode: update
spark: {spark.sql.shuffle.partitions: 2}
sources:
  trades:
    format: json
    path: ./in
    schema: "ts TIMESTAMP, symbol STRING, qty BIGINT"
    options: {maxFilesPerTrigger: 1}
operators:
  per_minute:
    watermark: {trades: {column: ts, delay: 10 minutes}}
    sql: >
      PER_MINUTE
sinks:
  lake: {from: per_minute, files: {path: ./out, format: parquet}}
  db: {from: per_minute, database: {url: "sqlite:///out.db", table: per_minute, key: [minute, symbol]}}
""".replace("PER_MINUTE", PER_MINUTE)


def write_yaml(home: Path, text: str = YAML) -> Path:
    """A declaration in ``home``, with its input directory beside it."""
    (home / "in").mkdir(parents=True, exist_ok=True)
    path = home / "pipeline.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def add_file(directory: Path, number: int, trades: Sequence[Trade]) -> None:
    """One input file, complete from its first moment on. Spark reads in the order of ``number``."""
    directory.mkdir(parents=True, exist_ok=True)
    lines = [
        {"ts": f"{_minute(second)[:-2]}{second % 60:02}Z".replace(" ", "T"), "symbol": symbol, "qty": qty}
        for second, symbol, qty in trades
    ]
    unseen = directory / f".{number:03}"
    unseen.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    os.utime(unseen, (MIDNIGHT + number, MIDNIGHT + number))
    unseen.rename(directory / f"{number:03}.json")


def add_files(directory: Path, *files: Sequence[Trade]) -> None:
    for number, trades in enumerate(files):
        add_file(directory, number, trades)


def updates(*files: Sequence[Trade]) -> Rows:
    """What a sink of files has after these batches: every group as often as it changed, as it then was."""
    sums: Counter[tuple[str, str]] = Counter()
    rows: Rows = Counter()
    for trades in files:
        for second, symbol, qty in trades:
            sums[_minute(second), symbol] += qty
        rows.update({(*group, sums[group]): 1 for group in {(_minute(s), symbol) for s, symbol, _ in trades}})
    return rows


def sums(*files: Sequence[Trade]) -> Rows:
    """What a table with the key (minute, symbol) has after these batches."""
    total: Counter[tuple[str, str]] = Counter()
    for trades in files:
        for second, symbol, qty in trades:
            total[_minute(second), symbol] += qty
    return Counter((*group, qty) for group, qty in total.items())


def lake_rows(directory: Path) -> Rows:
    """Every row of the Parquet files in plain sight."""
    import pyarrow.parquet as parquet

    rows: Rows = Counter()
    for path in sorted(directory.glob("*.parquet")):
        table = parquet.read_table(path, columns=["minute", "symbol", "qty"])
        columns = [table.column(name).to_pylist() for name in ("minute", "symbol", "qty")]
        rows.update((str(minute)[:19], symbol, qty) for minute, symbol, qty in zip(*columns, strict=True))
    return rows


def table_rows(database: Path, table: str = "per_minute") -> Rows:
    with closing(sqlite3.connect(database)) as connection:
        return Counter(connection.execute(f"SELECT minute, symbol, qty FROM {table}"))


def store_at(root: Path) -> PartitionedCheckpointStore:
    return PartitionedCheckpointStore(FileBlobs(root))


def store_of(home: Path) -> PartitionedCheckpointStore:
    """The store of the only flow of ``YAML``."""
    return store_at(home / "store" / "shop" / "per_minute")


def tree(root: Path) -> dict[str, bytes]:
    """Every file below ``root``."""
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def _minute(second: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:00", time.gmtime(MIDNIGHT + second))
