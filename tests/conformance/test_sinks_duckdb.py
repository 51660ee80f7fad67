"""The Database sink on DuckDB keeps the contract of sinks, and what is DuckDB's own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.coordinator.sink import Outcome
from holdfast.errors import ConflictError, CorruptError, InvalidInputError, StoreUnavailableError
from holdfast.spark.sinks import Database
from holdfast.testing.sinks import FLOW, Row, SinkSuite, attempt, stored

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def query(path: Path, sql: str) -> list[Any]:
    import duckdb

    with duckdb.connect(str(path)) as connection:
        return connection.execute(sql).fetchall()


def tables(path: Path) -> list[str]:
    return [name for (name,) in query(path, "SELECT table_name FROM duckdb_tables() ORDER BY 1")]


class DuckDBSuite(SinkSuite):
    @pytest.fixture(autouse=True)
    def _place(self, spark: SparkSession, tmp_path: Path) -> None:
        self.spark = spark
        self.path = tmp_path / "out.duckdb"

    def make_sink(self) -> Database:
        return Database(f"duckdb:///{self.path}", table="rows")

    def make_batch(self, rows: Sequence[Row]) -> Any:
        return self.spark.createDataFrame(list(rows), "number INT, text STRING")

    def visible(self) -> list[Row]:
        if not self.path.exists() or "rows" not in tables(self.path):
            return []
        return query(self.path, "SELECT number, text FROM rows ORDER BY 1, 2")

    def everything(self) -> dict[str, bytes]:
        return {file.name: file.read_bytes() for file in self.path.parent.iterdir()}

    def lose_staged(self) -> None:
        for name in tables(self.path):
            if name.startswith("_hf_"):
                query(self.path, f'DROP TABLE "{name}"')


class TestAppending(DuckDBSuite):
    pass


class TestUpserting(DuckDBSuite):
    def make_sink(self) -> Database:
        return Database(f"duckdb:///{self.path}", table="rows", key=["number"])


# --- DuckDB's own ---------------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "out.duckdb"


def opened(path: Path, **settings: Any) -> Database:
    sink = Database(f"duckdb:///{path}", **{"table": "words", **settings})
    sink.open(FLOW)
    return sink


def prepared(sink: Database, epoch: Any, *parts: DataFrame) -> list[Any]:
    sink.begin(epoch)
    return stored([sink.prepare(part, epoch, number) for number, part in enumerate(parts)])


def committed(sink: Database, epoch: Any, *parts: DataFrame) -> list[Any]:
    receipts = prepared(sink, epoch, *parts)
    sink.commit(epoch, receipts)
    return receipts


def frame(spark: SparkSession, *pairs: tuple[int | None, str | None]) -> DataFrame:
    return spark.createDataFrame(list(pairs), "id INT, word STRING")


VALUES = {
    "TIMESTAMP_NTZ'2025-03-30 02:30:00.000001'": ("TIMESTAMP", "2025-03-30 02:30:00.000001"),
    "DATE'2026-01-01'": ("DATE", "2026-01-01"),
    "CAST('12.50' AS DECIMAL(10,2))": ("DECIMAL(10,2)", "12.50"),
    "12345678901234567890123456789012345678BD": ("DECIMAL(38,0)", "12345678901234567890123456789012345678"),
    "true": ("BOOLEAN", "true"),
    "X'00FF'": ("BLOB", "\\x00\\xFF"),
    "CAST(-9223372036854775808 AS BIGINT)": ("BIGINT", "-9223372036854775808"),
    "CAST(7 AS TINYINT)": ("SMALLINT", "7"),
    "0.1D": ("DOUBLE", "0.1"),
    "CAST(0.1 AS FLOAT)": ("FLOAT", "0.1"),
    "CAST('NaN' AS DOUBLE)": ("DOUBLE", "nan"),
    "'ünïcode \\' \\\" 😀'": ("VARCHAR", "ünïcode ' \" 😀"),
    "''": ("VARCHAR", ""),
    "CAST(NULL AS INT)": ("INTEGER", None),
    "named_struct('a', 1, 'b', array('x', NULL))": ("JSON", '{"a":1,"b":["x",null]}'),
}


@pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/New_York"])
def test_values_keep_their_types_and_no_time_zone_takes_part(
    path: Path, spark: SparkSession, zone: str
) -> None:
    columns = ", ".join(f"{expression} AS v{number}" for number, expression in enumerate(VALUES))
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)

    try:
        rows = spark.sql(f"SELECT timestamp_micros(1767225605000001) AS at, {columns}")
        committed(opened(path), attempt(1), rows)
    finally:
        spark.conf.set("spark.sql.session.timeZone", before or "UTC")

    types = query(
        path, "SELECT data_type FROM duckdb_columns() WHERE table_name = 'words' ORDER BY column_index"
    )
    assert [type_ for (type_,) in types] == [
        "TIMESTAMP WITH TIME ZONE",
        *(type_ for type_, _ in VALUES.values()),
    ]
    texts = ", ".join(f"v{number}::VARCHAR" for number in range(len(VALUES)))
    row = query(path, f'SELECT epoch_us("at"), {texts} FROM words')[0]
    assert row[0] == 1767225605000001
    assert dict(zip(VALUES, row[1:], strict=True)) == {name: text for name, (_, text) in VALUES.items()}


@pytest.mark.parametrize("name", ['a"b', "a'b", "select", "ü", "a.b", "100%s", "a?b", "x;DROP TABLE words--"])
def test_any_name_is_a_name(path: Path, spark: SparkSession, name: str) -> None:
    rows = frame(spark, (1, "a")).toDF(name, name + "2")
    sink = opened(path, table=f"t {name}", key=[name], epoch_column=f"e {name}")

    committed(sink, attempt(1), rows)
    committed(sink, attempt(2), rows)

    quoted = '"' + f"t {name}".replace('"', '""') + '"'
    assert query(path, f"SELECT * FROM {quoted}") == [(1, "a", 2)]


def test_the_later_micro_batch_of_an_epoch_wins(path: Path, spark: SparkSession) -> None:
    committed(opened(path, key=["id"]), attempt(1), frame(spark, (1, "a"), (2, "b")), frame(spark, (1, "c")))

    assert query(path, "SELECT id, word FROM words ORDER BY id") == [(1, "c"), (2, "b")]


def test_a_key_given_twice_is_named(path: Path, spark: SparkSession) -> None:
    sink, epoch = opened(path, key=["id"]), attempt(1)
    sink.begin(epoch)

    with pytest.raises(InvalidInputError, match="id=7"):
        sink.prepare(frame(spark, (7, "a"), (7, "b")), epoch, 0)


@pytest.mark.parametrize(
    "definition",
    [
        "id INT CHECK (id < 5), word TEXT",
        "id INT UNIQUE, word TEXT",
        "id INT, word TEXT NOT NULL",
        "id INT, word INT",
        "id INT, word TEXT AS (id || 'x')",
    ],
)
def test_a_rule_of_the_table_that_rows_break_is_found_out_before_the_decision(
    path: Path, spark: SparkSession, definition: str
) -> None:
    query(path, f"CREATE TABLE words ({definition})")
    sink, epoch = opened(path), attempt(1)
    sink.begin(epoch)

    with pytest.raises(ConflictError):
        sink.prepare(frame(spark, (1, "abc"), (7, None), (7, "x")), epoch, 0)

    assert query(path, "SELECT * FROM words") == []


def test_a_rewind_takes_back_its_range(path: Path, spark: SparkSession) -> None:
    sink = opened(path, epoch_column="epoch")
    for number in range(1, 4):
        committed(sink, attempt(number), frame(spark, (number, "w")))
    late = attempt(4)
    receipts = prepared(sink, late, frame(spark, (4, "w")))

    sink.rewind(2, 4)
    sink.commit(late, receipts)

    assert query(path, "SELECT id, epoch FROM words ORDER BY id") == [(1, 1)]
    assert sink.outcome(late, receipts) is Outcome.NOT_COMMITTED


def test_a_table_of_our_own_making_needs_no_rehearsal(
    path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = opened(path, key=["id"], epoch_column="epoch")
    rows = spark.sql("SELECT 1 AS id, 1.5BD AS n, current_timestamp() AS at, array(1) AS list")
    committed(sink, attempt(1), rows)

    def rehearsed(*_: Any) -> None:
        raise AssertionError("the rows were inserted twice for nothing")

    monkeypatch.setattr(Database, "_rehearse", rehearsed)
    committed(sink, attempt(2), rows)

    assert query(path, "SELECT id, epoch FROM words") == [(1, 2)]


COMMITTER = """
import json, sys
from holdfast.coordinator.sink import Epoch, SinkFlow
from holdfast.ids import CheckpointId
from holdfast.spark.sinks.database import Database

