"""``run --check``: is a declaration right? Without Spark."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from holdfast.cli import main

EXAMPLE = Path(__file__).parents[2] / "examples" / "pipeline.yaml"


def test_a_person_is_told_the_flows_and_where_their_checkpoints_are() -> None:
    result = CliRunner().invoke(main, ["run", str(EXAMPLE), "--check"], env={"ORDERS_STORE": "/data/ck"})

    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "orders/per_minute: trades -> per_minute -> lake, db",
        "  store /data/ck/orders/per_minute",
        "ok: 1 flow, trigger 5000 milliseconds",
    ]


def test_a_program_is_told_the_same_and_the_hash() -> None:
    result = CliRunner().invoke(
        main, ["run", str(EXAMPLE), "--check", "--json"], env={"ORDERS_STORE": "/data/ck"}
    )

    document = json.loads(result.stdout)
    assert list(document) == ["ok", "pipeline", "flows"]
    (flow,) = document["flows"]
    assert isinstance(flow.pop("pipeline_hash"), int)
    assert flow == {
        "flow": "per_minute",
        "store": "/data/ck/orders/per_minute",
        "sources": ["trades"],
        "tables": [],
        "operators": ["per_minute"],
        "sinks": ["lake", "db"],
    }


def test_options_come_from_the_environment_and_what_is_typed_wins() -> None:
    by_variable = {"HOLDFAST_RUN_CHECK": "1", "HOLDFAST_JSON": "1", "HOLDFAST_RUN_TRIGGER": "nonsense"}

    refused = CliRunner().invoke(main, ["run", str(EXAMPLE)], env=by_variable)
    typed = CliRunner().invoke(main, ["run", str(EXAMPLE), "--trigger", "5 s"], env=by_variable)

    assert refused.exit_code == 2
    assert typed.exit_code == 0
    assert json.loads(typed.stdout)["ok"] is True
