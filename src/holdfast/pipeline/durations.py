"""Spans of time as people write them: ``10 minutes``, ``0s``, ``500 ms``. One number, one unit, nothing else.

Compound spans (``1h30m``), signs and bare numbers are refused: a guess here becomes a watermark that
drops rows, or a trigger a thousand times too fast.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal

from holdfast.errors import InvalidInputError

AVAILABLE_NOW = "available-now"

_UNIT_MS = {
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 1),
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1_000),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60_000),
    **dict.fromkeys(("h", "hour", "hours"), 3_600_000),
    **dict.fromkeys(("d", "day", "days"), 86_400_000),
}
_DURATION = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,3})?)\s*([a-z]+)")
_ALLOWED = 'a number and a unit (ms, s, minutes, hours, days), such as "5 seconds" or "10 minutes"'


def parse_duration_ms(text: str) -> int:
    """``text`` in whole milliseconds. Raises InvalidInputError that says what is allowed."""
    found = _DURATION.fullmatch(text.strip().lower())
    if found is None:
        raise InvalidInputError(f"not a duration; allowed is {_ALLOWED}")
    number, unit = found.groups()
    if unit not in _UNIT_MS:
        raise InvalidInputError(f"unknown unit; allowed is {_ALLOWED}")
    milliseconds = Decimal(number) * _UNIT_MS[unit]
    if milliseconds != milliseconds.to_integral_value():
        raise InvalidInputError("finer than a millisecond")
    return int(milliseconds)


@dataclass(frozen=True, slots=True)
class Trigger:
    """When Spark starts a micro-batch: every ``interval_ms`` (0: as soon as it can).

    None is ``available-now``: read what is there, then end.
    """

    interval_ms: int | None = 0

    @property
    def is_available_now(self) -> bool:
        return self.interval_ms is None

    def __str__(self) -> str:
        return AVAILABLE_NOW if self.interval_ms is None else f"{self.interval_ms} milliseconds"


def parse_trigger(text: str) -> Trigger:
    """``available-now``, or how often to look for new input: ``5 seconds``. Raises InvalidInputError."""
    if text.strip() == AVAILABLE_NOW:
        return Trigger(None)
    try:
        return Trigger(parse_duration_ms(text))
    except InvalidInputError as error:
        raise InvalidInputError(
            f'not a trigger; allowed are {AVAILABLE_NOW}, or an interval such as "5 seconds"'
        ) from error
