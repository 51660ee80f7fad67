"""A clock that moves when it is told to."""

from __future__ import annotations

import threading


class FakeClock:
    """Call it for milliseconds since 1970; ``monotonic`` and ``sleep`` are those of ``time``.

    ``sleep`` advances the clock and returns at once; ``slept`` keeps what was asked for.
    """

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._lock = threading.Lock()
        self._now_ms = float(now_ms)
        self._elapsed_seconds = 0.0
        self.slept: list[float] = []

    def __call__(self) -> int:
        return int(self._now_ms)

    def monotonic(self) -> float:
        return self._elapsed_seconds

    def advance(self, seconds: float) -> None:
        """Let time pass, for both clocks."""
        if seconds < 0:
            raise ValueError("time does not go back; set_back does that to the wall clock")
        with self._lock:
            self._now_ms += seconds * 1000
            self._elapsed_seconds += seconds

    def set_back(self, seconds: float) -> None:
        """What an administrator, or a time server, does to the wall clock alone."""
        with self._lock:
            self._now_ms -= seconds * 1000

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.advance(seconds)
