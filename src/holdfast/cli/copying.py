"""``copy``: a flow's checkpoints elsewhere."""

from __future__ import annotations

import click

from holdfast.cli.exit_codes import ExitCode
from holdfast.cli.options import json_option, store_option
from holdfast.cli.output import Output, size_text


@click.command("copy")
@click.argument("checkpoints", metavar="[ID]...", nargs=-1)
@store_option
@click.option("--to", "target_url", metavar="URL", required=True, help="Where to: another store's root.")
@json_option
def copy_command(checkpoints: tuple[str, ...], store_url: str, target_url: str, as_json: bool) -> int:
    """Copy checkpoints into another store.

    Without an ID: everything, the ledger included, byte for byte. The target is then the same flow,
    elsewhere; called again, only what is new is sent. With IDs: those checkpoints and what they stand on,
    published in a store that no run writes to. Every byte is verified on the way, and a copy that was killed
    goes on where it was. Exits 3 if something of the source is damaged and was left out.

    ID is latest, an id or at least 4 digits from either end of one, epoch:41 or batch:40.

    \b
    Examples:
      holdfast copy --store ./checkpoints/orders/per_minute --to s3://backup/orders/per_minute
      holdfast copy epoch:41 --store ./checkpoints/orders/per_minute --to ./kept
    """
    from holdfast.cli.entries import Catalog
    from holdfast.cli.opening import open_existing, open_store
    from holdfast.cli.progress import telling
    from holdfast.store.copying import copy_some, replicate

    output = Output(as_json=as_json)
    source, target = open_existing(store_url), open_store(target_url)
    with telling("copying") as progress:
        if checkpoints:
            catalog = Catalog(source)
            done = copy_some(source, target, {catalog.find(one) for one in checkpoints}, progress=progress)
        else:
            done = replicate(source, target, progress=progress)
    output.document(
        {
            "ok": not done.problems,
            "target": target_url,
            "checkpoints": done.checkpoints,
            "sent_objects": done.sent,
            "sent_bytes": done.sent_bytes,
            "present_objects": done.present,
            "problems": [
                {"code": one.code, "message": one.message, "key": one.key, "hint": one.hint}
                for one in done.problems
            ],
        }
    )
    for problem in done.problems:
        output.line(f"left out: {problem.key}: {problem.message}")
    output.line(
        f"{done.checkpoints} checkpoints: sent {done.sent} objects, {size_text(done.sent_bytes)}; "
        f"{done.present} were there already"
    )
    if done.problems:
        output.note(f"hint: {done.problems[0].hint}")
        return ExitCode.PARTIAL
    return ExitCode.OK
