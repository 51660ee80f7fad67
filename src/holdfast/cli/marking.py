"""``tag`` and ``hold``: a name on a checkpoint. A hold keeps it; a tag does where a rule of prune says so."""

from __future__ import annotations

import click

from holdfast.cli.options import json_option, span, store_option
from holdfast.cli.output import Output, time_text

_MAX_NAME = 200


@click.command("tag")
@click.argument("checkpoint", metavar="ID")
@click.argument("name", metavar="NAME")
@store_option
@click.option("--remove", is_flag=True, help="Take the tag off.")
@json_option
def tag_command(checkpoint: str, name: str, store_url: str, remove: bool, as_json: bool) -> None:
    """Give a checkpoint a name, or take it off.

    A tag keeps nothing by itself: `holdfast prune --keep-tag PATTERN` keeps what is tagged so, and hold
    keeps a checkpoint whatever the rules. ID is latest, an id or a part of one, epoch:41 or batch:40.

    \b
    Examples:
      holdfast tag latest release-7 --store ./checkpoints/orders/per_minute
      holdfast tag epoch:41 release-7 --remove --store ./checkpoints/orders/per_minute
    """
    _mark(checkpoint, name, store_url, protects=False, released=remove, until_ms=None, as_json=as_json)


@click.command("hold")
@click.argument("checkpoint", metavar="ID")
@click.argument("name", metavar="[NAME]", default="hold")
@store_option
@click.option("--for", "seconds", callback=span, metavar="TIME", help='Until then, such as "30 days".')
@click.option("--release", is_flag=True, help="End the hold: rules may delete the checkpoint again.")
@json_option
def hold_command(
    checkpoint: str, name: str, store_url: str, seconds: float | None, release: bool, as_json: bool
) -> None:
    """Keep a checkpoint, whatever the rules of prune say, or end that.

    What it needs is kept with it. Several holds of different names count each for itself. ID is latest, an
    id or a part of one, epoch:41 or batch:40.

    \b
    Examples:
      holdfast hold epoch:41 audit --for "30 days" --store ./checkpoints/orders/per_minute
      holdfast hold epoch:41 audit --release --store ./checkpoints/orders/per_minute
    """
    import time

    if release and seconds is not None:
        raise click.UsageError("--for says how long a hold is to last, --release ends it: one of them")
    until_ms = None if seconds is None else time.time_ns() // 1_000_000 + int(seconds * 1000)
    _mark(checkpoint, name, store_url, protects=True, released=release, until_ms=until_ms, as_json=as_json)


def _mark(
    checkpoint: str,
    name: str,
    store_url: str,
    *,
    protects: bool,
    released: bool,
    until_ms: int | None,
    as_json: bool,
) -> None:
    from holdfast.cli.entries import Catalog
    from holdfast.cli.opening import open_existing
    from holdfast.errors import NotFoundError
    from holdfast.ledger import HoldRecord

    if not 0 < len(name) <= _MAX_NAME or not name.isprintable():
        raise click.UsageError(f"a name is 1 to {_MAX_NAME} characters that can be printed")
    output = Output(as_json=as_json)
    store = open_existing(store_url)
    store.adopt()
    catalog = Catalog(store)
    id = catalog.find(checkpoint)
    word = "hold" if protects else "tag"
    known = catalog.history.holds(store.now_ms()).get((id, name))
    if released and (known is None or known.protects != protects):
        raise NotFoundError(f"{id} has no {word} {name!r}").with_hint("holdfast list shows tags and holds")
    if known is not None and known.protects != protects:
        other = "tag" if protects else "hold"
        raise click.UsageError(f"{name!r} is a {other} of {id} already; take another name")
    record = store.ledger.append(
        HoldRecord(checkpoint_id=id, name=name, until_ms=until_ms, released=released, protects=protects),
        author=store.author,
    )
    output.document(
        {
            "checkpoint_id": str(id),
            "name": name,
            "protects": protects,
            "until_ms": until_ms,
            "released": released,
            "record": record.n,
        }
    )
    verb = ("released" if protects else "untagged") if released else ("held" if protects else "tagged")
    until = f", until {time_text(until_ms)}" if until_ms is not None else ""
    output.line(f"{verb} {id} as {name!r}{until}")
