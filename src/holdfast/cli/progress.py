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
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from holdfast.cli.output import time_text

if TYPE_CHECKING:
    from rich.status import Status

    from holdfast.coordinator.steps import Observer, Step

# What an epoch's line tells the time of, in the order of the protocol.
TIMED = ("compute", "prepare", "capture", "manifest", "publish", "commit")


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


@dataclass(slots=True)
class _EpochUnderWay:
    """One epoch of one flow, from the admission of its first batch on."""

    number: int | None
    begun: float
    batches: list[int] = field(default_factory=list)
    #: None: nobody counted, since the one sink takes the rows as they are computed.
    rows: int | None = None
    spent: dict[str, float] = field(default_factory=dict)
    #: The same for the batch at work.
    spent_here: dict[str, float] = field(default_factory=dict)

    def next_batch(self) -> None:
        for name, milliseconds in self.spent_here.items():
            self.spent[name] = round(self.spent.get(name, 0.0) + milliseconds, 1)
        self.spent_here = {}

    def add(self, step: Step) -> None:
        # Of sinks side by side the slowest counts: that is how long the epoch waited.
        milliseconds = float(step.facts.get("milliseconds", 0.0))
        self.spent_here[step.name] = max(self.spent_here.get(step.name, 0.0), milliseconds)
        if step.name == "compute" and step.facts.get("rows") is not None:
            self.rows = (self.rows or 0) + step.facts["rows"]


class RunLog:
    """Turns steps into events a person follows: what was resumed, each epoch with its times, the end.

    Flows run side by side, and in each of them its sinks do, so steps arrive from several threads.
    """

    def __init__(self, tell: Callable[[dict[str, Any]], None], status: Status | None = None) -> None:
        self._tell = tell
        self._status = status
        self._lock = threading.Lock()
        #: By flow.
        self._under_way: dict[str | None, _EpochUnderWay] = {}

    def observe(self, step: Step) -> None:
        with self._lock:
            if self._status is not None and step.when == "before":
                self._status.update(_doing(step))
            if step.name == "admit":
                self._admit(step)
            elif step.when == "after":
                self._after(step)

    def _admit(self, step: Step) -> None:
        epoch = self._under_way.get(step.flow)
        if epoch is None or epoch.number != step.epoch:
            epoch = self._under_way[step.flow] = _EpochUnderWay(step.epoch, time.monotonic())
        if step.when == "after":
            epoch.next_batch()
            epoch.batches.append(step.facts["batch"])

    def _after(self, step: Step) -> None:
        if step.name == "start":
            self._under_way.pop(step.flow, None)  # what the run before left open begins anew
        epoch = self._under_way.get(step.flow)
        if epoch is not None and step.name in TIMED:
            epoch.add(step)
        elif epoch is not None and step.name == "finish":
            del self._under_way[step.flow]
            self._tell_of(step, epoch)
        elif step.name in ("plan", "start", "resolve", "materialise", "replay", "feed", "stop"):
            facts = {key: value for key, value in step.facts.items() if key != "milliseconds"}
            named = {"flow": step.flow, "epoch": step.epoch, "sink": step.sink}
            self._tell({"event": step.name, **{k: v for k, v in named.items() if v is not None}, **facts})

    def _tell_of(self, step: Step, epoch: _EpochUnderWay) -> None:
        epoch.next_batch()
        self._tell(
            {
                "event": "epoch",
                **({"flow": step.flow} if step.flow is not None else {}),
                "epoch": step.epoch,
                "batch": epoch.batches[-1],
                "first_batch": epoch.batches[0],
                "rows": epoch.rows,
                "milliseconds": {name: epoch.spent[name] for name in TIMED if name in epoch.spent},
                "total_milliseconds": round((time.monotonic() - epoch.begun) * 1000, 1),
            }
        )


def sentence(event: dict[str, Any]) -> str:
    """An event as one line of text."""
    flow = event.get("flow")
    return f"{flow}: {_told(event)}" if flow is not None else _told(event)


def _told(event: dict[str, Any]) -> str:
    facts = {key: value for key, value in event.items() if key not in ("event", "flow", "epoch")}
    match event["event"]:
        case "epoch":
            first, last = event["first_batch"], event["batch"]
            batches = f"batch {last}" if first == last else f"batches {first} to {last}"
            rows = "" if event["rows"] is None else f" rows {event['rows']}"
            times = "".join(f" {name} {spent:.0f}ms" for name, spent in event["milliseconds"].items())
            total = f" total {event['total_milliseconds']:.0f}ms"
            return f"epoch {event['epoch']} committed: {batches}{rows}{times}{total}"
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
    flow = f"{step.flow}: " if step.flow is not None else ""
    place = f"epoch {step.epoch}: " if step.epoch is not None else ""
    return f"{flow}{place}{step.name}{f' {step.sink}' if step.sink else ''}"


def _print_line(event: dict[str, Any]) -> None:
    print(time_text(time.time_ns() // 1_000_000), sentence(event), file=sys.stderr, flush=True)  # noqa: T201


def _print_event(event: dict[str, Any]) -> None:
    print(json.dumps(event, ensure_ascii=False, default=str), flush=True)  # noqa: T201
