"""What a run asks of its sinks, with one that a user could have written and the built-in ones: what a crash
leaves is committed or dropped by the next run, and what was lost is computed again."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from runs import (
    FIRST,
    SECOND,
    THIRD,
    Rows,
    add_files,
    lake_rows,
    store_of,
    sums,
    table_rows,
    updates,
    write_yaml,
)

from holdfast.coordinator import (
    Decided,
    Epoch,
    Observer,
    Outcome,
    SinkFlow,
    StagedOutputGoneError,
    Step,
    ignore,
)
from holdfast.errors import ConflictError
from holdfast.ids import CheckpointId
from holdfast.manifest import Receipt
from holdfast.pipeline import load_yaml
from holdfast.spark.running import run_pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


class Lines:
    """A sink of a user's own: an epoch is one file of JSON lines, and a rename shows it."""

    def __init__(self, root: Path) -> None:
        self.root, self.staged = root, root / ".staged"

    def open(self, flow: SinkFlow) -> Epoch | None:
        shown = max(self.root.glob("*.json"), default=None)
        return Epoch(int(shown.name[:6]), CheckpointId.parse(shown.stem[7:]), 0) if shown else None

    def begin(self, epoch: Epoch) -> None:
        self.staged.mkdir(parents=True, exist_ok=True)

    def prepare(self, batch: Any, epoch: Epoch, part: int) -> Receipt:
        rows = [json.dumps([str(row.minute), row.symbol, row.qty]) for row in batch.collect()]
        (self.staged / f"{epoch.generation}~{name_of(epoch)}").write_text("\n".join(rows))
        return {"rows": len(rows)}

    def commit(self, epoch: Epoch, receipts: Sequence[Receipt]) -> None:
        staged = [*self.staged.glob(f"*~{name_of(epoch)}")]
        if staged:
            staged[0].rename(self.root / name_of(epoch))
        elif not (self.root / name_of(epoch)).exists():
            raise StagedOutputGoneError("lines", epoch.number, name_of(epoch))

    def abort(self, epoch: Epoch, receipts: Sequence[Receipt]) -> None:
        (self.staged / f"{epoch.generation}~{name_of(epoch)}").unlink(missing_ok=True)

    def outcome(self, epoch: Epoch, receipts: Sequence[Receipt]) -> Outcome:
        shown = (self.root / name_of(epoch)).exists()
        return Outcome.COMMITTED if shown else Outcome.NOT_COMMITTED

    def sweep(self, generation: int, decided: Decided) -> None:
        for path in self.staged.glob("*~*"):
            theirs, name = path.name.split("~")
            attempt = int(name[:6]), CheckpointId.parse(name[7:-5])
            if int(theirs) < generation and not decided(*attempt):
                path.unlink()


def name_of(epoch: Epoch) -> str:
    return f"{epoch.number:06}-{epoch.id}.json"


def line_rows(root: Path) -> Rows:
    rows: Rows = Counter()
    for path in root.glob("*.json"):
        for line in path.read_text().splitlines():
            minute, symbol, qty = json.loads(line)
            rows[minute, symbol, qty] += 1
    return rows


class Crash(Exception):
    """Stands for the end of the process, where killing a real one would prove nothing more."""


class Crashing:
    """An observer that ends the run at a step, and remembers those before it."""

    def __init__(self, name: str = "", when: str = "", sink: str | None = None, epoch: int = 2) -> None:
        self.at = (name, when, epoch, sink)
        self.seen: list[Step] = []

    def __call__(self, step: Step) -> None:
        self.seen.append(step)
        if (step.name, step.when, step.epoch, step.sink) == self.at:
            raise Crash


@pytest.fixture
def home(tmp_path: Path) -> Path:
    write_yaml(tmp_path)
    add_files(tmp_path / "in", FIRST, SECOND, THIRD)
    return tmp_path


def run(spark: SparkSession, home: Path, observe: Observer = ignore, **own: Any) -> None:
    run_pipeline(load_yaml(home / "pipeline.yaml"), session=spark, observe=observe, sinks=own)


@pytest.mark.parametrize(
    "crash",
    [Crashing("prepare", "after", "lake"), Crashing("publish", "before"), Crashing("publish", "after")],
    ids=["prepared", "undecided", "decided"],
)
def test_a_sink_of_thirty_lines_shows_every_row_once_whatever_happens(
    spark: SparkSession, home: Path, crash: Crashing
) -> None:
    lines = Lines(home / "lines")
    with pytest.raises(Crash):
        run(spark, home, crash, lake=lines)

    run(spark, home, lake=Lines(home / "lines"))

    assert line_rows(home / "lines") == updates(FIRST, SECOND, THIRD)
    assert table_rows(home / "out.db") == sums(FIRST, SECOND, THIRD)
    assert list(lines.staged.iterdir()) == []


@pytest.mark.parametrize("lost", [("lake",), ("db",), ("lake", "db")], ids=["files", "table", "both"])
def test_a_sink_that_lost_what_it_staged_is_fed_the_epoch_again(
    spark: SparkSession, home: Path, lost: tuple[str, ...]
) -> None:
    with pytest.raises(Crash):
        run(spark, home, Crashing("publish", "after"))
    assert lake_rows(home / "out") == updates(FIRST)
    if "lake" in lost:
        shutil.rmtree(next(home.glob("out/_holdfast/staged/*")))
    if "db" in lost:
        drop_staging_tables(home / "out.db")
    seen = Crashing()

    run(spark, home, seen)

    fed = {step.sink for step in seen.seen if step.name == "feed"}
    assert fed == set(lost)
    assert lake_rows(home / "out") == updates(FIRST, SECOND, THIRD)
    assert table_rows(home / "out.db") == sums(FIRST, SECOND, THIRD)
    # Fed or not, each epoch was decided once.
    epochs = [decision.epoch for decision in store_of(home).ledger.read().timeline]
    assert epochs == list(range(1, len(epochs) + 1))


def test_a_start_that_dies_while_it_feeds_leaves_nothing_staged_in_the_end(
    spark: SparkSession, home: Path
) -> None:
    with pytest.raises(Crash):
        run(spark, home, Crashing("publish", "after"))
    shutil.rmtree(next(home.glob("out/_holdfast/staged/*")))
    with pytest.raises(Crash):
        run(spark, home, Crashing("feed", "after", "lake"))
    assert len(list(home.glob("out/_holdfast/staged/*/*"))) == 1

    run(spark, home)

    assert list(home.glob("out/_holdfast/staged/*/*")) == []
    assert lake_rows(home / "out") == updates(FIRST, SECOND, THIRD)


def drop_staging_tables(database: Path) -> None:
    with closing(sqlite3.connect(database)) as connection:
        names = connection.execute("SELECT name FROM sqlite_schema WHERE name LIKE '\\_hf\\_%' ESCAPE '\\'")
        for (name,) in names.fetchall():
            connection.execute(f'DROP TABLE "{name}"')
        connection.commit()


def test_a_sink_that_shows_an_epoch_nobody_decided_stops_the_start(spark: SparkSession, home: Path) -> None:
    run(spark, home)
    head = store_of(home).ledger.read().head
    lines = home / "lines"
    lines.mkdir()
    (lines / f"000099-{CheckpointId.now()}.json").write_text("")

    with pytest.raises(ConflictError, match="shows epoch 99"):
        run(spark, home, lake=Lines(lines))

    assert store_of(home).ledger.read().head == head
