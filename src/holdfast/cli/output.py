"""What a command says. Data to standard output, everything else to standard error; ``--json`` is a contract.

No colour carries meaning. A table in a pipe is as wide as its content, one line a row.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias

Align: TypeAlias = Literal["left", "right"]


class Output:
    """The two ways out. With ``as_json`` only documents reach standard output."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json

    def document(self, value: Any) -> None:
        """The command's one JSON document; nothing without ``--json``."""
        if self.as_json:
            print(json.dumps(value, indent=2, ensure_ascii=False))  # noqa: T201

    def line(self, text: str = "") -> None:
        """A line of data for a person; nothing with ``--json``."""
        if not self.as_json:
            print(text)  # noqa: T201

    def fields(self, values: Mapping[str, object]) -> None:
        """Names and values, aligned; what is None or empty is left out."""
        present = {name: value for name, value in values.items() if value not in (None, "", [], {})}
        width = max(map(len, present), default=0)
        for name, value in present.items():
            self.line(f"{name.ljust(width)}  {value}")

    def table(self, columns: Mapping[str, Align], rows: Sequence[Sequence[str]]) -> None:
        """Rows under headings; headings alone where there are none."""
        if self.as_json:
            return
        from rich.console import Console
        from rich.table import Table

        table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
        for name, align in columns.items():
            table.add_column(name, justify=align, no_wrap=True, overflow="ignore")
        for row in rows:
            table.add_row(*row)
        width = None if sys.stdout.isatty() else 10_000
        console = Console(width=width, highlight=False, markup=False, emoji=False)
        with console.capture() as captured:
            console.print(table, crop=False)
        for line in captured.get().splitlines():
            print(line.rstrip())  # noqa: T201

    def note(self, text: str) -> None:
        """Something to know that is not the data."""
        print(text, file=sys.stderr)  # noqa: T201

    def warn(self, text: str, hint: str | None = None) -> None:
        self.note(f"warning: {text}")
        if hint:
            self.note(f"hint: {hint}")


def size_text(size_bytes: int) -> str:
    """``1.5 MiB``; exact below one KiB."""
    value = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{size_bytes} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def time_text(timestamp_ms: int) -> str:
    """``2026-01-01 00:00:05Z``: UTC, whatever the machine's zone."""
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    except (OverflowError, ValueError, OSError):
        return str(timestamp_ms)  # no date on any calendar, but a number somebody stored


def short_id(checkpoint_id: object) -> str:
    """The last 8 digits: the part that differs between neighbours, and the one in sinks' file names."""
    return str(checkpoint_id)[-8:]
