"""Spans of time and triggers: what is a duration, and what is refused rather than guessed."""

from __future__ import annotations

import pytest

from holdfast.errors import InvalidInputError
from holdfast.pipeline.durations import Trigger, parse_duration_ms, parse_trigger


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("0s", 0),
        ("5 seconds", 5_000),
        ("10 minutes", 600_000),
        ("1 hour", 3_600_000),
        ("2d", 172_800_000),
        ("500 ms", 500),
        ("1.5 s", 1_500),
        (" 3 Minutes ", 180_000),
    ],
)
def test_a_number_and_a_unit_is_a_duration(text: str, milliseconds: int) -> None:
    assert parse_duration_ms(text) == milliseconds


@pytest.mark.parametrize(
    "text", ["", "5", "seconds", "-5 s", "1h30m", "5 fortnights", "0.1 ms", "1e3 s", "٣ s"]
)
def test_what_could_be_read_two_ways_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError):
        parse_duration_ms(text)


def test_a_trigger_is_available_now_or_an_interval() -> None:
    assert parse_trigger("available-now").is_available_now
    assert parse_trigger("5 seconds") == Trigger(5_000)
    assert str(Trigger(5_000)) == "5000 milliseconds"


@pytest.mark.parametrize("text", ["once", "availableNow", "continuous", "5"])
def test_another_trigger_is_refused_with_both_forms_named(text: str) -> None:
    with pytest.raises(InvalidInputError, match=r'available-now, or an interval such as "5 seconds"'):
        parse_trigger(text)