told = json.loads(sys.stdin.read())
sink = Database(told["url"], table="words")
sink.open(SinkFlow("orders/per_minute", "lake"))
sink.commit(Epoch(1, CheckpointId.parse(told["id"]), 1), told["receipts"])
"""


def test_processes_that_commit_one_epoch_at_once_take_turns(path: Path, spark: SparkSession) -> None:
    epoch = attempt(1)
    rows = spark.range(500).selectExpr("cast(id AS INT) AS id", "'w' AS word")
    receipts = prepared(opened(path), epoch, rows)
    told = json.dumps({"url": f"duckdb:///{path}", "id": str(epoch.id), "receipts": receipts})

    processes = [
        subprocess.Popen([sys.executable, "-c", COMMITTER], stdin=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(told)
        process.stdin.close()

    assert [process.wait(60) for process in processes] == [0] * 3
    assert query(path, "SELECT count(*) FROM words") == [(500,)]


def test_a_database_that_another_process_keeps_open_is_try_later(
    path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.spark.sinks.duckdb._BUSY_SECONDS", 0.1)
    sink, epoch = opened(path), attempt(1)
    receipts = prepared(sink, epoch, frame(spark, (1, "a")))
    keeper = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"import duckdb; c = duckdb.connect({str(path)!r}); print('open', flush=True); input()",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert keeper.stdout is not None
    keeper.stdout.readline()

    with pytest.raises(StoreUnavailableError):
        sink.commit(epoch, receipts)
    keeper.communicate("\n")
    sink.commit(epoch, receipts)

    assert query(path, "SELECT id FROM words") == [(1,)]


def test_a_file_that_is_no_database_is_corrupt(path: Path) -> None:
    path.write_bytes(b"no database at all, but long enough to look at" * 500)

    with pytest.raises(CorruptError):
        opened(path)
