"""When is a pipeline the same one? What identity covers, what it leaves out, and what a change is called."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.pipeline import FlowSpec, compare_topology, flows, load_yaml, pipeline_hash, topology
from holdfast.pipeline.identity import EngineFacts, settings

TEXT = """\
pipeline: orders
store: ./checkpoints
trigger: 5 seconds
sources:
  trades: {format: json, path: ./in, schema: "ts TIMESTAMP, qty BIGINT", options: {maxFilesPerTrigger: 1}}
  spare: {format: rate}
tables:
  names: {format: csv, path: ./names.csv, schema: "symbol STRING"}
operators:
  clean: {sql: "SELECT * FROM trades JOIN names"}
  per_minute:
    watermark: {clean: {column: ts, delay: 10 minutes}}
    sql: SELECT sum(qty) AS qty FROM clean GROUP BY window(ts, '1 minute')
sinks:
  lake: {from: per_minute, files: {path: ./out, format: parquet}}
  db: {from: per_minute, database: {url: "sqlite:///out.db", table: t, key: [minute]}}
  raw: {from: clean, files: {path: ./raw}}
"""


def flow(tmp_path: Path, text: str = TEXT, name: str = "per_minute") -> FlowSpec:
    (tmp_path / "pipeline.yaml").write_text(text, encoding="utf-8")
    return next(one for one in flows(load_yaml(tmp_path / "pipeline.yaml")) if one.name == name)


def test_a_flow_holds_what_its_operator_reaches_and_the_sinks_that_share_it(tmp_path: Path) -> None:
    one = flow(tmp_path)

    assert list(one.sources) == ["trades"]
    assert list(one.tables) == ["names"]
    assert list(one.operators) == ["clean", "per_minute"]
    assert list(one.sinks) == ["lake", "db"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("pipeline: orders", "pipeline: orders2"),
        ("trades", "deals"),
        ("format: json", "format: text"),
        ("qty BIGINT", "qty INT"),
        ("sum(qty)", "count(qty)"),
        ("delay: 10 minutes", "delay: 11 minutes"),
        ("column: ts", "column: at"),
        ("FROM trades JOIN names", "FROM trades"),
        ("key: [minute]", "key: [minute, symbol]"),
        ("table: t", "table: t2"),
        ("  lake:", "  lake2:"),
        ("trigger: 5 seconds", "output_mode: update"),
        ("trigger: 5 seconds", "spark: {spark.sql.shuffle.partitions: 8}"),
        ("trigger: 5 seconds", "spark: {spark.sql.streaming.stateStore.providerClass: x.Hdfs}"),
        ("trigger: 5 seconds", "spark: {spark.sql.streaming.stateStore.checkpointFormatVersion: 1}"),
        ("    watermark:", "    version: 2\n    watermark:"),
    ],
)
def test_the_hash_sees_what_gives_state_its_meaning(tmp_path: Path, old: str, new: str) -> None:
    assert old in TEXT

    assert pipeline_hash(flow(tmp_path, TEXT.replace(old, new))) != pipeline_hash(flow(tmp_path))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("store: ./checkpoints", "store: s3://elsewhere"),
        ("store: ./checkpoints", "store: ./checkpoints\nscratch: /tmp/scratch"),
        ("store: ./checkpoints", "store: ./checkpoints\non_change: warn"),
        ("store: ./checkpoints", "store: ./checkpoints\nspark: {spark.executor.memory: 8g}"),
        ("trigger: 5 seconds", "trigger: available-now"),
        ("path: ./in", "path: /data/in"),
        ("path: ./out", "path: /data/out"),
        ("sqlite:///out.db", "sqlite:////data/out.db"),
        ("maxFilesPerTrigger: 1", "maxFilesPerTrigger: 100"),
        ("SELECT sum(qty)", "SELECT   sum(qty)"),
        ("delay: 10 minutes", "delay: 600 seconds"),
        ("  spare: {format: rate}", "  spare: {format: kafka}"),
        ("  raw: {from: clean, files: {path: ./raw}}", ""),
    ],
)
def test_the_hash_does_not_see_what_may_change_freely(tmp_path: Path, old: str, new: str) -> None:
    assert old in TEXT

    assert pipeline_hash(flow(tmp_path, TEXT.replace(old, new))) == pipeline_hash(flow(tmp_path))


def test_the_order_of_a_declaration_is_no_part_of_it(tmp_path: Path) -> None:
    lines = TEXT.splitlines(keepends=True)
    at = lines.index("sinks:\n")
    reordered = "".join([*lines[at:], *lines[:at]])

    assert pipeline_hash(flow(tmp_path, reordered)) == pipeline_hash(flow(tmp_path))


def test_the_hash_is_the_same_in_every_process_and_release(tmp_path: Path) -> None:
    one = flow(tmp_path)
    program = (
        "import sys; from holdfast.pipeline import *;"
        "print(*[pipeline_hash(f) for f in flows(load_yaml(sys.argv[1])) if f.name == 'per_minute'])"
    )

    elsewhere = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "pipeline.yaml"],
        env={"PYTHONHASHSEED": "12345"},
        capture_output=True,
        text=True,
        check=True,
    )

    # Written down once: a release that changes this number refuses every running pipeline.
    assert pipeline_hash(one) == int(elsewhere.stdout) == GOLDEN


GOLDEN = 5318631511723872550


def test_the_running_session_may_say_what_the_engine_is(tmp_path: Path) -> None:
    one = flow(tmp_path)

    assert pipeline_hash(one, EngineFacts()) == pipeline_hash(one)
    assert pipeline_hash(one, EngineFacts(shuffle_partitions="8")) != pipeline_hash(one)


def test_an_unchanged_pipeline_has_no_changes(tmp_path: Path) -> None:
    assert compare_topology(topology(flow(tmp_path)), topology(flow(tmp_path))) == []


@pytest.mark.parametrize(
    ("old", "new", "sentences"),
    [
        (
            "sum(qty)",
            "count(qty)",
            ["operator 'per_minute' was changed: its query, watermark or version is another"],
        ),
        ("qty BIGINT", "qty INT", ["source 'trades' was changed: its format or schema is another"]),
        ("  db: ", "  db2: ", ["sink 'db' was removed", "sink 'db2' was added"]),
        (
            'clean: {sql: "SELECT * FROM trades JOIN names"}',
            'clean: {sql: "SELECT * FROM trades JOIN names", inputs: [trades]}',
            [
                "table 'names' was removed",
                "operator 'clean' was changed: it read names, trades and now reads trades",
            ],
        ),
    ],
)
def test_a_change_is_told_member_by_member(tmp_path: Path, old: str, new: str, sentences: list[str]) -> None:
    assert old in TEXT

    changes = compare_topology(topology(flow(tmp_path)), topology(flow(tmp_path, TEXT.replace(old, new))))

    assert [str(change) for change in changes] == sentences


def test_a_topology_of_before_sections_existed_can_be_compared(tmp_path: Path) -> None:
    changes = compare_topology({}, topology(flow(tmp_path)))

    assert {change.what for change in changes} == {"added"}


def test_a_setting_that_state_depends_on_is_told_beside_an_added_sink(tmp_path: Path) -> None:
    # A run warned of the sink alone, and went on with state that the other output mode does not fit.
    one = flow(tmp_path)
    engine = EngineFacts()
    before = {**topology(one), "settings": settings(one, engine)}
    after = {**topology(one), "settings": settings(one, EngineFacts(shuffle_partitions="7"))}
    after["sinks"] = {**after["sinks"], "other": {"hash": "0" * 16, "inputs": []}}

    changes = compare_topology(before, after)

    assert [str(change) for change in changes] == [
        "sink 'other' was added",
        "setting 'shuffle partitions' was changed: its value is another",
    ]


def test_a_topology_without_settings_is_compared_without_them(tmp_path: Path) -> None:
    one = flow(tmp_path)

    changes = compare_topology(topology(one), {**topology(one), "settings": settings(one, EngineFacts())})

    assert changes == []
