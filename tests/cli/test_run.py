"""``run``: the whole way, from a YAML file to two sinks and back out through the other commands."""

from __future__ import annotations

import json
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, TypeAlias

import pytest

pytestmark = pytest.mark.spark

Holdfast: TypeAlias = Callable[..., "subprocess.CompletedProcess[str]"]

PIPELINE = """\
pipeline: orders
store: ./checkpoints
scratch: ./scratch
trigger: available-now
output_mode: update
spark: {spark.sql.shuffle.partitions: 2, spark.ui.enabled: false}
sources:
  trades: {format: json, path: ./in, schema: "symbol STRING, qty BIGINT", options: {maxFilesPerTrigger: 1}}
operators:
  total:
    sql: SELECT symbol, sum(qty) AS qty FROM trades GROUP BY symbol
sinks:
  db: {from: total, database: {url: "sqlite:///out.db", table: total, key: symbol}}
"""


@pytest.fixture
def pipeline(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    for number in (1, 2):
        (tmp_path / "in" / f"{number}.json").write_text(json.dumps({"symbol": "A", "qty": number}))
    (tmp_path / "pipeline.yaml").write_text(PIPELINE)
    return tmp_path / "pipeline.yaml"


def test_a_pipeline_runs_tells_its_epochs_and_refuses_to_go_on_as_another(
    pipeline: Path, holdfast: Holdfast
) -> None:
    store = pipeline.parent / "checkpoints" / "orders" / "total"

    ran = holdfast("run", pipeline, "--json")

    assert ran.returncode == 0, ran.stderr
    # Of Spark's start only what the JVM itself says, which nobody can silence.
    assert ran.stderr.splitlines() in ([], ["WARNING: Using incubator modules: jdk.incubator.vector"])
    events = [json.loads(line) for line in ran.stdout.splitlines()]
    epochs = [one for one in events if one["event"] == "epoch"]
    assert [(one["epoch"], one["batch"], one["flow"]) for one in epochs] == [
        (1, 0, "orders/total"),
        (2, 1, "orders/total"),
    ]
    assert {"prepare", "capture", "publish", "commit"} <= set(events[-2]["milliseconds"])
    assert events[-1]["event"] == "stop"
    with closing(sqlite3.connect(pipeline.parent / "out.db")) as database:
        assert database.execute("SELECT symbol, qty FROM total").fetchall() == [("A", 3)]
    listed = json.loads(holdfast("list", "--store", store, "--json").stdout)
    assert [(one["epoch"], one["status"]) for one in listed] == [(1, "committed"), (2, "committed")]
    assert holdfast("verify", "--store", store, "--read-data").returncode == 0

    # The state holds sums; a count must not be made to go on from them.
    pipeline.write_text(PIPELINE.replace("sum(qty)", "count(qty)"))
    (pipeline.parent / "in" / "3.json").write_text(json.dumps({"symbol": "A", "qty": 3}))

    refused = holdfast("run", pipeline)

    assert refused.returncode == 1
    assert (
        "error: orders/total is not the pipeline its checkpoints were taken from: operator 'total'"
        in refused.stderr
    )
    assert "\nhint: nothing was touched" in refused.stderr
    assert "Traceback" not in refused.stderr
    after = json.loads(holdfast("list", "--store", store, "--json").stdout)
    assert after == listed


def test_a_sink_that_nobody_can_ask_any_more_ends_with_22(
    pipeline: Path, holdfast: Holdfast, flow_at: Callable[..., Any]
) -> None:
    flow = flow_at(pipeline.parent / "checkpoints" / "orders" / "total", sinks=("db", "gone"))
    flow.decide(1)

    result = holdfast("run", pipeline)

    assert result.returncode == 22, result.stderr
    assert "error: sink 'gone' cannot tell whether epoch 1" in result.stderr
    assert "holdfast recover --sink gone --outcome committed|not" in result.stderr
