"""``recover``: what a start would resume from. Reading only; the run itself does the recovering."""

from __future__ import annotations

import click

from holdfast.cli.exit_codes import ExitCode
from holdfast.cli.options import json_option, store_option
from holdfast.cli.output import Output


@click.command("recover")
@store_option
@click.option(
    "--dry-run", is_flag=True, help="Only say what would be done. Needed: a run recovers by itself."
)
@json_option
def recover_command(store_url: str, dry_run: bool, as_json: bool) -> int:
    """Say what a start would resume from, what it would skip, and why.

    Changes nothing. Exits 0 if the newest checkpoint is sound, 21 if a start would step back and replay,
    20 if it could not go on without a decision of yours (which is then printed).

    \b
    Examples:
      holdfast recover --dry-run --store ./checkpoints/orders/per_minute
      holdfast recover --dry-run --store ./checkpoints/orders/per_minute --json
    """
    from holdfast.cli.opening import open_existing
    from holdfast.recovery import plan_recovery

    if not dry_run:
        raise click.UsageError(
            "only --dry-run is supported yet; `holdfast run pipeline.yaml` recovers by itself"
        )
    output = Output(as_json=as_json)
    plan = plan_recovery(open_existing(store_url))
    output.document(plan.to_json())
    for skipped in plan.skipped:
        output.line(f"skipped  {skipped.id}: {skipped.reason}")
    if plan.chosen is not None:
        output.line(f"chosen   {plan.chosen}")
    for decision in plan.replay:
        output.line(f"replay   epoch {decision.epoch}, sinks closed")
    output.line(f"{plan.verdict}: {_meaning(plan.verdict, len(plan.replay), plan.reason)}")
    if plan.command:
        output.note(f"hint: {plan.command}")
    if plan.verdict == "stuck":
        return ExitCode.CORRUPT
    return ExitCode.STEPPED_BACK if plan.stepped_back else ExitCode.OK


def _meaning(verdict: str, to_replay: int, reason: str | None) -> str:
    if verdict == "fresh":
        return "nothing is decided yet; a start begins at the beginning"
    if verdict == "resume":
        return "a start goes on from the newest checkpoint"
    if verdict == "replay":
        epochs = f"{to_replay} epoch{'' if to_replay == 1 else 's'}"
        return f"a start restores the chosen checkpoint and replays {epochs}; no row is lost or doubled"
    return reason or "a start would refuse"
