"""The Database sink on a real PostgreSQL: the contract of sinks, and what is PostgreSQL's own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.coordinator.sink import Outcome, StagedOutputGoneError
from holdfast.errors import ConflictError, HoldfastError, InvalidInputError, StoreUnavailableError
from holdfast.spark.sinks import Database
from holdfast.testing.sinks import FLOW, Row, SinkSuite, attempt, stored

if TYPE_CHECKING:
    from databases import Server
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.services]


class Schema:
    """A schema of a test's own in the shared server."""

    def __init__(self, server: Server, name: str) -> None:
        self.server = server
        self.name = name
        self.url = f"{server.url}?options=-csearch_path%3D{name}"
        self.query(f"CREATE SCHEMA {name}")

    def query(self, sql: str) -> list[Any]:
        import psycopg

        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(sql)
            return cursor.fetchall() if cursor.description else []

    def tables(self, beginning: str = "") -> list[str]:
        found = self.query(f"SELECT tablename FROM pg_tables WHERE schemaname = '{self.name}' ORDER BY 1")
        return [name for (name,) in found if name.startswith(beginning)]


@pytest.fixture
def schema(postgres_server: Server, request: pytest.FixtureRequest) -> Iterator[Schema]:
    import psycopg

    made = Schema(postgres_server, f"t{abs(hash(request.node.nodeid)):x}")
    yield made
    with psycopg.connect(postgres_server.url, autocommit=True) as connection:
        connection.execute(f"DROP SCHEMA {made.name} CASCADE")


class PostgresSuite(SinkSuite):
    @pytest.fixture(autouse=True)
    def _place(self, spark: SparkSession, schema: Schema) -> None:
        self.spark = spark
        self.schema = schema

    def make_sink(self) -> Database:
        return Database(self.schema.url, table="rows")

    def make_batch(self, rows: Sequence[Row]) -> Any:
        return self.spark.createDataFrame(list(rows), "number INT, text STRING")

    def visible(self) -> list[Row]:
        if not self.schema.tables("rows"):
            return []
        return self.schema.query("SELECT number, text FROM rows ORDER BY 1, 2")

    def everything(self) -> dict[str, list[Any]]:
        return {name: sorted(self.schema.query(f'SELECT * FROM "{name}"')) for name in self.schema.tables()}

    def lose_staged(self) -> None:
        for name in self.schema.tables("_hf_"):
            self.schema.query(f'DROP TABLE "{name}"')


class TestAppending(PostgresSuite):
    pass


class TestUpserting(PostgresSuite):
    def make_sink(self) -> Database:
        return Database(self.schema.url, table="rows", key=["number"])


# --- PostgreSQL's own -----------------------------------------------------------------------------------


def opened(schema: Schema, **settings: Any) -> Database:
    sink = Database(schema.url, **{"table": "words", **settings})
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
    "timestamp_micros(1767225605000001)": ("timestamp with time zone", "2026-01-01 00:00:05.000001+00"),
    "TIMESTAMP'0001-01-01 00:00:00Z'": ("timestamp with time zone", "0001-01-01 00:00:00+00"),
    "TIMESTAMP_NTZ'2025-03-30 02:30:00'": ("timestamp without time zone", "2025-03-30 02:30:00"),
    "DATE'2026-01-01'": ("date", "2026-01-01"),
    "CAST('12.50' AS DECIMAL(10,2))": ("numeric(10,2)", "12.50"),
    "12345678901234567890123456789012345678BD": ("numeric(38,0)", "12345678901234567890123456789012345678"),
    "true": ("boolean", "true"),
    "X'00FF'": ("bytea", "\\x00ff"),
    "CAST(-9223372036854775808 AS BIGINT)": ("bigint", "-9223372036854775808"),
    "CAST(7 AS TINYINT)": ("smallint", "7"),
    "0.1D": ("double precision", "0.1"),
    "CAST(0.1 AS FLOAT)": ("real", "0.1"),
    "CAST('NaN' AS DOUBLE)": ("double precision", "NaN"),
    "CAST('-Infinity' AS FLOAT)": ("real", "-Infinity"),
    "'ünïcode \\' \\\" \\\\ \\t \\n 😀'": ("text", "ünïcode ' \" \\ \t \n 😀"),
    "''": ("text", ""),
    "'\\\\N'": ("text", "\\N"),
    "CAST(NULL AS INT)": ("integer", None),
    "named_struct('a', 1, 'b', array('x', NULL))": ("jsonb", '{"a": 1, "b": ["x", null]}'),
    "INTERVAL '1 02:03:04' DAY TO SECOND": ("text", "INTERVAL '1 02:03:04' DAY TO SECOND"),
}


@pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/New_York"])
def test_values_keep_their_types_and_no_time_zone_takes_part(
    schema: Schema, spark: SparkSession, zone: str
) -> None:
    columns = ", ".join(f"{expression} AS v{number}" for number, expression in enumerate(VALUES))
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)

    try:
        committed(opened(schema), attempt(1), spark.sql(f"SELECT {columns}"))
    finally:
        spark.conf.set("spark.sql.session.timeZone", before or "UTC")

    schema.query(f"ALTER DATABASE postgres SET timezone = '{zone}'")
    texts = ", ".join(
        f"(v{number} AT TIME ZONE 'UTC')::text || '+00'"
        if type_ == "timestamp with time zone"
        else f"v{number}::text"
        for number, (type_, _) in enumerate(VALUES.values())
    )
    types = schema.query(
        "SELECT format_type(atttypid, atttypmod) FROM pg_attribute "
        "WHERE attrelid = 'words'::regclass AND attnum > 0 ORDER BY attnum"
    )
    assert [type_ for (type_,) in types] == [type_ for type_, _ in VALUES.values()]
    row = schema.query(f"SELECT {texts} FROM words")[0]
    assert dict(zip(VALUES, row, strict=True)) == {name: text for name, (_, text) in VALUES.items()}


@pytest.mark.parametrize(
    "name", ['a"b', "a'b", "select", "ü", "a.b", "100%s", "Mixed", "x;DROP TABLE words--"]
)
def test_any_name_is_a_name(schema: Schema, spark: SparkSession, name: str) -> None:
    rows = frame(spark, (1, "a")).toDF(name, name + "2")
    sink = opened(schema, table=f"t {name}", key=[name], epoch_column=f"e {name}")

    committed(sink, attempt(1), rows)
    committed(sink, attempt(2), rows)

    quoted = '"' + f"t {name}".replace('"', '""') + '"'
    assert schema.query(f"SELECT * FROM {quoted}") == [(1, "a", 2)]


def test_a_name_that_postgresql_would_cut_is_refused(schema: Schema) -> None:
    with pytest.raises(InvalidInputError, match="63 bytes"):
        opened(schema, table="ü" * 32)


def test_rows_of_a_task_that_spark_ran_again_are_staged_once(schema: Schema, spark: SparkSession) -> None:
    # A run that died after its rows were durable, and before Spark heard of it.
    from holdfast.spark.sinks import loading

    sink, epoch = opened(schema), attempt(1)
    sink.begin(epoch)
    whole = loading.Loader.__call__

    def twice(self: loading.Loader, batches: Any) -> Any:
        batches = list(batches)
        list(whole(self, iter(batches)))
        return whole(self, iter(batches))

    rows = spark.range(0, 10, 1, 3).selectExpr("cast(id AS INT) AS id", "'w' AS word")
    receipts = [sink.prepare(_running(rows, twice), epoch, 0)]
    sink.commit(epoch, stored(receipts))

    assert [number for (number,) in schema.query("SELECT id FROM words ORDER BY id")] == list(range(10))


def _running(rows: DataFrame, call: Any) -> DataFrame:
    """``rows``, whose partitions are loaded by ``call`` in place of ``Loader.__call__``."""
    rows_type = type(rows)

    class Other(rows_type):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            self.__dict__.update(rows.__dict__)

        def toDF(self, *names: str) -> Any:
            return _running(rows.toDF(*names), call)

        def select(self, *columns: Any) -> Any:
            return _running(rows.select(*columns), call)

        def mapInArrow(self, loader: Any, schema: Any) -> Any:
            return rows.mapInArrow(lambda batches: call(loader, batches), schema)

    return Other()


def test_a_key_given_twice_and_a_null_in_it_are_named(schema: Schema, spark: SparkSession) -> None:
    sink = opened(schema, key=["id"])
    for number, (rows, said) in enumerate(
        [(frame(spark, (7, "a"), (7, "b")), "id=7"), (frame(spark, (None, "a")), "id=None")], 1
    ):
        epoch = attempt(number)
        sink.begin(epoch)

        with pytest.raises(InvalidInputError, match=said):
            sink.prepare(rows, epoch, 0)

        sink.abort(epoch, [])
    assert schema.tables() == []


@pytest.mark.parametrize(
    "definition",
    [
        "id INT CHECK (id < 5), word TEXT",
        "id INT UNIQUE, word TEXT",
        "id INT PRIMARY KEY, word TEXT",
        "id INT, word TEXT NOT NULL",
        "id INT, word VARCHAR(2)",
        "id INT, word INT",
    ],
)
def test_a_rule_of_the_table_that_rows_break_is_found_out_before_the_decision(
    schema: Schema, spark: SparkSession, definition: str
) -> None:
    schema.query(f"CREATE TABLE words ({definition})")
    sink, epoch = opened(schema), attempt(1)
    sink.begin(epoch)

    with pytest.raises(ConflictError):
        sink.prepare(frame(spark, (1, "abc"), (7, None), (7, "x")), epoch, 0)

    assert schema.query("SELECT * FROM words") == []


