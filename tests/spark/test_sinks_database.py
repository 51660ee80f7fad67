"""The Database sink on SQLite with a real Spark: values, names, keys, checks in time, rewinding."""

from __future__ import annotations

import json
import math
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.coordinator.sink import Outcome, SinkFlow, StagedOutputGoneError
from holdfast.errors import ConflictError, CorruptError, InvalidInputError, StoreUnavailableError
from holdfast.ids import CheckpointId
from holdfast.spark.sinks import Database, fetching, sqlite
from holdfast.testing.sinks import FLOW, attempt, stored

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

OTHER = SinkFlow("orders/per_hour", "lake")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "out.db"


@pytest.fixture
def rows(spark: SparkSession) -> Callable[..., DataFrame]:
    def make(*pairs: tuple[int | None, str | None]) -> DataFrame:
        return spark.createDataFrame(list(pairs), "id INT, word STRING")

    return make


def opened(path: Path, flow: SinkFlow = FLOW, **settings: Any) -> Database:
    sink = Database(f"sqlite:///{path}", **{"table": "words", **settings})
    sink.open(flow)
    return sink


def prepared(sink: Database, epoch: Any, *parts: DataFrame) -> list[Any]:
    sink.begin(epoch)
    return stored([sink.prepare(part, epoch, number) for number, part in enumerate(parts)])


def committed(sink: Database, epoch: Any, *parts: DataFrame) -> list[Any]:
    receipts = prepared(sink, epoch, *parts)
    sink.commit(epoch, receipts)
    return receipts


