"""``capture``: a checkpoint of any Spark query's checkpoint directory, without Spark."""

from __future__ import annotations

import click

from holdfast.cli.options import json_option, store_option
from holdfast.cli.output import Output, size_text


@click.command("capture")
@click.argument("directory", metavar="DIR")
@store_option
@click.option(
    "--batch",
    type=click.IntRange(min=0),
    metavar="N",
    help="The batch whose state to take. [default: the newest committed one]",
)
@json_option
def capture_command(directory: str, store_url: str, batch: int | None, as_json: bool) -> None:
    """Take a checkpoint of a Spark checkpoint directory.

    DIR is the checkpointLocation of a query, running or not. Only files that the store does not hold yet
    travel. A batch that the store already has adds nothing: the checkpoint that is there is printed.

    \b
    Examples:
      holdfast capture /data/checkpoint --store ./captured
      holdfast capture /data/checkpoint --store ./captured --batch 40 --json
    """
    from holdfast.capture import capture_directory
    from holdfast.cli.entries import Catalog
    from holdfast.cli.opening import open_store
    from holdfast.cli.progress import telling
    from holdfast.sparkdir import SparkCheckpoint

    output = Output(as_json=as_json)
    store = open_store(store_url)
    with telling("capturing") as progress:
        manifest = capture_directory(SparkCheckpoint(directory), store, batch=batch, progress=progress)
    entry = Catalog(store).entry(manifest.checkpoint_id)
    output.document(entry.document())
    output.line(
        f"{entry.checkpoint_id} is epoch {entry.epoch}: batch {entry.batch_id} of {directory}, "
        f"{size_text(entry.total_size_bytes or 0)}"
    )
