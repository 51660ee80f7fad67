"""What a run adds to the errors of its flows. The flows themselves need Spark, and are run in tests/spark."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.coordinator import SinkOutcomeUnknownError
from holdfast.errors import FencedError, HoldfastError
from holdfast.pipeline import Trigger
from holdfast.spark.running import _run_all


class Failing:
    """A flow that ends with ``error``."""

    store_url = "/data/checkpoints/orders/per_minute"

    def __init__(self, error: HoldfastError) -> None:
        self.error = error

    def run(self, trigger: Trigger) -> None:
        raise self.error

    def ask_to_stop(self) -> None: ...


def ended_by(runners: Any) -> HoldfastError:
    with pytest.raises(HoldfastError) as ended:
        _run_all(runners, Trigger())
    return ended.value


def test_who_is_told_to_type_a_command_is_told_the_store_it_asks_for() -> None:
    error = ended_by({"per_minute": Failing(SinkOutcomeUnknownError("db", 4))})

    assert error.__notes__ == ["the flow's store is --store /data/checkpoints/orders/per_minute"]


def test_an_error_without_a_command_needs_no_store() -> None:
    error = ended_by({"per_minute": Failing(FencedError(1, 2, "somebody"))})

    assert not hasattr(error, "__notes__")


def test_of_two_flows_that_fail_both_are_told_of() -> None:
    first, second = FencedError(1, 2, "somebody"), FencedError(3, 4, "somebody")

    error = ended_by({"one": Failing(first), "two": Failing(second)})

    assert error is first
    assert error.__notes__ == ["in flow 'one'", f"flow 'two' failed too: FencedError: {second}"]
