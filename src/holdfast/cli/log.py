"""``log``: the ledger, record by record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.options import json_option, store_option
from holdfast.cli.output import Output, short_id, time_text

if TYPE_CHECKING:
    from holdfast.ledger import Record


@click.command("log")
@store_option
@click.option("--last", "count", type=click.IntRange(min=1), metavar="N", help="Only the newest N records.")
@json_option
def log_command(store_url: str, count: int | None, as_json: bool) -> None:
    """Print the ledger: every fact about a flow, in order.

    Oldest first. A record that cannot be read keeps its place, with the reason. With --json, an array of
    the records as they are stored; one that cannot be read is {n, kind: "corrupt", reason}.

    \b
    Examples:
      holdfast log --store ./checkpoints/orders/per_minute
      holdfast log --store ./checkpoints/orders/per_minute --last 20 --json
    """
    from holdfast.cli.opening import open_existing
    from holdfast.manifest.codec import to_document

    output = Output(as_json=as_json)
    history = open_existing(store_url).ledger.read()
    numbers = sorted({*history.records, *history.problems})[-(count or 0) :]
    on_timeline = {decision.n for decision in history.timeline}
    documents: list[dict[str, Any]] = []
    rows: list[tuple[str, ...]] = []
    for n in numbers:
        record = history.records.get(n)
        if record is None:
            reason = str(history.problems[n])
            documents.append({"n": n, "kind": "corrupt", "reason": reason})
            rows.append((str(n), "-", "corrupt", "-", reason))
            continue
        document = to_document(record)
        documents.append({"n": document.pop("n"), "kind": record.kind, **document})
        told = _sentence(record, is_current=n in on_timeline)
        rows.append((str(n), time_text(record.at_ms), record.kind, str(record.generation), told))
    output.document(documents)
    output.table(
        {"N": "right", "TIME": "left", "KIND": "left", "GENERATION": "right", "WHAT": "left"},
        rows,
    )


def _sentence(record: Record, *, is_current: bool) -> str:
    """What a record says, in words."""
    from holdfast.ledger import (
        CheckpointRecord,
        EpochRecord,
        HoldRecord,
        OutcomeRecord,
        PruneRecord,
        RestoreRecord,
        SavepointRecord,
        StartRecord,
        StopRecord,
    )

    match record:
        case StartRecord():
            resumed = f"from {short_id(record.from_id)}" if record.from_id else "from the beginning"
            bad = f"; found corrupt: {', '.join(map(short_id, record.corrupt))}" if record.corrupt else ""
            return f"writer {record.writer[:8]} starts {resumed}{bad}"
        case CheckpointRecord() | EpochRecord():
            what = f"epoch {record.epoch} is {short_id(record.checkpoint_id)}{_batches(record.batches)}"
            sinks = f", sinks {', '.join(sorted(record.receipts))}" if record.receipts else ""
            return f"{what}{sinks}{'' if is_current else ' (abandoned)'}"
        case OutcomeRecord(restore=None):
            told = ", ".join(f"{name} {_status(status)}" for name, status in sorted(record.statuses.items()))
            return f"epoch {record.epoch}: {told or 'no sinks'}"
        case OutcomeRecord():
            return f"the restore of record {record.restore} is finished"
        case RestoreRecord():
            place = f"record {record.to}" if record.to else "the beginning"
            sinks = f", sinks {record.sinks}" if record.sinks else ""
            return f"back to {place}{sinks}{f': {record.reason}' if record.reason else ''}"
        case StopRecord():
            return f"stopped after epoch {record.epoch}" if record.epoch else "stopped"
        case SavepointRecord():
            return f"savepoint {record.key} after epoch {record.epoch}"
        case PruneRecord():
            return f"deletes {len(record.ids)} checkpoints and {len(record.keys)} objects"
        case HoldRecord():
            verb = "releases" if record.released else ("holds" if record.protects else "tags")
            return f"{verb} {short_id(record.checkpoint_id)} as {record.name!r}"


def _batches(batches: tuple[int, int] | None) -> str:
    if batches is None:
        return ""
    first, last = batches
    return f", batch {first}" if first == last else f", batches {first} to {last}"


def _status(status: object) -> str:
    return str(status).lower() if str(status).isupper() else str(status)
