"""A replay that cannot be what was recorded says what is wrong. The real ones run in tests/spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import CorruptError
from holdfast.spark.driving import OnBatch
from holdfast.spark.replaying import replay_batch

LOGS = {"metadata": "{}", "offsets/3": "v1\n{}\n1", "commits/3": 'v1\n{"nextBatchWatermarkMs":0}'}
NO_QUERY: Any = None


def run(batch: int) -> Any:
    """Starts a query that gives ``batch`` its rows, and ends before it is committed."""

    def run_once(on_batch: OnBatch) -> None:
        on_batch(NO_QUERY, batch, NO_QUERY)

    return run_once


@pytest.mark.parametrize("lost", ["offsets/3", "commits/3"])
def test_a_batch_without_its_log_in_the_record_is_named_before_anything_runs(
    tmp_path: Path, lost: str
) -> None:
    logs = {name: text for name, text in LOGS.items() if name != lost}

    with pytest.raises(CorruptError, match=f"{lost} is corrupt: the record"):
        replay_batch(3, tmp_path, logs, run_once=run(3), take=lambda _: None)

    assert list(tmp_path.iterdir()) == []


def test_a_batch_that_another_came_for_is_not_as_recorded(tmp_path: Path) -> None:
    with pytest.raises(CorruptError, match=r"batch 3 .*Spark ran \[4\] instead"):
        replay_batch(3, tmp_path, LOGS, run_once=run(4), take=lambda _: None)


def test_a_batch_that_was_not_committed_is_not_as_recorded(tmp_path: Path) -> None:
    with pytest.raises(CorruptError, match=r"batch 3 .*did not finish it"):
        replay_batch(3, tmp_path, LOGS, run_once=run(3), take=lambda _: None)
