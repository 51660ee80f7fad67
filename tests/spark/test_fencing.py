"""Two real processes on one flow. The newer one goes on; what the older one still does, nobody reads (I5).
And a start that has no right to run fences nobody.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import killed_life
import pytest
from runs import (
    FIRST,
    SECOND,
    THIRD,
    add_file,
    add_files,
    lake_rows,
    store_of,
    sums,
    table_rows,
    tree,
    updates,
    write_yaml,
)

from holdfast.coordinator import Step
from holdfast.errors import HoldfastError
from holdfast.pipeline import load_yaml
from holdfast.spark.running import run_pipeline
from holdfast.store.verifying import verify_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

FENCED = 11
PATIENCE_SECONDS = 240


@contextmanager
def process(home: Path, *command: object) -> Iterator[subprocess.Popen[bytes]]:
    """A process and all it starts, ended at the end of the block."""
    with (home / "log.txt").open("ab") as log:
        child = subprocess.Popen(
            [str(part) for part in command], stdout=log, stderr=log, cwd=home, start_new_session=True
        )
    try:
        yield child
    finally:
        with suppress(ProcessLookupError):  # all of it has ended
            os.killpg(child.pid, signal.SIGKILL)
        child.wait(PATIENCE_SECONDS)


def wait_for(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_second_run_fences_the_first_which_ends_with_11(spark: SparkSession, tmp_path: Path) -> None:
    yaml = write_yaml(tmp_path)
    add_files(tmp_path / "in", FIRST)
    program = Path(sys.executable).with_name("holdfast")

    def give_both_something_to_do(step: Step) -> None:
        if (step.name, step.when) == ("start", "after"):
            add_file(tmp_path / "in", 1, SECOND)

    with process(tmp_path, program, "run", yaml, "--trigger", "1 seconds") as first:
        wait_for(lambda: lake_rows(tmp_path / "out") == updates(FIRST) or first.poll() is not None)
        run_pipeline(load_yaml(yaml), session=spark, observe=give_both_something_to_do)
        code = first.wait(PATIENCE_SECONDS)

    log = (tmp_path / "log.txt").read_text()
    assert code == FENCED, log
    assert "error: generation 1 is fenced" in log
    check_that_only_the_newest_is_seen(tmp_path, updates(FIRST, SECOND), sums(FIRST, SECOND))


@pytest.mark.parametrize(
    "point",
    [
        # Everything is ready, nothing decided: the attempt of a generation that is over.
        "manifest:after:2:*",
        # Decided, shown by nobody: both will commit the same epoch, hours apart.
        "publish:after:2:*",
    ],
    ids=["before-the-decision", "after-the-decision"],
)
def test_a_zombie_that_wakes_up_after_its_successor_changes_nothing(
    spark: SparkSession, tmp_path: Path, point: str
) -> None:
    yaml = write_yaml(tmp_path)
    add_files(tmp_path / "in", FIRST, SECOND, THIRD)
    steps = tmp_path / "steps.jsonl"
    zombie_life = (sys.executable, killed_life.__file__, yaml, steps, f"sleep:{point}")

    with process(tmp_path, *zombie_life) as zombie:
        _, status = os.waitpid(zombie.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status), (tmp_path / "log.txt").read_text()
        run_pipeline(load_yaml(yaml), session=spark)
        seen = visible(tmp_path)
        decided = store_of(tmp_path).ledger.read().timeline
        os.killpg(zombie.pid, signal.SIGCONT)
        ended_with = zombie.wait(PATIENCE_SECONDS)

    assert ended_with == FENCED, (tmp_path / "log.txt").read_text()
    assert visible(tmp_path) == seen
    assert store_of(tmp_path).ledger.read().timeline == decided
    check_that_only_the_newest_is_seen(tmp_path, updates(FIRST, SECOND, THIRD), sums(FIRST, SECOND, THIRD))


def test_a_zombie_that_wakes_up_before_its_successor_decided_anything_decides_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    yaml = write_yaml(tmp_path)
    add_files(tmp_path / "in", FIRST, SECOND)
    zombie_life = (sys.executable, killed_life.__file__, yaml, tmp_path / "steps", "sleep:manifest:after:2:*")

    with process(tmp_path, *zombie_life) as zombie:
        _, status = os.waitpid(zombie.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status), (tmp_path / "log.txt").read_text()

        def wake_the_zombie(step: Step) -> None:
            # Its epoch is still free, its scratch still there: the start record is all that is in its way.
            if (step.name, step.when) == ("start", "after"):
                os.killpg(zombie.pid, signal.SIGCONT)
                zombie.wait(PATIENCE_SECONDS)

        run_pipeline(load_yaml(yaml), session=spark, observe=wake_the_zombie)

    assert zombie.returncode == FENCED, (tmp_path / "log.txt").read_text()
    check_that_only_the_newest_is_seen(tmp_path, updates(FIRST, SECOND), sums(FIRST, SECOND))


def visible(home: Path) -> dict[str, bytes]:
    """What the lake shows in plain sight, and what its index says of it."""
    return {
        name: data for name, data in tree(home / "out").items() if not name.startswith("_holdfast/staged")
    }


def check_that_only_the_newest_is_seen(home: Path, lake: object, table: object) -> None:
    assert lake_rows(home / "out") == lake
    assert table_rows(home / "out.db") == table
    history = store_of(home).ledger.read()
    start = history.newest_start
    assert start is not None
    later = [decision for decision in history.timeline if decision.n > start.n]
    assert later
    assert {decision.generation for decision in later} == {start.n}
    assert verify_store(store_of(home), read_data=True).problems == ()


# --- a start that has no right to run --------------------------------------------------------------------


@pytest.fixture(scope="module")
def ran(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("ran")
    yaml = write_yaml(home)
    add_files(home / "in", FIRST)
    run_pipeline(load_yaml(yaml), session=spark)
    return home


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("sum(qty) AS qty", "min(qty) AS qty", "operator 'per_minute' was changed"),
        ("path: ./out,", "path: ./in/000.json,", "is not a directory"),
        ("format: parquet}", "format: parquet, colour: red}", "colour"),
        ("sqlite:///out.db", "sqlite:///pipeline.yaml", "not a database"),
        ("symbol, sum(qty)", "simbol, sum(qty)", "simbol"),
    ],
    ids=["operator", "sink-path", "sink-option", "database", "column"],
)
def test_a_run_that_is_declared_wrongly_fences_nobody(
    spark: SparkSession, ran: Path, old: str, new: str, complaint: str
) -> None:
    text = (ran / "pipeline.yaml").read_text()
    assert old in text
    wrong = ran / "wrong.yaml"
    wrong.write_text(text.replace(old, new))
    before = tree(ran)

    with pytest.raises(Exception, match=complaint) as caught:
        run_pipeline(load_yaml(wrong), session=spark)

    # A query that Spark cannot read is refused in Spark's own words.
    assert isinstance(caught.value, HoldfastError) or complaint == "simbol", repr(caught.value)
    assert tree(ran) == before
