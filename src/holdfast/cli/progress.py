"""Long work, seen while it happens: a live line on a terminal, one plain line an epoch in a log.

All of it goes to standard error, except a run's ``--json`` events, which are its data.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from holdfast.cli.output import time_text

if TYPE_CHECKING:
    from rich.status import Status

    from holdfast.coordinator.steps import Observer, Step

# What an epoch's line tells the time of, in the order of the protocol.
TIMED = ("prepare", "capture", "manifest", "publish", "commit")


@contextmanager
def telling(what: str) -> Iterator[Callable[[str], None] | None]:
    """Gives a ``progress(text)`` that keeps one live line on a terminal; elsewhere None."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console

    with Console(stderr=True, highlight=False, markup=False).status(what) as status:
        yield lambda text: status.update(f"{what}: {text}")


@contextmanager
def watching(*, as_json: bool) -> Iterator[Observer]:
    """Gives an observer for a run."""
    if as_json:
        yield RunLog(_print_event).observe
        return
    if not sys.stderr.isatty():
        yield RunLog(_print_line).observe
        return
    from rich.console import Console

    console = Console(stderr=True, highlight=False, markup=False)
    with console.status("starting") as status:
        yield RunLog(lambda event: console.print(sentence(event)), status).observe


class RunLog:
    """Turns steps into events a person follows: what was resumed, each epoch with its times, the end.

    Sinks prepare and commit side by side, so steps arrive from several threads.
    """

    def __init__(self, tell: Callable[[dict[str, Any]], None], status: Status | None = None) -> None:
        self._tell = tell
        self._status = status
        self._lock = threading.Lock()
        self._spent: dict[str, float] = {}
        self._facts: dict[str, Any] = {}
        self._begun = 0.0

    def observe(self, step: Step) -> None:
        with self._lock:
            if self._status is not None and step.when == "before":
                self._status.update(_doing(step))
            if step.when == "before" and step.name == "admit":
                self._spent, self._facts, self._begun = {}, {}, time.monotonic()
            if step.when == "after":
                self._after(step)

    def _after(self, step: Step) -> None:
        if step.name == "admit":
            self._facts = dict(step.facts)
        elif step.name in TIMED:
            # Of sinks side by side the slowest counts: that is how long the epoch waited.
            spent = float(step.facts.get("milliseconds", 0.0))
            self._spent[step.name] = max(self._spent.get(step.name, 0.0), spent)
        elif step.name == "finish":
            self._tell(
                {
                    "event": "epoch",
                    "epoch": step.epoch,
                    "batch": self._facts.get("batch"),
                    "rows": self._facts.get("rows"),
                    "milliseconds": {name: self._spent[name] for name in TIMED if name in self._spent},
                    "total_milliseconds": round((time.monotonic() - self._begun) * 1000, 1),
                }
            )
        elif step.name in ("plan", "start", "resolve", "materialise", "replay", "feed", "stop"):
            facts = {key: value for key, value in step.facts.items() if key != "milliseconds"}
            named = {"epoch": step.epoch, "sink": step.sink}
            self._tell({"event": step.name, **{k: v for k, v in named.items() if v is not None}, **facts})


def sentence(event: dict[str, Any]) -> str:
    """An event as one line of text."""
    facts = {key: value for key, value in event.items() if key not in ("event", "epoch", "milliseconds")}
    match event["event"]:
        case "epoch":
            rows = "" if event["rows"] is None else f" rows {event['rows']}"
            times = "".join(f" {name} {spent:.0f}ms" for name, spent in event["milliseconds"].items())
            total = f" total {event['total_milliseconds']:.0f}ms"
            return f"epoch {event['epoch']} committed: batch {event['batch']}{rows}{times}{total}"
        case "start":
            return f"generation {event.get('generation')} started"
        case "replay":
            return f"epoch {event.get('epoch')} replayed: batch {event.get('batch')}, sinks closed"
        case "stop":
            return "stopped in good order"
        case name:
            place = f" of epoch {event['epoch']}" if event.get("epoch") is not None else ""
            told = " ".join(f"{key}={value}" for key, value in facts.items() if value not in (None, [], {}))
            return f"{name}{place} done{f': {told}' if told else ''}"


def _doing(step: Step) -> str:
    place = f"epoch {step.epoch}: " if step.epoch is not None else ""
    return f"{place}{step.name}{f' {step.sink}' if step.sink else ''}"


def _print_line(event: dict[str, Any]) -> None:
    print(time_text(time.time_ns() // 1_000_000), sentence(event), file=sys.stderr, flush=True)  # noqa: T201


def _print_event(event: dict[str, Any]) -> None:
    print(json.dumps(event, ensure_ascii=False, default=str), flush=True)  # noqa: T201
