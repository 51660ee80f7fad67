"""``demo``: the proof on one screen."""

from __future__ import annotations

import click


@click.command("demo")
@click.option(
    "--keep", "directory", metavar="DIR", help="Work in DIR, which must not exist yet, and leave it there."
)
def demo_command(directory: str | None) -> int:
    """Kill a pipeline, damage its checkpoints, recover, and prove that nothing was lost.

    Trades as files, a windowed aggregation, two sinks. The driver and its JVM are killed between the
    decision and a sink's commit, a bit is flipped in the newest checkpoint, and the result is compared,
    row by row, with an uninterrupted run. Exits 0 only if the proof holds. Needs Java 17 or newer.

    \b
    Example:
      holdfast demo
    """
    from holdfast.spark.demo import main

    return main(directory)
