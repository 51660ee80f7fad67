"""What the protocol is doing, told while it does it. Progress bars, logs and crash tests all listen here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any, Literal, TypeAlias


@dataclass(frozen=True, slots=True)
class Step:
    """One moment of a run. ``facts`` of an *after* hold ``milliseconds`` and what was counted on the way."""

    name: str
    when: Literal["before", "after"]
    epoch: int | None = None
    sink: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    #: Whose step it is, as ``pipeline/flow``; None where only one flow is meant.
    flow: str | None = None


Observer: TypeAlias = Callable[[Step], None]


def ignore(step: Step) -> None:
    """The observer for those who do not look."""
    del step


def of_flow(flow: str, observe: Observer) -> Observer:
    """``observe``, told with each step that it is ``flow``'s: the flows of a pipeline run side by side."""
    return lambda step: observe(replace(step, flow=flow))


@contextmanager
def observed(
    observe: Observer, name: str, *, epoch: int | None = None, sink: str | None = None
) -> Iterator[dict[str, Any]]:
    """Tell ``observe`` before and after; the block may put facts into what it is given.

    A step that raises has no *after*: who listens sees the error itself pass by.
    """
    observe(Step(name, "before", epoch=epoch, sink=sink))
    facts: dict[str, Any] = {}
    started = perf_counter()
    yield facts
    facts["milliseconds"] = round((perf_counter() - started) * 1000, 1)
    observe(Step(name, "after", epoch=epoch, sink=sink, facts=facts))
