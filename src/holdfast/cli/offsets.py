"""``offsets``: where the sources of a query stand, as a store of source positions has it."""

from __future__ import annotations

import click

from holdfast.cli.options import json_option
from holdfast.cli.output import Output


@click.command("offsets")
@click.argument("action", type=click.Choice(["show"]), metavar="show")
@click.option(
    "--store",
    "store_url",
    metavar="URL",
    required=True,
    envvar="HOLDFAST_STORE",
    show_envvar=True,
    help="A place of positions: a directory, sqlite:///…, postgresql://…, rocksdb:///…, redis://…",
)
@click.option("--query", "query_id", metavar="ID", help="The query's id; without it, all that are there.")
@json_option
def offsets_command(action: str, store_url: str, query_id: str | None, as_json: bool) -> None:
    """Show the source positions that a query has stored.

    Changes nothing, and creates nothing. With --json, an array of {query_id, generation, config_hash,
    result_sequence, markers, sources}.

    \b
    Examples:
      holdfast offsets show --store ./positions
      holdfast offsets show --store redis://127.0.0.1:6379 --query orders --json
    """
    from holdfast.positions.describing import describe_place, position_text

    del action
    output = Output(as_json=as_json)
    reports = describe_place(store_url, query_id)
    output.document([report.to_document() for report in reports])
    for at, report in enumerate(reports):
        if at:
            output.line()
        output.fields(
            {
                "query": report.query_id,
                "config hash": report.config_hash,
                "result sequence": report.result_sequence,
                "generation": str(report.generation),
                "markers": ", ".join(report.markers),
            }
        )
        output.table(
            {"SOURCE": "left", "SEQUENCE": "right", "POSITION": "left"},
            [
                (source_id, str(entry.sequence), position_text(entry.source_position))
                for source_id, entry in sorted(report.sources.items())
            ],
        )
