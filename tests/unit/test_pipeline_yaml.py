"""The YAML form: what it reads, and that every complaint names file, line, keys and what is allowed."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.errors import InvalidInputError
from holdfast.pipeline import PipelineSpec, Trigger, flows, load_yaml
from holdfast.pipeline.spec import Watermark

EXAMPLE = Path(__file__).parents[2] / "examples" / "pipeline.yaml"

MINIMAL = """\
pipeline: orders
store: ./checkpoints
sources:
  trades: {format: json, path: ./in, schema: "ts TIMESTAMP, symbol STRING, qty BIGINT"}
operators:
  per_minute:
    sql: SELECT symbol, sum(qty) AS qty FROM trades GROUP BY symbol
sinks:
  lake: {from: per_minute, files: {path: ./out}}
"""


def load(tmp_path: Path, text: str, **environ: str) -> PipelineSpec:
    (tmp_path / "pipeline.yaml").write_text(text, encoding="utf-8")
    return load_yaml(tmp_path / "pipeline.yaml", environ=environ)


def refusal(tmp_path: Path, text: str, **environ: str) -> str:
    with pytest.raises(InvalidInputError) as caught:
        load(tmp_path, text, **environ)
    return str(caught.value).removeprefix(f"{tmp_path}/")


def test_the_example_declares_one_flow_with_two_sinks() -> None:
    spec = load_yaml(EXAMPLE, environ={})

    (flow,) = flows(spec)

    assert flow.full_name == "orders/per_minute"
    assert flow.store_url == f"{EXAMPLE.parent}/checkpoints/orders/per_minute"
    assert list(flow.sinks) == ["lake", "db"]
    assert spec.trigger == Trigger(5_000)
    assert spec.output_mode == "update"
    assert spec.spark == {"spark.sql.shuffle.partitions": "8"}
    assert spec.sources["trades"].options == {"maxFilesPerTrigger": "1"}
    assert spec.tables["names"].options == {"header": "true"}
    assert spec.operators["per_minute"].watermarks == {"trades": Watermark("ts", 600_000)}
    assert spec.sinks["db"].database is not None
    assert spec.sinks["db"].database.key == ("minute", "symbol")


def test_relative_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    text = MINIMAL + '  db: {from: per_minute, database: {url: "sqlite:///out.db", table: t}}\n'

    spec = load(tmp_path, text)

    assert spec.store == f"{tmp_path}/checkpoints"
    assert spec.sources["trades"].path == f"{tmp_path}/in"
    assert spec.sinks["lake"].files is not None
    assert spec.sinks["lake"].files.path == f"{tmp_path}/out"
    assert spec.sinks["db"].database is not None
    assert spec.sinks["db"].database.url == f"sqlite:///{tmp_path}/out.db"


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("duckdb:///out.duckdb", "duckdb:///{place}/out.duckdb"),
        ("duckdb:////data/out.duckdb", "duckdb:////data/out.duckdb"),
        ("postgresql://me@db/lake", "postgresql://me@db/lake"),
    ],
)
def test_a_database_file_is_relative_to_the_yaml_and_a_server_is_not(
    tmp_path: Path, written: str, read: str
) -> None:
    spec = load(tmp_path, f'{MINIMAL}  db: {{from: per_minute, database: {{url: "{written}", table: t}}}}\n')

    assert spec.sinks["db"].database is not None
    assert spec.sinks["db"].database.url == read.format(place=tmp_path)


@pytest.mark.parametrize("format", ["parquet", "json", "csv", "orc"])
def test_files_come_in_every_format_that_the_sink_writes(tmp_path: Path, format: str) -> None:
    spec = load(
        tmp_path, MINIMAL.replace("files: {path: ./out}", f"files: {{path: ./out, format: {format}}}")
    )

    assert spec.sinks["lake"].files is not None
    assert spec.sinks["lake"].files.format == format


def test_urls_and_absolute_paths_stay_as_they_are(tmp_path: Path) -> None:
    text = MINIMAL.replace("./checkpoints", "s3://lake/holdfast/").replace("./in", "/data/in/*.json")

    spec = load(tmp_path, text)

    assert flows(spec)[0].store_url == "s3://lake/holdfast/orders/per_minute"
    assert spec.sources["trades"].path == "/data/in/*.json"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("store:", "stor:", "pipeline.yaml:2: stor: unknown key; did you mean 'store'?"),
        ("store: ./checkpoints\n", "", "pipeline.yaml:1: store: missing"),
        ("store: ./checkpoints", "store:", "pipeline.yaml:2: store: empty; give a value"),
        ("store: ./checkpoints", "store: [a]", "pipeline.yaml:2: store: expected one value, found a list"),
        ("path: ./in", "pth: ./in", "pipeline.yaml:4: sources.trades.pth: unknown key; did you mean 'path'?"),
        (", path: ./in", "", "pipeline.yaml:4: sources.trades.path: missing; the format json reads files"),
        (
            ', schema: "ts TIMESTAMP, symbol STRING, qty BIGINT"',
            "",
            "pipeline.yaml:4: sources.trades.schema: missing; a stream of json files needs one",
        ),
        (
            "FROM trades",
            "FROM trads",
            "pipeline.yaml:7: operators.per_minute.sql: reads 'trads', which nothing",
        ),
        (
            "from: per_minute",
            "from: per_min",
            "sinks.lake.from: no operator is called 'per_min'; did you mean 'per_",
        ),
        ("from: per_minute", "from: trades", "sinks.lake.from: 'trades' is not an operator"),
        (
            "files: {path: ./out}",
            "files: {format: parquet}",
            "pipeline.yaml:9: sinks.lake.files.path: missing",
        ),
        ("files: {path: ./out}", "files: {path: ./o, format: parqet}", "did you mean 'parquet'?"),
        (
            "files: {path: ./out}",
            "kafka: {topic: t}",
            "sinks.lake.kafka: the sink 'kafka' is not supported yet",
        ),
        (
            ", files: {path: ./out}",
            "",
            "pipeline.yaml:9: sinks.lake: neither of `files:` and `database:` given",
        ),
        (
            "pipeline: orders",
            "pipeline: a/b",
            "pipeline.yaml:1: pipeline: not a name for a pipeline; allowed are",
        ),
        (
            "  per_minute:\n",
            "  Trades:\n",
            "pipeline.yaml:6: operators.Trades: the name is taken by sources.trades",
        ),
        ("sinks:", "sinks:\n  lake: {}", "pipeline.yaml:10: sinks.lake: given twice (first on line 9)"),
    ],
)
def test_a_mistake_is_named_with_file_line_and_keys(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in MINIMAL

    assert message in refusal(tmp_path, MINIMAL.replace(old, new, 1))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("trigger: once", "pipeline.yaml:10: trigger: not a trigger; allowed are available-now"),
        ("every: 5", "pipeline.yaml:10: every: not a duration; allowed is a number and a unit"),
        (
            "output_mode: updat",
            "pipeline.yaml:10: output_mode: not one of the words allowed here; did you mean 'upd",
        ),
        ("on_corruption: rewind", "pipeline.yaml:10: on_corruption: 'rewind' is not supported yet"),
        ("on_change: reset", "pipeline.yaml:10: on_change: 'reset' is not supported yet"),
        ("on_change: maybe", "allowed: fail, warn, reset"),
        ("spark: 8", "pipeline.yaml:10: spark: expected keys with values here, found a single value"),
        ("tables: {t: {format: csv}}", "pipeline.yaml:10: tables.t.path: missing"),
        (
            "tables: {t: {format: csv, path: x, options: {path: y}}}",
            "tables.t.options.path: is no option here",
        ),
        ("tables: {t: {format: delta, path: x}}", "tables.t.format: 'delta' is not supported yet"),
    ],
)
def test_a_wrong_setting_says_what_is_allowed(tmp_path: Path, line: str, message: str) -> None:
    assert message in refusal(tmp_path, f"{MINIMAL}{line}\n")


@pytest.mark.parametrize("interval", ["every", "state_every"])
def test_input_is_not_thrown_away_before_its_epoch_needs_it_no_more(tmp_path: Path, interval: str) -> None:
    cleaning = MINIMAL.replace("path: ./in,", "path: ./in, options: {CleanSource: delete},")

    message = refusal(tmp_path, f"{cleaning}{interval}: 10s\n")

    assert f"sources.trades.options.CleanSource: with {interval} above 0s only off is allowed" in message
    assert load(tmp_path, cleaning).every_seconds == 0
    kept = cleaning.replace("delete", "'off'")
    assert load(tmp_path, f"{kept}{interval}: 10s\n").sources["trades"].options == {"CleanSource": "off"}


@pytest.mark.parametrize(
    ("database", "message"),
    [
        ("{url: out.db, table: t}", "sinks.db.database.url: not a database URL"),
        ('{url: "sqlite://out.db", table: t}', "sinks.db.database.url: a sqlite URL has three slashes"),
        ('{url: "sqlite:///:memory:", table: t}', "sinks.db.database.url: names no file"),
        ('{url: "duckdb:out.db", table: t}', "sinks.db.database.url: not a database URL"),
        ('{url: "duckdb://out.db", table: t}', "sinks.db.database.url: a duckdb URL has three slashes"),
        (
            '{url: "mysql://u:hunter2@h/d", table: t}',
            "a database other than sqlite:///, duckdb:///, postgresql://, postgres:// is not supported yet",
        ),
        ('{url: "sqlite:///out.db"}', "sinks.db.database.table: missing"),
    ],
)
def test_a_wrong_database_is_refused_without_showing_its_password(
    tmp_path: Path, database: str, message: str
) -> None:
    said = refusal(tmp_path, f"{MINIMAL}  db: {{from: per_minute, database: {database}}}\n")

    assert message in said
    assert "hunter2" not in said


def test_two_sinks_may_not_write_to_one_place(tmp_path: Path) -> None:
    said = refusal(tmp_path, f"{MINIMAL}  copy: {{from: per_minute, files: {{path: out/}}}}\n")

    assert said == "pipeline.yaml:10: sinks.copy.files.path: the sink 'lake' already writes there"


def test_operators_that_read_each_other_are_refused(tmp_path: Path) -> None:
    text = MINIMAL.replace("sinks:", "  b: {sql: SELECT * FROM c}\n  c: {sql: SELECT * FROM b}\nsinks:")

    assert "reads itself: b -> c -> b" in refusal(tmp_path, text)


def test_a_watermark_belongs_to_an_input(tmp_path: Path) -> None:
    text = MINIMAL.replace("    sql:", "    watermark: {trade: {column: ts, delay: 1 minute}}\n    sql:")

    said = refusal(tmp_path, text)

    assert said.startswith(
        "pipeline.yaml:7: operators.per_minute.watermark.trade: not an input of this operator"
    )
    assert "did you mean 'trades'?" in said


def test_named_inputs_let_a_query_read_what_spark_alone_knows(tmp_path: Path) -> None:
    text = MINIMAL.replace("FROM trades", "FROM trades JOIN session_view").replace(
        "    sql:", "    inputs: [trades]\n    sql:"
    )

    assert load(tmp_path, text).operators["per_minute"].inputs == ("trades",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "pipeline.yaml:1: the file is empty"),
        ("- a\n- b\n", "pipeline.yaml:1: expected keys with values here, found a list"),
        ("pipeline: a\nstore: [b\n", "pipeline.yaml:3: not YAML: "),
        ("pipeline: a\nstore: \x07\n", "pipeline.yaml:2: not YAML: "),
        ("pipeline: a\n---\npipeline: b\n", "pipeline.yaml:2: not YAML: "),
        ("pipeline: a\nstore: *nowhere\n", "pipeline.yaml:2: not YAML: "),
        ("pipeline: a\nspark: {b: ${C}}\n", 'needs quotes: "${NAME}"'),
        ("[" * 5000, "pipeline.yaml:1: nested too deeply"),
    ],
)
def test_a_file_that_is_no_pipeline_is_named_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    assert message in refusal(tmp_path, text)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"nowhere\.yaml: cannot be read: No such file"):
        load_yaml(tmp_path / "nowhere.yaml")


class TestVariables:
    def test_are_filled_in_from_the_environment(self, tmp_path: Path) -> None:
        text = MINIMAL.replace("./checkpoints", "${ROOT}/ck").replace("./out", "'${OUT:-./default}'")

        spec = load(tmp_path, text, ROOT="/data")

        assert spec.store == "/data/ck"
        assert spec.sinks["lake"].files is not None
        assert spec.sinks["lake"].files.path == f"{tmp_path}/default"

    def test_a_missing_one_is_named_with_the_way_out(self, tmp_path: Path) -> None:
        said = refusal(tmp_path, MINIMAL.replace("./checkpoints", "${ROOT}"))

        assert said == (
            "pipeline.yaml:2: store: the environment variable ROOT is not set; "
            "set it, or give a default: ${ROOT:-default}"
        )

    def test_a_dollar_can_be_written(self, tmp_path: Path) -> None:
        spec = load(tmp_path, MINIMAL.replace("SELECT symbol", "SELECT '$${x}' AS s"))

        assert (spec.operators["per_minute"].sql or "").startswith("SELECT '${x}' AS s")

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            ("store: ./checkpoints", "store: ./checkpoints\ntrigger: ${SECRET}"),
            ("store: ./checkpoints", "store: ./checkpoints\nevery: 5 ${SECRET}"),
            ("store: ./checkpoints", "store: ./checkpoints\non_change: ${SECRET}"),
            ("from: per_minute", "from: ${SECRET}"),
            ("files: {path: ./out}", "files: {path: ./out, format: '${SECRET}'}"),
            ("files: {path: ./out}", "database: {url: '${SECRET}://x', table: t}"),
            ("    sql:", "    inputs: ['${SECRET}']\n    sql:"),
            ("pipeline: orders", "pipeline: /${SECRET}"),
        ],
    )
    def test_are_never_shown_in_a_message(self, tmp_path: Path, old: str, new: str) -> None:
        assert old in MINIMAL

        said = refusal(tmp_path, MINIMAL.replace(old, new, 1), SECRET="hunter2")

        assert "hunter2" not in said


def test_credentials_do_not_show_in_a_spec(tmp_path: Path) -> None:
    text = (
        MINIMAL.replace("format: json,", "format: json, options: {password: hunter2},")
        + "spark: {key: hunter2}\n"
    )

    assert "hunter2" not in repr(load(tmp_path, text))
