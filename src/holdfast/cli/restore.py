"""``restore``: a checkpoint as a Spark checkpoint directory, somewhere fresh."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.options import json_option, store_option
from holdfast.cli.output import Output, size_text

if TYPE_CHECKING:
    from holdfast.ids import CheckpointId
    from holdfast.store import PartitionedCheckpointStore


@click.command("restore")
@click.argument("checkpoint", metavar="ID")
@store_option
@click.option(
    "--to",
    "target",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Where to write. It must not exist yet, or be empty: files of another time would be read as state.",
)
@click.option(
    "--sinks",
    type=click.Choice(["rewind", "rebase"]),
    help="Take the flow itself back, its sinks with it or not. Not supported yet: use --to.",
)
@click.option("--dry-run", is_flag=True, help="Check the checkpoint and say what would be written.")
@json_option
def restore_command(
    checkpoint: str, store_url: str, target: Path | None, sinks: str | None, dry_run: bool, as_json: bool
) -> None:
    """Write a checkpoint out as a Spark checkpoint directory.

    Every byte is verified on the way. A query that gets DIR as its checkpointLocation goes on with the
    next batch. The store, its flow and the flow's sinks stay as they are.

    ID is latest, an id or at least 4 digits from either end of one, epoch:41 or batch:40.

    \b
    Examples:
      holdfast restore latest --store ./captured --to ./checkpoint
      holdfast restore epoch:41 --store ./captured --to ./checkpoint --dry-run
    """
    from holdfast.cli.entries import Catalog
    from holdfast.cli.opening import open_existing
    from holdfast.recovery import restore

    if sinks is not None:
        raise click.UsageError(
            "taking a flow and its sinks back is not supported yet; --to DIR writes the checkpoint out"
        )
    if target is None:
        raise click.UsageError("Missing option '--to': where to write the checkpoint.")
    output = Output(as_json=as_json)
    store = open_existing(store_url)
    id = Catalog(store).find(checkpoint)
    if dry_run:
        _print_plan(output, store, id, target)
        return
    report = restore(store, id, target)
    output.document({**report.to_json(), "dry_run": False})
    if report.abandoned:
        output.warn(f"a restore of the flow went back behind {id}: it is no part of the flow's present")
    output.line(
        f"restored {id} to {target}: {report.files} files, {size_text(report.bytes)}; "
        f"a query there goes on with batch {report.batch_id + 1}"
    )


def _print_plan(output: Output, store: PartitionedCheckpointStore, id: CheckpointId, target: Path) -> None:
    from holdfast.errors import ConflictError, CorruptError, InvalidInputError

    chain = store.chain(id)  # a newer format is a reason to upgrade, and validating would call it damage
    newest = chain[-1]
    batch = newest.engine.batch_id if newest.engine else None
    if batch is None:
        raise InvalidInputError(f"checkpoint {id} was not taken from a Spark checkpoint")
    if target.exists() and not (target.is_dir() and next(target.iterdir(), None) is None):
        raise ConflictError(f"{target} is not an empty directory").with_hint("restore into a new directory")
    result = store.validate_checkpoint(id)
    if not result.valid:
        raise CorruptError(store.paths.manifest(id), result.reason).with_hint("holdfast recover --dry-run")
    size = sum(manifest.total_size_bytes for manifest in chain)
    output.document(
        {
            "checkpoint_id": str(id),
            "epoch": newest.epoch,
            "batch_id": batch,
            "target": str(target),
            "bytes": size,
            "chain": [str(manifest.checkpoint_id) for manifest in chain],
            "dry_run": True,
        }
    )
    output.line(f"would restore {id} (epoch {newest.epoch}, batch {batch}) to {target}")
    output.line(
        f"reads {len(chain)} checkpoints, {size_text(size)}, all verified just now; writes nothing else"
    )
