"""``--read-data-subset``: which part of a store's bytes this run reads, and which the next one will.

A share such as ``5%`` goes round: the first run reads the first of twenty parts, the next one the second.
Verifying writes nothing into a store, so which one is next is kept on this machine, apart for each store and
number of parts. ``3/20`` says it outright and keeps nothing.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from holdfast.errors import InvalidInputError


@dataclass(frozen=True, slots=True)
class Subset:
    """One of ``parts`` parts; ``part`` None: whichever is next."""

    parts: int
    part: int | None = None


def subset(ctx: click.Context, param: click.Parameter, value: str | None) -> Subset | None:
    """A callback for the option."""
    if value is None:
        return None
    text = value.replace(" ", "")
    if share := re.fullmatch(r"([0-9]{1,3}(?:\.[0-9]{1,3})?)%", text):
        percent = float(share[1])
        if 0 < percent <= 100:
            # Rounded up: a part is never larger than the share that was asked for.
            return Subset(math.ceil(round(100 / percent, 9)))
    elif one := re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", text):
        part, parts = int(one[1]), int(one[2])
        if 1 <= part <= parts:
            return Subset(parts, part)
    raise click.BadParameter('a share such as "5%", or a part such as "3/20"', ctx, param)


@contextmanager
def taken(chosen: Subset, store_url: str) -> Iterator[int]:
    """The part to read now. Leaving without an error moves on to the next one."""
    if chosen.part is not None:
        yield chosen.part
        return
    path = _counter(store_url, chosen.parts)
    part = _read(path, chosen.parts)
    # Found out before the work is done: a count that cannot be kept would read the same part for ever.
    _write(path, chosen.parts, part)
    yield part
    _write(path, chosen.parts, part % chosen.parts + 1)


def _counter(store_url: str, parts: int) -> Path:
    base = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    # Hashed, for a URL may hold credentials.
    absolute = store_url if "://" in store_url else str(Path(store_url).absolute())
    key = hashlib.sha256(absolute.encode()).hexdigest()[:16]
    return base / "holdfast" / "verify" / f"{key}-{parts}.json"


def _read(path: Path, parts: int) -> int:
    try:
        known: Any = json.loads(path.read_text(encoding="utf-8"))
        part = known["next_part"]
    except (OSError, ValueError, KeyError, TypeError):
        return 1  # never counted, or not by us: beginning again only reads more
    return part if type(part) is int and 1 <= part <= parts else 1


def _write(path: Path, parts: int, part: int) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f"{path.name}.{os.getpid()}")
        temporary.write_text(json.dumps({"next_part": part, "parts": parts}), encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise InvalidInputError(f"which part is next cannot be kept at {path}: {error}").with_hint(
            f"name the part, counting for yourself: --read-data-subset {part}/{parts}"
        ) from error