def query(path: Path, sql: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as connection, connection:
        return connection.execute(sql).fetchall()


def words(path: Path) -> list[tuple[Any, ...]]:
    return query(path, "SELECT id, word FROM words ORDER BY id, word")


def staged(path: Path) -> list[str]:
    return [
        name for (name,) in query(path, "SELECT name FROM sqlite_schema WHERE substr(name, 1, 4) = '_hf_'")
    ]


# --- what stands in the database ---------------------------------------------------------------------


def test_the_epochs_stand_beside_the_table(path: Path, rows: Callable[..., DataFrame]) -> None:
    epoch = attempt(41)

    committed(opened(path), epoch, rows((1, "a")))

    assert query(path, "SELECT * FROM _holdfast_epochs") == [
        ("orders/per_minute", "lake", 41, str(epoch.id), 0)
    ]
    columns = query(path, "SELECT name, pk FROM pragma_table_info('_holdfast_epochs')")
    assert columns == [("flow", 1), ("sink", 2), ("epoch", 3), ("checkpoint_id", 0), ("rewound", 0)]


def test_the_table_is_made_by_the_commit_and_nothing_stays_staged(
    path: Path, rows: Callable[..., DataFrame]
) -> None:
    sink, epoch = opened(path), attempt(1)

    receipts = prepared(sink, epoch, rows((1, "a")), rows((2, "b")))
    before = query(path, "SELECT name FROM sqlite_schema WHERE name = 'words'")
    waiting = staged(path)
    sink.commit(epoch, receipts)

    assert before == []
    assert len(waiting) == 2
    assert staged(path) == []
    assert words(path) == [(1, "a"), (2, "b")]


def test_an_epoch_without_rows_still_makes_the_table(path: Path, rows: Callable[..., DataFrame]) -> None:
    committed(opened(path), attempt(1), rows())

    assert words(path) == []


def test_a_newer_row_of_a_key_replaces_the_older_one(path: Path, rows: Callable[..., DataFrame]) -> None:
    sink = opened(path, key=["id"])

    committed(sink, attempt(1), rows((1, "a"), (2, "b")))
    committed(sink, attempt(2), rows((2, "B"), (3, "c")))

    assert words(path) == [(1, "a"), (2, "B"), (3, "c")]


def test_within_an_epoch_the_later_micro_batch_wins(path: Path, rows: Callable[..., DataFrame]) -> None:
    committed(opened(path, key=["id"]), attempt(1), rows((1, "first")), rows((1, "second")), rows((2, "x")))

    assert words(path) == [(1, "second"), (2, "x")]


def test_a_key_of_every_column_keeps_one_row_each(path: Path, rows: Callable[..., DataFrame]) -> None:
    sink = opened(path, key=["id", "word"])

    committed(sink, attempt(1), rows((1, "a"), (1, "b")))
    committed(sink, attempt(2), rows((1, "b"), (1, "c")))

    assert words(path) == [(1, "a"), (1, "b"), (1, "c")]


def test_without_a_key_every_row_is_appended(path: Path, rows: Callable[..., DataFrame]) -> None:
    sink = opened(path)

    committed(sink, attempt(1), rows((1, "a"), (1, "a")))
    committed(sink, attempt(2), rows((1, "a")))

    assert words(path) == [(1, "a")] * 3


def test_several_chunks_of_rows_are_staged_whole(
    path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.spark.sinks.database._ROWS_AT_ONCE", 7)

    committed(opened(path), attempt(1), spark.range(50).selectExpr("cast(id AS INT) AS id", "'w' AS word"))

    assert [number for number, _ in words(path)] == list(range(50))


def test_a_cached_batch_of_few_rows_comes_in_one_job_however_many_partitions(
    path: Path, spark: SparkSession
) -> None:
    frame = spark.range(0, 100, 1, 40).selectExpr("cast(id AS INT) AS id", "'w' AS word").persist()
    frame.count()

    jobs = _jobs(spark, lambda: committed(opened(path), attempt(1), frame))
    frame.unpersist()

    assert jobs == 1
    assert [number for number, _ in words(path)] == list(range(100))


def test_a_cached_batch_of_many_rows_comes_in_pieces_cut_to_measure(
    path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "_PIECE_ROWS", 30)
    frame = spark.range(0, 100, 1, 40).selectExpr("cast(id AS INT) AS id", "'w' AS word").persist()
    frame.count()

    jobs = _jobs(spark, lambda: committed(opened(path), attempt(1), frame))
    frame.unpersist()

    assert 1 < jobs < 10
    assert [number for number, _ in words(path)] == list(range(100))


def test_a_batch_whose_cache_is_not_filled_is_not_believed_to_be_empty(
    path: Path, spark: SparkSession
) -> None:
    frame = spark.range(0, 100, 1, 4).selectExpr("cast(id AS INT) AS id", "'w' AS word").persist()

    size = fetching.cached_size(frame)
    committed(opened(path), attempt(1), frame)
    frame.unpersist()

    assert size is None
    assert len(words(path)) == 100


def _jobs(spark: SparkSession, work: Callable[[], object]) -> int:
    """How many jobs Spark ran for ``work``."""
    spark.sparkContext.setJobGroup("counted", "counted")
    try:
        work()
    finally:
        spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)
    return len(spark.sparkContext.statusTracker().getJobIdsForGroup("counted"))


# --- values ------------------------------------------------------------------------------------------

VALUES = {
    "TIMESTAMP'2026-01-01 00:00:05Z'": "2026-01-01 00:00:05",
    "timestamp_micros(1767225605000001)": "2026-01-01 00:00:05.000001",
    "timestamp_micros(1767225605100000)": "2026-01-01 00:00:05.100000",
    "TIMESTAMP'1969-12-31 23:59:59.999999Z'": "1969-12-31 23:59:59.999999",
    "TIMESTAMP'0001-01-01 00:00:00Z'": "0001-01-01 00:00:00",
    # The hour that comes twice in Berlin, both of it.
    "TIMESTAMP'2025-10-26 00:30:00Z'": "2025-10-26 00:30:00",
    "TIMESTAMP'2025-10-26 01:30:00Z'": "2025-10-26 01:30:00",
    "TIMESTAMP_NTZ'2025-03-30 02:30:00'": "2025-03-30 02:30:00",
    "TIMESTAMP_NTZ'2026-01-01 00:00:05.000001'": "2026-01-01 00:00:05.000001",
    "DATE'2026-01-01'": "2026-01-01",
    "CAST('12.50' AS DECIMAL(10,2))": "12.50",
    "CAST('0.000000000000000001' AS DECIMAL(38,18))": "0.000000000000000001",
    "12345678901234567890123456789012345678BD": "12345678901234567890123456789012345678",
    "true": 1,
    "false": 0,
    "X'00FF'": b"\x00\xff",
    "CAST(-9223372036854775808 AS BIGINT)": -9223372036854775808,
    "CAST(7 AS TINYINT)": 7,
    "0.1D": 0.1,
    "CAST('Infinity' AS DOUBLE)": math.inf,
    "CAST('NaN' AS DOUBLE)": "NaN",
    "CAST('NaN' AS FLOAT)": "NaN",
    "'ünïcode \\' \\\" 😀'": "ünïcode ' \" 😀",
    "''": "",
    "NULL": None,
    "CAST(NULL AS TIMESTAMP)": None,
    "CAST(NULL AS STRUCT<a: INT>)": None,
    "INTERVAL '1 02:03:04' DAY TO SECOND": "INTERVAL '1 02:03:04' DAY TO SECOND",
}

NESTED = {
    "named_struct('a', 1, 'b', CAST(NULL AS INT))": {"a": 1, "b": None},
    "array(1, NULL, 3)": [1, None, 3],
    "map('k', 1.5D)": {"k": 1.5},
    "named_struct('at', timestamp_micros(1767225605000001))": {"at": "2026-01-01T00:00:05.000001Z"},
    "array(named_struct('on', DATE'2026-01-01'))": [{"on": "2026-01-01"}],
}


@pytest.fixture(params=[("Asia/Tokyo", "Europe/Berlin"), ("America/Los_Angeles", "UTC")])
def zones(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[None]:
    """Spark's session in one time zone, this process in another."""
    session, machine = request.param
    before = spark.conf.get("spark.sql.session.timeZone"), os.environ.get("TZ")
    spark.conf.set("spark.sql.session.timeZone", session)
    os.environ["TZ"] = machine
    time.tzset()
    yield
    spark.conf.set("spark.sql.session.timeZone", before[0] or "UTC")
    os.environ.pop("TZ") if before[1] is None else os.environ.update(TZ=before[1])
    time.tzset()


def test_no_value_depends_on_a_time_zone(path: Path, spark: SparkSession, zones: None) -> None:
    columns = [f"{expression} AS v{number}" for number, expression in enumerate([*VALUES, *NESTED])]

    committed(opened(path), attempt(1), spark.sql(f"SELECT {', '.join(columns)}"))

    row = query(path, "SELECT * FROM words")[0]
    plain, nested = row[: len(VALUES)], [json.loads(value) for value in row[len(VALUES) :]]
    assert dict(zip(VALUES, plain, strict=True)) == VALUES
    assert dict(zip(NESTED, nested, strict=True)) == NESTED


def test_columns_get_the_types_that_keep_their_values(path: Path, spark: SparkSession) -> None:
    columns = (
        "1 AS i, 1D AS d, true AS b, '1' AS s, CAST(1 AS DECIMAL(5,2)) AS n, X'01' AS x, current_date() AS t"
    )

    committed(opened(path), attempt(1), spark.sql(f"SELECT {columns}"))

    types = query(path, "SELECT name, type FROM pragma_table_info('words')")
    assert types == [
        ("i", "INTEGER"), ("d", "REAL"), ("b", "INTEGER"), ("s", "TEXT"), ("n", "TEXT"), ("x", "BLOB"),
        ("t", "TEXT"),
    ]  # fmt: skip


def test_text_of_times_sorts_as_time_does(path: Path, spark: SparkSession) -> None:
    micros = [0, 1, 999_999, 1_000_000, 1_500_000, 59_999_999, -1, 1_000_001]
    values = ", ".join(f"({value}L)" for value in micros)

    committed(
        opened(path),
        attempt(1),
        spark.sql(f"SELECT col1 AS us, timestamp_micros(col1) AS at FROM VALUES {values}"),
    )

    assert [us for (us,) in query(path, "SELECT us FROM words ORDER BY at")] == sorted(micros)


def test_a_time_no_text_can_hold_ends_the_attempt_before_the_decision(
    path: Path, spark: SparkSession
) -> None:
    sink, epoch = opened(path), attempt(1)
    sink.begin(epoch)

    with pytest.raises(InvalidInputError, match=r"'at'.*year"):
        sink.prepare(spark.sql("SELECT timestamp_micros(400000000000000000L) AS at"), epoch, 0)


# --- names -------------------------------------------------------------------------------------------

HOSTILE = [
    'a"b',
    "a'b",
    "a b",
    "a;DROP TABLE words--",
    "select",
    "ü",
    "a.b",
    "a`b",
    "100%",
    "a?b",
    ":x",
    "[a]",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_any_name_is_a_name(path: Path, spark: SparkSession, name: str) -> None:
    frame = spark.createDataFrame([(1, "a")], "k INT, v STRING").toDF(name, name + "2")
    sink = opened(path, table=f"t {name}", key=[name], epoch_column=f"e {name}")

    committed(sink, attempt(1), frame)
    committed(sink, attempt(2), frame)

    quoted = '"' + f"t {name}".replace('"', '""') + '"'
    assert query(path, f"SELECT * FROM {quoted}") == [(1, "a", 2)]


def test_a_hostile_flow_is_only_a_name(path: Path, rows: Callable[..., DataFrame]) -> None:
    flow = SinkFlow("a'; DROP TABLE words; --/b", 'x"y%_')

    committed(opened(path, flow), attempt(1), rows((1, "a")))

    newest = Database(f"sqlite:///{path}", table="words").open(flow)
    assert newest is not None
    assert newest.number == 1
    assert words(path) == [(1, "a")]


@pytest.mark.parametrize("table", ["", "_holdfast_epochs", "_hf_x", "sqlite_x"])
def test_a_table_of_our_own_or_sqlites_is_refused(path: Path, table: str) -> None:
    with pytest.raises(InvalidInputError, match="no name"):
        opened(path, table=table)


@pytest.mark.parametrize(
    "url",
    ["out.db", "sqlite://out.db", "sqlite:///", "sqlite://", "sqlite:///:memory:", "mysql://u:geheim@h/d", 7],
)
def test_a_wrong_url_is_refused_without_its_secret(url: Any) -> None:
    with pytest.raises(InvalidInputError) as caught:
        Database(url, table="t")

    assert "geheim" not in f"{caught.value} {caught.value.hint}"


def test_a_relative_url_is_relative_to_where_the_sink_was_made(
    tmp_path: Path, rows: Callable[..., DataFrame], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sink = Database("sqlite:///deep/er/out.db", table="words")
    monkeypatch.chdir("/")
    sink.open(FLOW)

    committed(sink, attempt(1), rows((1, "a")))

    assert words(tmp_path / "deep/er/out.db") == [(1, "a")]


# --- what is found out before the decision --------------------------------------------------------------


def refusal(sink: Database, frame: DataFrame) -> str:
    """Why ``prepare`` refuses, with nothing staged or shown by then."""
    epoch = attempt(1)
    sink.begin(epoch)
    with pytest.raises((InvalidInputError, ConflictError)) as caught:
        sink.prepare(frame, epoch, 0)
    sink.abort(epoch, [])
    return str(caught.value)


def test_a_key_given_twice_in_one_micro_batch_is_named(path: Path, rows: Callable[..., DataFrame]) -> None:
    said = refusal(opened(path, key=["id"]), rows((1, "a"), (7, "b"), (7, "c")))

    assert "id=7" in said
    assert staged(path) == []


def test_a_null_in_the_key_is_named(path: Path, rows: Callable[..., DataFrame]) -> None:
    said = refusal(opened(path, key=["id", "word"]), rows((1, "a"), (2, None)))

    assert "id=2, word=None" in said


def test_a_key_the_query_does_not_give_is_named(path: Path, rows: Callable[..., DataFrame]) -> None:
    said = refusal(opened(path, key=["id", "day"]), rows((1, "a")))

    assert "'day'" in said
    assert not path.exists()


def test_columns_the_table_lacks_are_named_before_anything_is_staged(
    path: Path, rows: Callable[..., DataFrame]
) -> None:
    query(path, "CREATE TABLE words (id INT)")

    said = refusal(opened(path), rows((1, "a")))

    assert "'word'" in said
    assert "'id'" in said


def test_a_column_that_must_have_a_value_and_gets_none_is_named(
    path: Path, rows: Callable[..., DataFrame]
) -> None:
    query(path, "CREATE TABLE words (id INT, word TEXT, at TEXT NOT NULL, by TEXT NOT NULL DEFAULT 'me')")

    assert "'at'" in refusal(opened(path), rows((1, "a")))


def test_a_table_with_more_columns_takes_the_rows_in_those_they_name(
    path: Path, rows: Callable[..., DataFrame]
) -> None:
    query(
        path, "CREATE TABLE words (nr INTEGER PRIMARY KEY NOT NULL, WORD TEXT, by TEXT DEFAULT 'me', id INT)"
    )

    committed(opened(path), attempt(1), rows((1, "a")))

    assert query(path, "SELECT * FROM words") == [(1, "a", "me", 1)]


def test_a_computed_column_is_not_to_be_given(path: Path, rows: Callable[..., DataFrame]) -> None:
    query(path, "CREATE TABLE words (id INT, word TEXT AS (id || 'x'))")

    assert "computes 'word' itself" in refusal(opened(path), rows((1, "a")))


@pytest.mark.parametrize(
    "definition",
    [
        "CREATE TABLE words (id INT CHECK (id < 5), word TEXT)",
        "CREATE TABLE words (id INT UNIQUE, word TEXT)",
        "CREATE TABLE words (id INT PRIMARY KEY, word TEXT)",
        "CREATE TABLE words (id INT, word TEXT NOT NULL)",
        "CREATE TABLE words (id TEXT, word INT) STRICT",
    ],
)
def test_a_rule_of_the_table_that_rows_break_is_found_out_before_the_decision(
    path: Path, rows: Callable[..., DataFrame], definition: str
) -> None:
    query(path, definition)

    assert "refused" in refusal(opened(path), rows((1, "a"), (7, None), (7, "x")))
    assert words(path) == []


def test_a_trigger_and_a_unique_index_count_as_rules(path: Path, rows: Callable[..., DataFrame]) -> None:
    query(path, "CREATE TABLE words (id INT, word TEXT)")
    query(
        path,
        "CREATE TRIGGER no AFTER INSERT ON words BEGIN SELECT RAISE(ABORT, 'never') WHERE NEW.id = 7; END",
    )

    assert "never" in refusal(opened(path), rows((7, "a")))


def test_a_table_that_does_not_keep_the_key_unique_is_refused_by_open(
    path: Path, rows: Callable[..., DataFrame]
) -> None:
    query(path, "CREATE TABLE words (id INT, word TEXT)")
    sink = Database(f"sqlite:///{path}", table="words", key=["ID"])

    with pytest.raises(InvalidInputError, match="unique") as caught:
        sink.open(FLOW)
    query(path, "CREATE UNIQUE INDEX one ON words (id)")
    sink.open(FLOW)
    committed(sink, attempt(1), rows((1, "a")))

    assert "CREATE UNIQUE INDEX" in (caught.value.hint or "")
    assert words(path) == [(1, "a")]


def test_two_columns_that_differ_in_case_alone_are_refused(path: Path, spark: SparkSession) -> None:
    frame = spark.createDataFrame([(1, 2)], "a INT, b INT").toDF("a", "A")

    assert "several columns of one name" in refusal(opened(path), frame)


def test_an_epoch_column_that_the_query_gives_too_is_refused(
    path: Path, rows: Callable[..., DataFrame]
) -> None:
    assert "epoch_column" in refusal(opened(path, epoch_column="ID"), rows((1, "a")))


# --- locks, damage, lost tables -------------------------------------------------------------------------


def test_a_locked_database_is_try_later_and_the_commit_can_be_repeated(
    path: Path, rows: Callable[..., DataFrame], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "_BUSY_SECONDS", 0.05)
    sink, epoch = opened(path), attempt(1)
    receipts = prepared(sink, epoch, rows((1, "a")))

    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreUnavailableError, match="another process holds its lock"):
            sink.commit(epoch, receipts)
    sink.commit(epoch, receipts)

    assert words(path) == [(1, "a")]


def test_a_file_that_is_no_database_is_corrupt(path: Path) -> None:
    path.write_bytes(b"no database at all, but long enough to look at" * 100)

    with pytest.raises(CorruptError):
        opened(path)


def test_every_commit_waits_for_the_disk(
    path: Path, rows: Callable[..., DataFrame], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    connect = sqlite3.connect

    def traced(*arguments: Any, **settings: Any) -> sqlite3.Connection:
        connection = connect(*arguments, **settings)
        connection.set_trace_callback(
            lambda sql: seen.append(sql) if sql.startswith(("PRAGMA sync", "BEGIN", "COMMIT")) else None
        )
        return connection

    monkeypatch.setattr(sqlite3, "connect", traced)
    committed(opened(path), attempt(1), rows((1, "a")))

    assert seen == ["PRAGMA synchronous = EXTRA", "BEGIN IMMEDIATE", "COMMIT"] * 2


def test_a_table_dropped_after_the_decision_is_made_again(path: Path, rows: Callable[..., DataFrame]) -> None:
    sink, epoch = opened(path), attempt(2)
    committed(sink, attempt(1), rows((1, "a")))
    receipts = prepared(sink, epoch, rows((2, "b")))
    query(path, "DROP TABLE words")

    sink.commit(epoch, receipts)

    assert words(path) == [(2, "b")]


def test_a_staging_table_that_lost_rows_is_not_committed(path: Path, rows: Callable[..., DataFrame]) -> None:
    sink, epoch = opened(path), attempt(1)
    receipts = prepared(sink, epoch, rows((1, "a"), (2, "b")))
    query(path, f'DELETE FROM "{staged(path)[0]}" WHERE c0 = 1')

    with pytest.raises(StagedOutputGoneError, match="1 rows of 2"):
        sink.commit(epoch, receipts)

    assert query(path, "SELECT name FROM sqlite_schema WHERE name IN ('words', '_holdfast_epochs')") == []
    assert sink.outcome(epoch, receipts) is Outcome.NOT_COMMITTED


def test_the_commit_of_a_second_checkpoint_of_one_epoch_is_a_conflict(
    path: Path, rows: Callable[..., DataFrame]
) -> None:
    one, other = attempt(1), attempt(1)
    sink = opened(path)
    receipts = prepared(sink, other, rows((2, "b")))
    committed(opened(path), one, rows((1, "a")))

    with pytest.raises(ConflictError, match=str(one.id)):
        sink.commit(other, receipts)
    with pytest.raises(ConflictError, match=str(one.id)):
        sink.outcome(other, receipts)
    with pytest.raises(ConflictError, match="already shows epoch 1"):
        sink.begin(attempt(1))

    assert words(path) == [(1, "a")]


# --- rewinding -------------------------------------------------------------------------------------------


@pytest.fixture
def five(path: Path, rows: Callable[..., DataFrame]) -> Database:
    """A sink that shows epochs 1 to 5, each one row with an epoch number."""
    sink = opened(path, epoch_column="epoch")
    for number in range(1, 6):
        committed(sink, attempt(number), rows((number, "w")))
    return sink


def test_a_rewind_takes_back_its_range_and_nothing_else(five: Database, path: Path) -> None:
    five.rewind(3, 4)
    five.rewind(3, 4)

    assert query(path, "SELECT id, epoch FROM words ORDER BY id") == [(1, 1), (2, 2), (5, 5)]
    assert query(path, "SELECT epoch, rewound FROM _holdfast_epochs ORDER BY epoch") == [
        (1, 0), (2, 0), (3, 1), (4, 1), (5, 0)
    ]  # fmt: skip


def test_after_a_rewind_to_the_end_the_newest_epoch_is_an_older_one(five: Database, path: Path) -> None:
    five.rewind(4, 5)

    newest = Database(f"sqlite:///{path}", table="words", epoch_column="epoch").open(FLOW)

    assert newest is not None
    assert newest.number == 3


def test_a_late_commit_of_a_rewound_epoch_finds_nothing_to_do(
    five: Database, path: Path, rows: Callable[..., DataFrame]
) -> None:
    never = attempt(6)
    receipts = prepared(five, never, rows((6, "w")))

    five.rewind(5, 6)
    five.commit(never, receipts)

    assert query(path, "SELECT id FROM words ORDER BY id") == [(1,), (2,), (3,), (4,)]
    assert staged(path) == []
    assert five.outcome(never, receipts) is Outcome.NOT_COMMITTED


def test_rows_of_another_sink_with_epochs_of_its_own_stop_a_rewind(
    five: Database, path: Path, rows: Callable[..., DataFrame]
) -> None:
    committed(opened(path, OTHER, epoch_column="epoch"), attempt(3), rows((300, "w")))

    with pytest.raises(ConflictError, match="orders/per_hour"):
        five.rewind(3, 4)

    assert len(query(path, "SELECT * FROM words")) == 6


@pytest.mark.parametrize(
    ("settings", "reason"),
    [({}, "no epoch_column"), ({"key": ["id"], "epoch_column": "epoch"}, "replaced older ones")],
)
def test_what_cannot_be_rewound_says_why(
    path: Path, rows: Callable[..., DataFrame], settings: dict[str, Any], reason: str
) -> None:
    sink = opened(path, **settings)
    committed(sink, attempt(1), rows((1, "a")))

    with pytest.raises(InvalidInputError, match=reason):
        sink.rewind(1, 1)

    assert reason in (sink.rewind_refusal or "")
    assert words(path) == [(1, "a")]


# --- other processes ---------------------------------------------------------------------------------------

COMMITTER = """
import json, os, signal, sqlite3, sys
from holdfast.coordinator.sink import Epoch, SinkFlow
from holdfast.ids import CheckpointId
from holdfast.spark.sinks.database import Database

told = json.loads(sys.stdin.read())
connect = sqlite3.connect

def killing(*arguments, **settings):
    connection = connect(*arguments, **settings)
    # Small, so that pages of the open transaction are in the file, and the journal is hot.
    connection.execute("PRAGMA cache_size = 2")
    def look(sql):
        if told["die_at"] and sql.startswith(told["die_at"]):
            os.kill(os.getpid(), signal.SIGKILL)
    connection.set_trace_callback(look)
    return connection

sqlite3.connect = killing
sink = Database(told["url"], table="words")
sink.open(SinkFlow("orders/per_minute", "lake"))
sink.commit(Epoch(1, CheckpointId.parse(told["id"]), 1), told["receipts"])
assert "pyspark" not in sys.modules
"""


def commit_elsewhere(
    path: Path, id: CheckpointId, receipts: list[Any], die_at: str = ""
) -> subprocess.Popen[str]:
    told = {"url": f"sqlite:///{path}", "id": str(id), "receipts": receipts, "die_at": die_at}
    process = subprocess.Popen([sys.executable, "-c", COMMITTER], stdin=subprocess.PIPE, text=True)
    assert process.stdin is not None
    process.stdin.write(json.dumps(told))
    process.stdin.close()
    return process


def test_two_processes_commit_one_epoch_at_once(path: Path, spark: SparkSession) -> None:
    epoch = attempt(1)
    frame = spark.range(500).selectExpr("cast(id AS INT) AS id", "'w' AS word")
    receipts = prepared(opened(path), epoch, frame)

    processes = [commit_elsewhere(path, epoch.id, receipts) for _ in range(3)]

    assert [process.wait(60) for process in processes] == [0, 0, 0]
    assert len(words(path)) == 500


@pytest.mark.kills
@pytest.mark.parametrize(
    "die_at", ["INSERT INTO _holdfast_epochs", 'INSERT INTO "words"', "DROP TABLE", "COMMIT"]
)
def test_a_commit_killed_in_its_transaction_left_nothing_and_is_finished_by_the_next(
    path: Path, spark: SparkSession, die_at: str
) -> None:
    epoch = attempt(1)
    frame = spark.range(3000).selectExpr("cast(id AS INT) AS id", "repeat('w', 100) AS word")
    receipts = prepared(opened(path), epoch, frame)

    killed = commit_elsewhere(path, epoch.id, receipts, die_at).wait(60)
    sink = opened(path)
    outcome = sink.outcome(epoch, receipts)
    sink.commit(epoch, receipts)

    assert killed == -9
    assert outcome is Outcome.NOT_COMMITTED
    assert [number for number, _ in words(path)] == list(range(3000))
    assert staged(path) == []
