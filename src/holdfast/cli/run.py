"""``run``: a declared pipeline, from its YAML."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.options import json_option
from holdfast.cli.output import Output

if TYPE_CHECKING:
    from holdfast.pipeline import PipelineSpec, Trigger


def _trigger(ctx: click.Context, param: click.Parameter, value: str | None) -> Trigger | None:
    from holdfast.errors import InvalidInputError
    from holdfast.pipeline import parse_trigger

    if value is None:
        return None
    try:
        return parse_trigger(value)
    except InvalidInputError as error:
        raise click.BadParameter(str(error), ctx, param) from error


@click.command("run")
@click.argument("pipeline", type=click.Path(path_type=Path), metavar="PIPELINE.YAML")
@click.option("--check", is_flag=True, help="Only check the declaration and say what it is. Needs no Spark.")
@click.option(
    "--trigger",
    callback=_trigger,
    metavar="WHEN",
    help='"available-now": read what is there, then end. "5 seconds": look so often. [default: as declared]',
)
@json_option
def run_command(pipeline: Path, check: bool, trigger: Trigger | None, as_json: bool) -> None:
    """Run the pipeline declared in a YAML file.

    It resumes where the last run ended, however that ended. SIGTERM and Ctrl-C let the epoch at work
    finish and end in good order. With --json, one JSON object a line: the events of the run.

    \b
    Examples:
      holdfast run pipeline.yaml --check
      holdfast run pipeline.yaml --trigger available-now
    """
    from holdfast.pipeline import load_yaml

    output = Output(as_json=as_json)
    spec = load_yaml(pipeline)
    if check:
        _print_check(output, spec)
        return
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    from holdfast.cli.progress import watching
    from holdfast.spark.running import run_pipeline

    with watching(as_json=as_json) as observe:
        run_pipeline(spec, trigger=trigger, observe=observe)


def _print_check(output: Output, spec: PipelineSpec) -> None:
    from holdfast.pipeline import flows, pipeline_hash

    declared = flows(spec)
    output.document(
        {
            "ok": True,
            "pipeline": spec.name,
            "flows": [
                {
                    "flow": flow.name,
                    "store": flow.store_url,
                    "pipeline_hash": pipeline_hash(flow),
                    "sources": list(flow.sources),
                    "tables": list(flow.tables),
                    "operators": list(flow.operators),
                    "sinks": list(flow.sinks),
                }
                for flow in declared
            ],
        }
    )
    for flow in declared:
        read = ", ".join([*flow.sources, *flow.tables])
        output.line(f"{flow.full_name}: {read} -> {' -> '.join(flow.operators)} -> {', '.join(flow.sinks)}")
        output.line(f"  store {flow.store_url}")
    output.line(f"ok: {len(declared)} flow{'s' if len(declared) > 1 else ''}, trigger {spec.trigger}")
