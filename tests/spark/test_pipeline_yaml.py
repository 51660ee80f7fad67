"""Pipelines declared in YAML, on real Spark: what they resume, what they refuse, what they write down."""

from __future__ import annotations

import logging
import os
import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from runs import (
    FIRST,
    MIDNIGHT,
    PER_MINUTE,
    SECOND,
    THIRD,
    YAML,
    add_file,
    add_files,
    lake_rows,
    store_of,
    sums,
    table_rows,
    tree,
    updates,
    write_yaml,
)

from holdfast.coordinator import Observer, Step, ignore
from holdfast.errors import ChangedPipelineError
from holdfast.ledger import StopRecord
from holdfast.pipeline import Trigger, load_yaml
from holdfast.spark.running import run_pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def run(spark: SparkSession, yaml: Path, trigger: Trigger | None = None, observe: Observer = ignore) -> None:
    run_pipeline(load_yaml(yaml), session=spark, trigger=trigger, observe=observe)


@pytest.fixture(scope="module")
def ran(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home of a pipeline that has read two files. To be copied, not used."""
    home = tmp_path_factory.mktemp("ran")
    # By name alone: in a copy of the home, a file that was read is not new.
    yaml = write_yaml(home, YAML.replace("Trigger: 1", "Trigger: 1, fileNameOnly: true"))
    add_files(home / "in", FIRST, SECOND)
    run(spark, yaml)
    return home


@pytest.fixture
def home(ran: Path, tmp_path: Path) -> Path:
    """A copy of ``ran``, to go on with."""
    return Path(shutil.copytree(ran, tmp_path / "home"))


def test_what_a_second_run_adds_is_what_one_long_run_would_have_added(
    spark: SparkSession, tmp_path: Path
) -> None:
    yaml = write_yaml(tmp_path)
    add_files(tmp_path / "in", FIRST, SECOND)
    run(spark, yaml)
    shutil.rmtree(tmp_path / "scratch")
    add_file(tmp_path / "in", 2, THIRD)

    run(spark, yaml)

    assert lake_rows(tmp_path / "out") == updates(FIRST, SECOND, THIRD)
    assert table_rows(tmp_path / "out.db") == sums(FIRST, SECOND, THIRD)
    # Only the scratch of the newest generation is left.
    assert len(list((tmp_path / "scratch" / "shop" / "per_minute").iterdir())) == 1


def test_a_run_that_finds_nothing_new_decides_nothing(spark: SparkSession, home: Path) -> None:
    before = store_of(home).ledger.read()

    run(spark, home / "pipeline.yaml")

    after = store_of(home).ledger.read()
    assert after.generation > before.generation
    assert after.newest_decision == before.newest_decision
    assert lake_rows(home / "out") == updates(FIRST, SECOND)


def test_a_table_joined_in_one_operator_feeds_the_next(spark: SparkSession, tmp_path: Path) -> None:
    operators = f"""\
  named:
    watermark: {{trades: {{column: ts, delay: 10 minutes}}}}
    sql: SELECT ts, name AS symbol, qty FROM trades JOIN names USING (symbol)
  per_minute:
    sql: >
      {PER_MINUTE.replace("FROM trades", "FROM named")}
"""
    start, end = YAML.index("  per_minute:"), YAML.index("sinks:")
    tables = "tables:\n  names: {format: csv, path: ./names.csv, options: {header: true}}\n"
    text = YAML[:start].replace("operators:", f"{tables}operators:") + operators + YAML[end:]
    yaml = write_yaml(tmp_path, text)
    (tmp_path / "names.csv").write_text("symbol,name\nA,Alpha\nB,Beta\nC,Gamma\n")
    add_files(tmp_path / "in", FIRST, SECOND)
    run(spark, yaml)
    add_file(tmp_path / "in", 2, THIRD)

    run(spark, yaml)

    names = {"A": "Alpha", "B": "Beta", "C": "Gamma"}
    files = [[(second, names[symbol], qty) for second, symbol, qty in f] for f in (FIRST, SECOND, THIRD)]
    assert lake_rows(tmp_path / "out") == updates(*files)
    assert table_rows(tmp_path / "out.db") == sums(*files)
    topology = newest_manifest(tmp_path).topology
    assert topology["operators"]["per_minute"]["inputs"] == ["named"]
    assert sorted(topology["operators"]["named"]["inputs"]) == ["names", "trades"]


def test_a_run_that_is_told_to_terminate_finishes_its_epoch_and_stops_in_good_order(
    spark: SparkSession, home: Path
) -> None:
    add_file(home / "in", 2, THIRD)

    def terminate(step: Step) -> None:
        if (step.name, step.when) == ("prepare", "before"):
            os.kill(os.getpid(), signal.SIGTERM)

    run(spark, home / "pipeline.yaml", Trigger(1000), terminate)

    history = store_of(home).ledger.read()
    assert isinstance(history.record(history.head), StopRecord)
    assert lake_rows(home / "out") == updates(FIRST, SECOND, THIRD)
    assert table_rows(home / "out.db") == sums(FIRST, SECOND, THIRD)


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("sum(qty) AS qty", "max(qty) AS qty", "operator 'per_minute'"),
        ("10 minutes", "11 minutes", "operator 'per_minute'"),
        ("qty BIGINT", "qty INT", "source 'trades'"),
        ("shuffle.partitions: 2", "shuffle.partitions: 3", "shuffle partitions"),
        ("output_mode: update", "output_mode: complete", "output mode"),
    ],
    ids=["query", "watermark", "schema", "partitions", "output-mode"],
)
def test_a_changed_pipeline_is_refused_by_name_and_nothing_is_touched(
    spark: SparkSession, home: Path, old: str, new: str, named: str
) -> None:
    yaml = home / "pipeline.yaml"
    assert old in yaml.read_text()
    yaml.write_text(yaml.read_text().replace(old, new))
    add_file(home / "in", 2, THIRD)
    before = tree(home)

    with pytest.raises(ChangedPipelineError, match=named):
        run(spark, yaml)

    assert tree(home) == before


def test_a_change_that_the_declaration_allows_is_warned_of_and_goes_on(
    spark: SparkSession, home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    yaml = home / "pipeline.yaml"
    changed = yaml.read_text().replace("FROM trades GROUP", "FROM trades WHERE qty > 0 GROUP")
    yaml.write_text(f"{changed}on_change: warn\n")
    add_file(home / "in", 2, THIRD)

    with caplog.at_level(logging.WARNING):
        run(spark, yaml)

    assert "operator 'per_minute' was changed" in caplog.text
    assert lake_rows(home / "out") == updates(FIRST, SECOND, THIRD)


def test_a_manifest_says_where_the_source_stands_and_what_the_pipeline_is(ran: Path) -> None:
    manifest = newest_manifest(ran)

    offsets = manifest.source_offsets["trades"]
    assert (offsets.source_type, offsets.offsets) == ("file", {"logOffset": "1"})
    # The latest trade, less the ten minutes of the declared delay.
    assert manifest.watermark == (MIDNIGHT + 125 - 600) * 1000
    history = store_of(ran).ledger.read()
    start = history.newest_start
    assert start is not None
    assert manifest.pipeline_hash == start.pipeline_hash
    assert manifest.topology == start.topology
    assert set(manifest.topology["sinks"]) == {"lake", "db"}
    assert manifest.sink_names == ["db", "lake"]
    assert set(manifest.sink_receipts) == {"lake", "db"}
    engine = manifest.engine
    assert engine is not None
    assert engine.operators == {"0": "stateStoreSave"}
    assert (engine.state_format, engine.shuffle_partitions) == (2, 2)
    assert engine.state_provider is not None
    assert engine.state_provider.endswith("RocksDBStateStoreProvider")


def newest_manifest(home: Path):  # type: ignore[no-untyped-def]
    store = store_of(home)
    newest = store.ledger.read().newest_decision
    assert newest is not None
    manifest = store.load_by_id(newest.checkpoint_id)
    assert manifest is not None
    return manifest
