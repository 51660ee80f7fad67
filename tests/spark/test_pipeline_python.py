"""Pipelines declared in Python, on real Spark: functions as sources and operators, flows side by side, and
``start`` for a query that is there already."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from runs import (
    FIRST,
    SCHEMA,
    SECOND,
    THIRD,
    add_file,
    add_files,
    lake_rows,
    store_at,
    sums,
    table_rows,
    tree,
    updates,
)

import holdfast.spark
from holdfast.coordinator import Epoch
from holdfast.errors import ChangedPipelineError, InvalidInputError
from holdfast.ledger import StopRecord
from holdfast.manifest import Receipt
from holdfast.spark import Pipeline, sinks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def read_trades(home: Path) -> Callable[[SparkSession], DataFrame]:
    def trades(spark: SparkSession) -> DataFrame:
        return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(home / "in"))

    return trades


def per_minute(trades: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    grouped = trades.withWatermark("ts", "10 minutes").groupBy(F.window("ts", "1 minute"), "symbol")
    return grouped.agg(F.sum("qty").alias("qty")).selectExpr("window.start AS minute", "symbol", "qty")


def shop(home: Path) -> Pipeline:
    return Pipeline("shop", store=str(home / "store"), scratch=str(home / "scratch"), output_mode="update")


def declared(
    home: Path, query: Callable[..., DataFrame] = per_minute, version: str | None = None
) -> Pipeline:
    pipeline = shop(home)
    pipeline.source("trades")(read_trades(home))
    pipeline.operator("per_minute", inputs=["trades"], version=version)(query)
    pipeline.sink("lake", source="per_minute", to=sinks.Files(home / "out"))
    database = sinks.Database(f"sqlite:///{home}/out.db", table="per_minute", key=["symbol", "minute"])
    pipeline.sink("db", source="per_minute", to=database)
    return pipeline


def test_functions_make_the_same_stream_over_two_runs(spark: SparkSession, tmp_path: Path) -> None:
    add_files(tmp_path / "in", FIRST, SECOND)
    declared(tmp_path).run(trigger="available-now", session=spark)
    add_file(tmp_path / "in", 2, THIRD)

    declared(tmp_path).run(trigger="available-now", session=spark)

    assert lake_rows(tmp_path / "out") == updates(FIRST, SECOND, THIRD)
    assert table_rows(tmp_path / "out.db") == sums(FIRST, SECOND, THIRD)


def changed_aggregate(trades: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    grouped = trades.withWatermark("ts", "10 minutes").groupBy(F.window("ts", "1 minute"), "symbol")
    return grouped.agg(F.max("qty").alias("qty")).selectExpr("window.start AS minute", "symbol", "qty")


def changed_grouping(trades: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    return per_minute(trades.withColumn("symbol", F.lower("symbol")))


def test_a_changed_function_is_refused_by_name_though_spark_would_run_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    add_files(tmp_path / "in", FIRST)
    declared(tmp_path).run(trigger="available-now", session=spark)
    add_file(tmp_path / "in", 1, SECOND)
    before = tree(tmp_path)

    for changed in (
        declared(tmp_path, changed_aggregate),
        declared(tmp_path, changed_grouping),
        declared(tmp_path, version="2"),
    ):
        with pytest.raises(ChangedPipelineError, match="operator 'per_minute' was changed"):
            changed.run(trigger="available-now", session=spark)

    assert tree(tmp_path) == before


# --- two flows -----------------------------------------------------------------------------------------


def big_ones(trades: DataFrame) -> DataFrame:
    return trades.where("qty >= 5").selectExpr("date_trunc('minute', ts) AS minute", "symbol", "qty")


class Refuses:
    """A sink that takes nothing."""

    def open(self, flow: Any) -> Epoch | None:
        return None

    def begin(self, epoch: Epoch) -> None:
        pass

    def prepare(self, batch: Any, epoch: Epoch, part: int) -> Receipt:
        raise OSError("no room for these rows")

    def commit(self, epoch: Epoch, receipts: Sequence[Receipt]) -> None:
        raise AssertionError("nothing was prepared")

    def abort(self, epoch: Epoch, receipts: Sequence[Receipt]) -> None:
        pass

    def outcome(self, epoch: Epoch, receipts: Sequence[Receipt]) -> Any:
        raise AssertionError("nothing was decided")

    def sweep(self, generation: int, decided: Any) -> None:
        pass


def two_flows(home: Path, second: Any) -> Pipeline:
    pipeline = shop(home)
    pipeline.source("trades")(read_trades(home))
    pipeline.operator("per_minute", inputs=["trades"])(per_minute)
    pipeline.operator("big_ones", inputs=["trades"])(big_ones)
    pipeline.sink("lake", source="per_minute", to=sinks.Files(home / "out"))
    pipeline.sink("big", source="big_ones", to=second)
    return pipeline


def test_two_flows_of_a_pipeline_have_a_lineage_each(spark: SparkSession, tmp_path: Path) -> None:
    add_files(tmp_path / "in", FIRST, SECOND)

    two_flows(tmp_path, sinks.Files(tmp_path / "big")).run(trigger="available-now", session=spark)

    assert lake_rows(tmp_path / "out") == updates(FIRST, SECOND)
    assert lake_rows(tmp_path / "big").total() == 4
    for flow in ("per_minute", "big_ones"):
        history = store_at(tmp_path / "store" / "shop" / flow).ledger.read()
        assert isinstance(history.record(history.head), StopRecord)
        assert history.newest_decision is not None


def test_a_flow_that_fails_stops_the_other_in_good_order(spark: SparkSession, tmp_path: Path) -> None:
    add_files(tmp_path / "in", FIRST)

    with pytest.raises(OSError, match="no room") as caught:
        two_flows(tmp_path, Refuses()).run(trigger="1 seconds", session=spark)

    assert "in flow 'big_ones'" in caught.value.__notes__
    assert store_at(tmp_path / "store" / "shop" / "big_ones").ledger.read().newest_decision is None
    history = store_at(tmp_path / "store" / "shop" / "per_minute").ledger.read()
    assert isinstance(history.record(history.head), StopRecord)


# --- a query that is there already ---------------------------------------------------------------------


def test_a_query_that_is_there_already_runs_in_the_background_and_goes_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    add_files(tmp_path / "in", FIRST)
    asked = {
        "flow": "shop",
        "store": str(tmp_path / "store"),
        "scratch": str(tmp_path / "scratch"),
        "output_mode": "update",
    }

    def frame() -> DataFrame:
        return per_minute(read_trades(tmp_path)(spark))

    query = holdfast.spark.start(
        frame(), sinks={"lake": sinks.Files(tmp_path / "out")}, trigger="1 seconds", **asked
    )
    wait_for(lambda: lake_rows(tmp_path / "out") == updates(FIRST), query)
    add_file(tmp_path / "in", 1, SECOND)
    wait_for(lambda: lake_rows(tmp_path / "out") == updates(FIRST, SECOND), query)
    query.stop()
    add_file(tmp_path / "in", 2, THIRD)
    again = holdfast.spark.start(
        frame(), sinks={"lake": sinks.Files(tmp_path / "out")}, trigger="available-now", **asked
    )

    assert again.await_termination(120)

    assert not query.is_active
    assert lake_rows(tmp_path / "out") == updates(FIRST, SECOND, THIRD)
    history = store_at(tmp_path / "store" / "shop" / "shop").ledger.read()
    assert isinstance(history.record(history.head), StopRecord)


def test_what_ended_a_background_flow_is_raised_to_who_waits_for_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    add_files(tmp_path / "in", FIRST)
    query = holdfast.spark.start(
        read_trades(tmp_path)(spark),
        flow="shop",
        store=str(tmp_path / "store"),
        scratch=str(tmp_path / "scratch"),
        sinks={"nowhere": Refuses()},
        trigger="available-now",
    )

    with pytest.raises(OSError, match="no room"):
        query.await_termination(120)

    assert isinstance(query.exception(), OSError)


def test_a_frame_that_does_not_stream_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="this one is static"):
        holdfast.spark.start(spark.range(3), flow="shop", store=str(tmp_path), sinks={})


def wait_for(true: Callable[[], bool], query: holdfast.spark.FlowQuery) -> None:
    deadline = time.monotonic() + 120
    while not true():
        assert query.is_active, query.exception()
        assert time.monotonic() < deadline
        time.sleep(0.05)
