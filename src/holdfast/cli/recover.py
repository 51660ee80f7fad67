"""``recover``: what a start would resume from; and a person's answer where a sink could not give one.

The run itself does the recovering.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from holdfast.cli.exit_codes import ExitCode
from holdfast.cli.options import json_option, store_option
from holdfast.cli.output import Output

if TYPE_CHECKING:
    from holdfast.coordinator.answering import Answered
    from holdfast.store import NumberedCheckpointStore, PartitionedCheckpointStore


@click.command("recover")
@store_option
@click.option("--dry-run", is_flag=True, help="Say what a start would do. Changes nothing.")
@click.option("--sink", metavar="NAME", help="The sink that exit code 22 asked about.")
@click.option(
    "--outcome",
    type=click.Choice(["committed", "not"]),
    help="What you found in the sink: the epoch's output is there, or it is not.",
)
@click.option(
    "--epoch",
    type=click.IntRange(min=1),
    metavar="N",
    help="The epoch you looked for. [default: the newest one decided]",
)
@json_option
def recover_command(
    store_url: str, dry_run: bool, sink: str | None, outcome: str | None, epoch: int | None, as_json: bool
) -> int:
    """Say what a start would resume from, what it would skip, and why.

    With --dry-run it changes nothing. Exits 0 if the newest checkpoint is sound, 21 if a start would step
    back and replay, 20 if it could not go on without a decision of yours (which is then printed).

    With --sink and --outcome it answers the question that exit code 22 asks: is the output of the last
    epoch in this sink? First make sure that no run of the flow is at work, and look. The answer is put on
    record once, and the next start goes by it.

    \b
    Examples:
      holdfast recover --dry-run --store ./checkpoints/orders/per_minute
      holdfast recover --sink db --outcome committed --store ./checkpoints/orders/per_minute
    """
    from holdfast.cli.opening import open_any, open_existing
    from holdfast.store import NumberedCheckpointStore

    if dry_run and sink is not None:
        raise click.UsageError("--dry-run says what a start would do, --sink answers a question: one of them")
    if (sink is None) != (outcome is None):
        raise click.UsageError("an answer takes both, --sink NAME and --outcome committed|not")
    if sink is None and epoch is not None:
        raise click.UsageError("--epoch says of which epoch an answer is; it takes --sink and --outcome")
    if not dry_run and sink is None:
        raise click.UsageError(
            "--dry-run, or an answer with --sink and --outcome; the recovering is `holdfast run`'s"
        )
    output = Output(as_json=as_json)
    if sink is not None:
        _answer(output, open_existing(store_url), sink, outcome == "committed", epoch)
        return ExitCode.OK
    store = open_any(store_url)
    if isinstance(store, NumberedCheckpointStore):
        return _plan_numbered(output, store)
    return _plan(output, store)


def _plan(output: Output, store: PartitionedCheckpointStore) -> int:
    from holdfast.recovery import plan_recovery

    plan = plan_recovery(store)
    output.document(plan.to_json())
    for skipped in plan.skipped:
        output.line(f"skipped  {skipped.id}: {skipped.reason}")
    if plan.chosen is not None:
        output.line(f"chosen   {plan.chosen}")
    for decision in plan.replay:
        output.line(f"replay   epoch {decision.epoch}, sinks closed")
    output.line(f"{plan.verdict}: {_meaning(plan.verdict, len(plan.replay), plan.reason)}")
    if plan.hint:
        output.note(f"hint: {plan.hint}")
    if plan.verdict == "stuck":
        return ExitCode.CORRUPT
    return ExitCode.STEPPED_BACK if plan.stepped_back else ExitCode.OK


def _plan_numbered(output: Output, store: NumberedCheckpointStore) -> int:
    """The same for a v1 store: the newest sound checkpoint. Nothing there says what came after it."""
    report = store.recover_latest_validated()
    chosen = report.chosen_id
    verdict = "resume" if chosen is not None else "stuck" if report.examined else "fresh"
    reason = "no checkpoint is sound" if verdict == "stuck" else None
    manifest = store.load_by_id(chosen) if chosen is not None else None
    output.document(
        {
            "verdict": verdict,
            "chosen": None if chosen is None else str(chosen),
            "chosen_record": None,
            "chosen_epoch": None if manifest is None else manifest.epoch,
            "examined": report.examined,
            "skipped": [{"id": str(id), "reason": why} for id, why in report.skipped],
            "replay": [],
            "reason": reason,
            "command": "holdfast verify" if reason else None,
            "advice": None,
        }
    )
    for id, why in report.skipped:
        output.line(f"skipped  {id}: {why}")
    if chosen is not None:
        output.line(f"chosen   {chosen}")
    told = "recovery goes on from the chosen checkpoint" if chosen is not None else reason
    output.line(f"{verdict}: {told or 'nothing is there'}")
    if verdict == "stuck":
        return ExitCode.CORRUPT
    return ExitCode.STEPPED_BACK if report.skipped else ExitCode.OK


def _meaning(verdict: str, to_replay: int, reason: str | None) -> str:
    if verdict == "fresh":
        return "nothing is decided yet; a start begins at the beginning"
    if verdict == "resume":
        return "a start goes on from the newest checkpoint"
    if verdict == "replay":
        epochs = f"{to_replay} epoch{'' if to_replay == 1 else 's'}"
        return f"a start restores the chosen checkpoint and replays {epochs}; no row is lost or doubled"
    return reason or "a start would refuse"


def _answer(
    output: Output, store: PartitionedCheckpointStore, sink: str, shown: bool, epoch: int | None
) -> None:
    from holdfast.coordinator.answering import answer

    answered = answer(store, sink, shown=shown, epoch=epoch)
    follows = _follows(answered, shown=shown)
    output.document(
        {
            "sink": answered.sink,
            "epoch": answered.epoch,
            "checkpoint_id": str(answered.checkpoint_id),
            "outcome": "committed" if shown else "not",
            "record": answered.record,
            "open_sinks": list(answered.open_sinks),
            "next": follows,
        }
    )
    said = "is committed" if shown else "is not committed"
    output.line(f"on record as {answered.record}: epoch {answered.epoch} {said} in sink {sink!r}")
    output.line(follows)
    if answered.open_sinks:
        output.line(f"still to be asked by the next start: {', '.join(answered.open_sinks)}")


def _follows(answered: Answered, *, shown: bool) -> str:
    """What the next start makes of it."""
    if not answered.is_newest:
        return (
            "epochs were decided after it, or a restore went back behind it: the next start takes no notice"
        )
    if shown:
        return "the next start leaves its output as it is, and goes on after it"
    return (
        "the next start commits what was prepared, or runs the epoch again into this sink alone if that is "
        "gone; if the pipeline declares the sink no more, its output of this epoch stays missing"
    )
