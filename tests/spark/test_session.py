"""The shared session is the Spark that the other tests assume. Nothing of Holdfast is tested here."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def test_the_session_counts_in_utc_on_two_cores_with_our_python(spark: SparkSession) -> None:
    worker = spark.sparkContext.parallelize([0], 1).map(lambda _: sys.executable).first()

    hour = spark.sql("SELECT hour(TIMESTAMP '2026-01-01 05:00:00') AS hour").first()

    assert hour is not None
    assert hour["hour"] == 5
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.sparkContext.defaultParallelism == 2
    assert worker == sys.executable


def test_a_stateful_query_with_foreach_batch_runs_to_its_end(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "0.json").write_text('{"k": "a", "v": 1}\n{"k": "b", "v": 2}\n{"k": "a", "v": 3}\n')
    seen: dict[int, list[tuple[str, int]]] = {}

    def keep(batch: DataFrame, number: int) -> None:
        seen[number] = sorted((row["k"], row["total"]) for row in batch.collect())

    sums = spark.readStream.schema("k STRING, v INT").json(str(tmp_path / "in")).groupBy("k").sum("v")
    query = (
        sums.withColumnRenamed("sum(v)", "total")
        .writeStream.outputMode("complete")
        .foreachBatch(keep)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()

    assert seen == {0: [("a", 4), ("b", 2)]}
