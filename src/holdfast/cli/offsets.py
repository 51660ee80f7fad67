"""``offsets``: where the sources of a query stand, as a store of source positions or a checkpoint has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from holdfast.cli.options import json_option
from holdfast.cli.output import Output

if TYPE_CHECKING:
    from holdfast.store import NumberedCheckpointStore, PartitionedCheckpointStore


@click.command("offsets")
@click.argument("action", type=click.Choice(["show"]), metavar="show")
@click.option(
    "--store",
    "store_url",
    metavar="URL",
    required=True,
    envvar="HOLDFAST_STORE",
    show_envvar=True,
    help="A place of positions: a directory, sqlite:///…, postgresql://…, rocksdb:///…, redis://… "
    "Or a flow's root.",
)
@click.option("--query", "query_id", metavar="ID", help="The query's id; without it, all that are there.")
@json_option
def offsets_command(action: str, store_url: str, query_id: str | None, as_json: bool) -> None:
    """Show the source positions that a query has stored.

    Changes nothing, and creates nothing. With --json, an array of {query_id, generation, config_hash,
    result_sequence, markers, sources}. Of a flow's root it shows the newest checkpoint's positions: an array
    of one {checkpoint_id, epoch, batch_id, sources}.

    \b
    Examples:
      holdfast offsets show --store ./positions
      holdfast offsets show --store ./checkpoints/orders/per_minute
      holdfast offsets show --store redis://127.0.0.1:6379 --query orders --json
    """
    from holdfast.positions.describing import describe_place, position_text

    del action
    output = Output(as_json=as_json)
    checkpoints = None if query_id is not None else _checkpoints_at(store_url)
    if checkpoints is not None:
        _show_checkpoint(output, checkpoints)
        return
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


def _checkpoints_at(url: str) -> PartitionedCheckpointStore | NumberedCheckpointStore | None:
    """The checkpoint store at ``url``; None if it is a place of positions, or nothing."""
    from holdfast.cli.opening import EmptyStoreError, open_any

    scheme, colon, _ = url.partition("://")
    if colon and scheme not in ("file", "memory", "s3", "gs", "az", "abfss"):
        return None
    if url == "memory://":
        return None
    try:
        return open_any(url)
    except EmptyStoreError:
        return None


def _show_checkpoint(output: Output, store: PartitionedCheckpointStore | NumberedCheckpointStore) -> None:
    from holdfast.errors import NotFoundError
    from holdfast.manifest import CheckpointManifestV2

    manifest = store.load_latest()
    if manifest is None:
        raise NotFoundError("there is no checkpoint yet")
    batch = None
    kinds: dict[str, str] = {}
    if isinstance(manifest, CheckpointManifestV2):
        batch = manifest.engine.batch_id if manifest.engine is not None else None
        kinds = {name: source.source_type for name, source in manifest.source_offsets.items()}
        stands = {name: source.offsets for name, source in manifest.source_offsets.items()}
    else:
        stands = {name: source.offsets for name, source in manifest.source_offsets.items()}
    output.document(
        [
            {
                "checkpoint_id": str(manifest.checkpoint_id),
                "epoch": manifest.epoch,
                "batch_id": batch,
                "sources": [
                    {"source_id": name, "source_type": kinds.get(name), "offsets": offsets}
                    for name, offsets in sorted(stands.items())
                ],
            }
        ]
    )
    output.fields({"checkpoint": manifest.checkpoint_id, "epoch": manifest.epoch, "batch": batch})
    for name, offsets in sorted(stands.items()):
        output.line(f"source {name} reads next from")
        output.fields({f"  {key}": value for key, value in offsets.items()})
