"""Run a few blocking calls side by side. Nobody above sees a thread.

Threads are daemons: a call that hangs past its limit is left behind, and cannot keep the process alive.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

T = TypeVar("T")


class TookTooLongError(Exception):
    """A call was still running when its time was up. What it did, or will do yet, is not known."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds

    def __str__(self) -> str:
        return f"still not back after {self.seconds:g} s"


class Results(Generic[T]):
    """What came of each call: its value, or what it raised."""

    def __init__(self, values: dict[str, T], errors: dict[str, BaseException]) -> None:
        self.values = values
        self.errors = errors

    def note_others(self, error: BaseException, what: str) -> None:
        """Note on ``error``, which tells of the first failure, all the others: only one can be raised."""
        for name, other in list(self.errors.items())[1:]:
            error.add_note(f"{what} {name!r} failed too: {type(other).__name__}: {other}")


def side_by_side(
    calls: Mapping[str, Callable[[], T]],
    *,
    seconds: float | None = None,
    warn_after_seconds: float | None = None,
    warn: Callable[[str], None] | None = None,
) -> Results[T]:
    """Make every call at once and wait for all of them, each no longer than ``seconds``.

    Order of completion leaves no trace: results come in the order of ``calls``. ``warn`` is told,
    once each, who is still out after ``warn_after_seconds``.
    """
    values: dict[str, T] = {}
    errors: dict[str, BaseException] = {}

    def call(name: str) -> None:
        try:
            values[name] = calls[name]()
        except BaseException as error:  # noqa: BLE001 - handed to the caller, who raises it
            errors[name] = error

    threads = {
        name: threading.Thread(target=call, args=(name,), name=f"holdfast-{name}", daemon=True)
        for name in calls
    }
    for thread in threads.values():
        thread.start()
    started = time.monotonic()
    if warn is not None and warn_after_seconds is not None:
        _join(threads, started, warn_after_seconds)
        for name, thread in threads.items():
            if thread.is_alive():
                warn(name)
    _join(threads, started, seconds)
    # Who is still alive is asked first: a call that ends while we look counts as late, never as lost.
    late = [name for name, thread in threads.items() if thread.is_alive()]
    for name in late:
        errors[name] = TookTooLongError(seconds or 0)
    return Results(
        {name: values[name] for name in calls if name not in errors},
        {name: errors[name] for name in calls if name in errors},
    )


def _join(threads: Mapping[str, threading.Thread], started: float, seconds: float | None) -> None:
    for thread in threads.values():
        left = None if seconds is None else max(0.0, started + seconds - time.monotonic())
        thread.join(left)