def test_a_table_of_our_own_making_needs_no_rehearsal(
    schema: Schema, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = opened(schema, key=["id"], epoch_column="epoch")
    rows = spark.sql("SELECT 1 AS id, 1.5BD AS n, current_timestamp() AS at, array(1) AS list")
    committed(sink, attempt(1), rows)

    def rehearsed(*_: Any) -> None:
        raise AssertionError("the rows were inserted twice for nothing")

    monkeypatch.setattr(Database, "_rehearse", rehearsed)
    committed(sink, attempt(2), rows)

    assert schema.query("SELECT id, epoch FROM words") == [(1, 2)]


def test_a_text_with_a_nul_ends_the_attempt_before_the_decision(schema: Schema, spark: SparkSession) -> None:
    sink, epoch = opened(schema), attempt(1)
    sink.begin(epoch)

    with pytest.raises(Exception, match="NUL"):
        sink.prepare(spark.sql("SELECT 'a\\0b' AS word"), epoch, 0)

    sink.abort(epoch, [])
    assert schema.tables() == []


def test_rows_come_in_parts_and_the_later_part_wins(schema: Schema, spark: SparkSession) -> None:
    committed(
        opened(schema, key=["id"]), attempt(1), frame(spark, (1, "a"), (2, "b")), frame(spark, (1, "c"))
    )

    assert schema.query("SELECT id, word FROM words ORDER BY id") == [(1, "c"), (2, "b")]


def test_a_rewind_takes_back_its_range(schema: Schema, spark: SparkSession) -> None:
    sink = opened(schema, epoch_column="epoch")
    for number in range(1, 5):
        committed(sink, attempt(number), frame(spark, (number, "w")))
    late = attempt(5)
    receipts = prepared(sink, late, frame(spark, (5, "w")))

    sink.rewind(3, 5)
    sink.commit(late, receipts)

    assert schema.query("SELECT id, epoch FROM words ORDER BY id") == [(1, 1), (2, 2)]
    assert sink.outcome(late, receipts) is Outcome.NOT_COMMITTED
    assert schema.tables("_hf_") == []


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


def test_processes_commit_one_epoch_at_once_into_a_database_without_tables(
    schema: Schema, spark: SparkSession
) -> None:
    epoch = attempt(1)
    rows = spark.range(500).selectExpr("cast(id AS INT) AS id", "'w' AS word")
    receipts = prepared(opened(schema), epoch, rows)
    told = json.dumps({"url": schema.url, "id": str(epoch.id), "receipts": receipts})

    processes = [
        subprocess.Popen([sys.executable, "-c", COMMITTER], stdin=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(told)
        process.stdin.close()

    assert [process.wait(60) for process in processes] == [0] * 4
    assert schema.query("SELECT count(*), count(DISTINCT id) FROM words") == [(500, 500)]


def test_staged_rows_outlive_the_server(schema: Schema, spark: SparkSession) -> None:
    sink, epoch = opened(schema), attempt(1)
    receipts = prepared(sink, epoch, frame(spark, (1, "a"), (2, "b")))

    schema.server.kill()
    with pytest.raises(StoreUnavailableError):
        sink.commit(epoch, receipts)
    schema.server.start()
    sink.commit(epoch, receipts)

    assert schema.query("SELECT id, word FROM words ORDER BY id") == [(1, "a"), (2, "b")]


def test_a_commit_whose_connection_is_cut_shows_all_or_nothing(schema: Schema, spark: SparkSession) -> None:
    sink, epoch = opened(schema), attempt(1)
    receipts = prepared(sink, epoch, frame(spark, (1, "a")))
    # The trigger cuts the connection in the middle of the transaction.
    schema.query("CREATE TABLE words (id INT, word TEXT)")
    schema.query(
        "CREATE FUNCTION cut() RETURNS trigger LANGUAGE plpgsql AS "
        "$$BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NEW; END$$"
    )
    schema.query("CREATE TRIGGER cut AFTER INSERT ON words FOR EACH ROW EXECUTE FUNCTION cut()")

    with pytest.raises(StoreUnavailableError):
        sink.commit(epoch, receipts)
    before = sink.outcome(epoch, receipts), schema.query("SELECT * FROM words")
    schema.query("DROP TRIGGER cut ON words")
    sink.commit(epoch, receipts)

    assert before == (Outcome.NOT_COMMITTED, [])
    assert schema.query("SELECT id FROM words") == [(1,)]


def test_a_staging_table_that_lost_rows_is_not_committed(schema: Schema, spark: SparkSession) -> None:
    sink, epoch = opened(schema), attempt(1)
    receipts = prepared(sink, epoch, frame(spark, (1, "a"), (2, "b")))
    schema.query(f'DELETE FROM "{schema.tables("_hf_")[0]}" WHERE c0 = 1')

    with pytest.raises(StagedOutputGoneError, match="1 rows of 2"):
        sink.commit(epoch, receipts)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:geheim@127.0.0.1:1/nowhere",
        "postgresql://me:geheim@host.invalid/nowhere",
        "postgresql://me:geheim@127.0.0.1:port/nowhere",
        "postgresql://me:geheim@127.0.0.1/nowhere?nonsense=1",
    ],
)
def test_no_error_repeats_the_password(url: str) -> None:
    import traceback

    with pytest.raises(HoldfastError) as caught:
        Database(url, table="words").open(FLOW)

    text = "".join(traceback.format_exception(caught.value)) + repr(caught.value.__dict__)
    assert "geheim" not in text.replace(url, "")
    assert "geheim" not in str(caught.value)
