"""Three rows of the table that ``make kills`` prints: real processes, killed for good, and what came after.

Before the decision nothing of an epoch may be seen; after it, all of it must be, in every sink.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import kill_table
import killed_life
import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.kills]


@pytest.fixture(scope="module")
def finish(spark: SparkSession) -> Callable[[Path], int]:
    """An undisturbed life, in this process."""

    def live(home: Path) -> int:
        killed_life.one_life(str(home / "pipeline.yaml"), str(home / "steps.jsonl"), "", spark)
        return 0

    return live


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> kill_table.Worlds:
    worlds = kill_table.Worlds(tmp_path_factory.mktemp("kills"))
    worlds.make({"fresh"})
    return worlds


@pytest.fixture(scope="module")
def reference(worlds: kill_table.Worlds, finish: Callable[[Path], int]) -> Path:
    home = worlds.copy("fresh", worlds.root / "reference")
    finish(home)
    return home


@pytest.mark.parametrize(
    ("case", "then"),
    [
        (kill_table.Case("prepare:after:2:lake"), "ran 2, 3, 4"),
        (kill_table.Case("publish:after:2:*", without_scratch=True), "resolved 2 (db lake committed); ran 3"),
        (kill_table.Case("inside:commit lake: one of two files shown"), "resolved 2 ("),
    ],
    ids=["before-the-decision", "after-the-decision-without-scratch", "in-the-middle-of-a-commit"],
)
def test_a_killed_run_is_finished_by_the_next_as_if_nothing_had_happened(
    worlds: kill_table.Worlds,
    reference: Path,
    finish: Callable[[Path], int],
    tmp_path: Path,
    case: kill_table.Case,
    then: str,
) -> None:
    row = kill_table.run_case(case, worlds, tmp_path / "home", reference, finish)

    assert row.faults == []
    assert (row.lost, row.doubled) == (0, 0)
    assert row.died_in == "2"
    assert then in row.then


def test_every_step_of_a_whole_run_is_one_that_the_table_kills_at(reference: Path) -> None:
    points = {tuple(case.point.split(":")[:2]) for case in kill_table.cases()}

    steps = {(step["name"], step["when"]) for step in kill_table.steps_of(reference)}

    assert steps <= points
    assert len(steps) == 2 * len({name for name, _ in steps}) > 20
