"""``prune`` and ``gc``: what may go, with the reason for all that stays; ``--yes`` to let it go."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.options import json_option, span, store_option
from holdfast.cli.output import Output, short_id, time_text

if TYPE_CHECKING:
    from holdfast.ledger import History
    from holdfast.retention import Verdict
    from holdfast.store import NumberedCheckpointStore, PartitionedCheckpointStore

_COUNT = click.IntRange(min=0)

yes_option = click.option("--yes", is_flag=True, help="Do it. Without it nothing is deleted, only told.")


@click.command("prune")
@store_option
@click.option("--keep-last", type=_COUNT, default=0, metavar="N", help="The newest N that are sound.")
@click.option("--keep-within", callback=span, metavar="TIME", help='All that are younger, such as "7 days".')
@click.option("--keep-hourly", type=_COUNT, default=0, metavar="N", help="One for each of the last N hours.")
@click.option("--keep-daily", type=_COUNT, default=0, metavar="N", help="One for each of the last N days.")
@click.option("--keep-weekly", type=_COUNT, default=0, metavar="N", help="One for each of the last N weeks.")
@click.option(
    "--keep-monthly", type=_COUNT, default=0, metavar="N", help="One for each of the last N months."
)
@click.option("--keep-yearly", type=_COUNT, default=0, metavar="N", help="One for each of the last N years.")
@click.option("--keep-tag", multiple=True, metavar="PATTERN", help='Tagged so, such as "release-*".')
@yes_option
@json_option
def prune_command(
    store_url: str,
    keep_last: int,
    keep_within: float | None,
    keep_tag: tuple[str, ...],
    yes: bool,
    as_json: bool,
    **periods: int,
) -> None:
    """Delete old checkpoints, keeping those that a rule or a need names.

    Without --yes it only tells what would go, and why the others stay. What is held, a savepoint, needed by
    a checkpoint that stays, or has pending sinks stays whatever the rules say, and so does the newest sound
    one. Hours, days, weeks, months and years are UTC's; only those that have a checkpoint count.

    \b
    Examples:
      holdfast prune --keep-last 10 --store ./checkpoints/orders/per_minute
      holdfast prune --keep-within "2 days" --keep-daily 14 --keep-tag "release-*" --yes --store s3://lake/o/m
    """
    from holdfast.cli.opening import open_any
    from holdfast.errors import InvalidInputError
    from holdfast.retention import RetentionPolicy, apply_retention, plan_retention
    from holdfast.store import NumberedCheckpointStore

    try:
        policy = RetentionPolicy(
            keep_last=keep_last,
            keep_within_seconds=keep_within or 0,
            tags=keep_tag,
            **{name.removeprefix("keep_"): count for name, count in periods.items()},
        )
    except InvalidInputError as error:
        raise click.UsageError("say what to keep, such as --keep-last 10") from error
    output = Output(as_json=as_json)
    store = open_any(store_url)
    if isinstance(store, NumberedCheckpointStore):
        if policy != RetentionPolicy(keep_last=keep_last or 1):
            raise click.UsageError("of numbered (v1) checkpoints only --keep-last can be asked for")
        fates = _fates_of_numbered(store, keep_last)
        deleted = store.prune(keep_last) if yes else 0
    else:
        fates = [_Fate.of(verdict) for verdict in plan_retention(store, policy)]
        deleted = apply_retention(store, policy) if yes else 0
    _tell_fates(output, fates, deleted=deleted, done=yes)


@click.command("gc")
@store_option
@click.option(
    "--min-age",
    callback=span,
    default="1 day",
    show_default=True,
    metavar="TIME",
    help="Leave alone what is younger: a writer at work may still publish it.",
)
@yes_option
@json_option
def gc_command(store_url: str, min_age: float, yes: bool, as_json: bool) -> None:
    """Delete what no checkpoint and no record names: leftovers of attempts that died.

    Without --yes it only tells what would go. Checkpoints are never touched: prune is for those.

    \b
    Examples:
      holdfast gc --store ./checkpoints/orders/per_minute
      holdfast gc --min-age "2 hours" --yes --store ./checkpoints/orders/per_minute
    """
    from holdfast.cli.opening import open_any
    from holdfast.store import NumberedCheckpointStore

    output = Output(as_json=as_json)
    store = open_any(store_url)
    everything = _garbage(store, 0.0)
    rows = {key: why for key, why in _garbage(store, min_age).items() if key in everything}
    too_young = len(everything) - len(rows)
    deleted = 0
    if yes:
        deleted = store.cleanup_orphans(min_age)
        if not isinstance(store, NumberedCheckpointStore):
            deleted += store.ledger.trim(0, is_gone=lambda _: False)
    output.document(
        {
            "dry_run": not yes,
            "min_age_seconds": min_age,
            "objects": [{"key": key, "reason": reason} for key, reason in rows.items()],
            "too_young": too_young,
            "deleted": deleted,
        }
    )
    if rows:
        output.table({"OBJECT": "left", "WHY IT GOES": "left"}, list(rows.items()))
    young = f"; {too_young} more are younger than {min_age:g} s and stay" if too_young else ""
    if yes:
        output.line(f"deleted {deleted} objects{young}")
    else:
        output.line(f"would delete {len(rows)} objects{young}")
        output.note("nothing was deleted: --yes does it, and sweeps temporary files of that age as well")


def _garbage(
    store: PartitionedCheckpointStore | NumberedCheckpointStore, min_age_seconds: float
) -> dict[str, str]:
    """What is at least so old and goes, with the reason."""
    from holdfast.store import NumberedCheckpointStore
    from holdfast.store.orphans import find_orphans

    if isinstance(store, NumberedCheckpointStore):
        return dict.fromkeys(store.find_orphans(min_age_seconds), "no manifest names it")
    history = store.ledger.read()
    found = find_orphans(store, history, newest_ms=store.now_ms() - int(min_age_seconds * 1000))
    undecided = {key for keys in found.ids.values() for key in keys}
    pruned = set(found.pruned)
    rows = {key: _why_gone(key, undecided, pruned) for key in found.all_keys()}
    return rows | dict.fromkeys(
        _trimmed(history, store), "it was trimmed from the ledger, and still lies there"
    )


def _trimmed(history: History, store: PartitionedCheckpointStore) -> list[str]:
    """Ledger records that a trimming dropped and died over."""
    from holdfast.layout import LEDGER_PREFIX, ledger_number

    keys = [info.key for info in store.blobs.list(LEDGER_PREFIX)]
    return [key for key in keys if (n := ledger_number(key)) is not None and not history.boundary.has(n)]


def _why_gone(key: str, undecided: set[str], pruned: set[str]) -> str:
    if key in undecided:
        return "its attempt was never decided"
    return "it is pruned, and still lies there" if key in pruned else "no record and no manifest names it"


@dataclass(frozen=True, slots=True)
class _Fate:
    """What becomes of one checkpoint. Without a reason it goes."""

    id: object
    epoch: int | None
    at_ms: int | None
    abandoned: bool
    reasons: tuple[str, ...]

    @classmethod
    def of(cls, verdict: Verdict) -> _Fate:
        return cls(verdict.id, verdict.epoch, verdict.at_ms, verdict.abandoned, verdict.reasons)

    def document(self) -> dict[str, Any]:
        return {
            "checkpoint_id": str(self.id),
            "epoch": self.epoch,
            "timestamp_ms": self.at_ms,
            "abandoned": self.abandoned,
            "reasons": list(self.reasons),
        }


def _fates_of_numbered(store: NumberedCheckpointStore, keep: int) -> list[_Fate]:
    from holdfast.cli.numbered import NumberedCatalog

    reasons = store.plan_prune(keep).reasons
    catalog = NumberedCatalog(store)
    fates = []
    for number in reversed(store.list_ids()):
        one = catalog.entry(number)
        why = (reasons[number],) if number in reasons else ()
        fates.append(_Fate(number, one.epoch, one.timestamp_ms, abandoned=False, reasons=why))
    return fates


def _tell_fates(output: Output, fates: list[_Fate], *, deleted: int, done: bool) -> None:
    stay = [fate for fate in fates if fate.reasons]
    going = [fate for fate in fates if not fate.reasons]
    output.document(
        {
            "dry_run": not done,
            "kept": [fate.document() for fate in stay],
            "removed": [fate.document() for fate in going],
            "deleted": deleted,
        }
    )
    output.table(
        {"ID": "left", "EPOCH": "right", "TIME": "left", "FATE": "left", "WHY": "left"},
        [
            (
                short_id(fate.id),
                "-" if fate.epoch is None else str(fate.epoch),
                "-" if fate.at_ms is None else time_text(fate.at_ms),
                "keep" if fate.reasons else "delete",
                "; ".join(fate.reasons) or "no rule keeps it, and nothing needs it",
            )
            for fate in reversed(fates)
        ],
    )
    if done:
        output.line(f"deleted {deleted} checkpoints, kept {len(stay)}")
    else:
        output.line(f"would delete {len(going)} checkpoints and keep {len(stay)}")
        output.note("nothing was deleted: --yes does it")
