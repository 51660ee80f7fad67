"""Dying at every file-system call and every SQL statement of a sink, then starting again.

Death is an error that no code of ours catches, and after which nothing has an effect any more. The
next start is a new instance that does what the coordinator does: ask, commit what was decided, sweep.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pytest
from pyarrow import parquet

from holdfast.coordinator.sink import Epoch, Outcome, Sink
from holdfast.ids import CheckpointId
from holdfast.spark.sinks import Database, Files, read_index
from holdfast.testing.sinks import FLOW, attempt, stored

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

FILE_CALLS = ("mkdir", "link", "rename", "unlink", "rmdir", "fsync", "write")


class Died(BaseException):
    """The process is gone."""


class Death:
    """Comes at the ``at``-th call, before or after it takes effect. Afterwards no call has any."""

    def __init__(self, at: int, when: str) -> None:
        self._at = at
        self._when = when
        self._calls = 0
        self._lock = threading.Lock()
        self.came = False

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def dying(*arguments: Any, **settings: Any) -> Any:
            with self._lock:
                if self.came:
                    raise Died
                self._calls += 1
                now = self._calls == self._at
                self.came = now
                if now and self._when == "before":
                    raise Died
                result = call(*arguments, **settings)
                if now:
                    raise Died
            return result

        return dying


class Place:
    """A kind of sink at one place, and how a process that uses it can die."""

    def __init__(self, root: Path, spark: SparkSession) -> None:
        self.root = root
        self.spark = spark

    def copy(self, root: Path) -> Self:
        """The same place as it is now, to die in: Spark need not fill each one anew."""
        shutil.copytree(self.root, root)
        return type(self)(root, self.spark)

    def opened(self) -> Any:
        sink = self.sink()
        sink.open(FLOW)
        return sink

    def sink(self) -> Any:
        raise NotImplementedError

    def shown(self) -> list[int]:
        raise NotImplementedError

    def staged(self) -> list[str]:
        raise NotImplementedError

    @contextmanager
    def dying(self, death: Death, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        raise NotImplementedError
        yield

    def batch(self, *numbers: int) -> DataFrame:
        return self.spark.createDataFrame([(number,) for number in numbers], "number INT").repartition(2)


class FilesPlace(Place):
    def sink(self) -> Files:
        return Files(self.root)

    def shown(self) -> list[int]:
        if not self.root.exists():
            return []
        files = [file for file in self.root.rglob("*.parquet") if "_holdfast" not in file.parts]
        return sorted(number for file in files for number in parquet.read_table(file)["number"].to_pylist())

    def staged(self) -> list[str]:
        return [str(one) for one in self.root.glob("_holdfast/staged/*/*")]

    @contextmanager
    def dying(self, death: Death, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        with monkeypatch.context() as patch:
            for name in FILE_CALLS:
                patch.setattr(os, name, death.around(getattr(os, name)))
            yield


class SQLitePlace(Place):
    key: tuple[str, ...] = ()
    epoch_column: str | None = "epoch"

    def sink(self) -> Database:
        url = f"sqlite:///{self.root}/out.db"
        return Database(url, table="numbers", key=self.key, epoch_column=self.epoch_column)

    def shown(self) -> list[int]:
        rows = self._query("SELECT number FROM numbers ORDER BY number", "numbers")
        return [number for (number,) in rows]

    def staged(self) -> list[str]:
        rows = self._query(
            "SELECT name FROM sqlite_schema WHERE substr(name, 1, 4) = '_hf_'", "sqlite_schema"
        )
        return [name for (name,) in rows]

    def _query(self, sql: str, table: str) -> list[Any]:
        path = self.root / "out.db"
        if not path.exists():
            return []
        connection = sqlite3.connect(path)
        try:
            there = connection.execute("SELECT 1 FROM sqlite_schema WHERE name = ?", (table,)).fetchone()
            return connection.execute(sql).fetchall() if there or table == "sqlite_schema" else []
        finally:
            connection.close()

    @contextmanager
    def dying(self, death: Death, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        class Connection(sqlite3.Connection):
            """A killed process's connection: what it did not commit, only SQLite rolls back."""

            def execute(self, *arguments: Any) -> Any:
                return death.around(super().execute)(*arguments)

            def executemany(self, *arguments: Any) -> Any:
                return death.around(super().executemany)(*arguments)

        connect = sqlite3.connect
        with monkeypatch.context() as patch:
            patch.setattr(sqlite3, "connect", lambda *a, **s: connect(*a, **s, factory=Connection))
            yield


class SQLiteUpsertPlace(SQLitePlace):
    key = ("number",)
    epoch_column = None


@pytest.fixture(params=[FilesPlace, SQLitePlace, SQLiteUpsertPlace])
def place(request: pytest.FixtureRequest, tmp_path: Path, spark: SparkSession) -> Any:
    return request.param(tmp_path / "first", spark)


def deaths(place: Place) -> Iterator[tuple[Death, Any]]:
    """One after the other, each at its own copy of ``place``, until one did not come.

    Then the work had no more calls to die at.
    """
    for at in range(1, 500):
        for when in ("before", "after"):
            death = Death(at, when)
            yield death, place.copy(place.root.with_name(f"{at}-{when}"))
            if not death.came:
                assert at > 5, "hardly a call was seen: nothing was tested"
                return
    raise AssertionError("it never came to an end")


def dies_in(place: Place, death: Death, monkeypatch: pytest.MonkeyPatch, work: Callable[[], object]) -> None:
    with place.dying(death, monkeypatch):
        try:
            work()
        except Died:
            assert death.came
        else:
            assert not death.came, "a death was swallowed"


def start_again(place: Place, epoch: Epoch, receipts: list[Any] | None) -> Sink:
    """What the coordinator does with the last epoch. ``receipts`` are the decision's; None: there is none."""
    sink: Sink = place.opened()
    if receipts is not None and sink.outcome(epoch, receipts) is not Outcome.COMMITTED:
        sink.commit(epoch, receipts)

    def decided(number: int, id: CheckpointId) -> bool:
        return receipts is not None and (number, id) == (epoch.number, epoch.id)

    sink.sweep(epoch.generation + 1, decided)
    return sink


def prepared(place: Place, epoch: Epoch, *parts: tuple[int, ...]) -> list[Any]:
    sink = place.opened()
    sink.begin(epoch)
    return stored([sink.prepare(place.batch(*part), epoch, number) for number, part in enumerate(parts)])


def test_dying_anywhere_in_prepare_leaves_no_trace(place: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    place.root.mkdir()
    rows = place.batch(1, 2, 3, 4).cache()

    for death, here in deaths(place):
        epoch, next_one = attempt(1), attempt(1, generation=2)

        def work(here: Place = here, epoch: Epoch = epoch) -> None:
            sink = here.opened()
            sink.begin(epoch)
            sink.prepare(rows, epoch, 0)

        dies_in(here, death, monkeypatch, work)
        before = here.shown()
        sink = start_again(here, epoch, None)
        sink.begin(next_one)
        sink.commit(next_one, stored([sink.prepare(rows, next_one, 0)]))

        assert before == []
        assert here.shown() == [1, 2, 3, 4]
        assert here.staged() == []


def test_dying_anywhere_in_commit_shows_the_epoch_exactly_once(
    place: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    epoch = attempt(1)
    receipts = prepared(place, epoch, (1, 2), (3, 4))

    for death, here in deaths(place):
        dies_in(here, death, monkeypatch, lambda here=here: here.opened().commit(epoch, receipts))  # type: ignore[misc]
        sink = start_again(here, epoch, receipts)

        assert here.shown() == [1, 2, 3, 4]
        assert sink.outcome(epoch, receipts) is Outcome.COMMITTED
        assert here.staged() == []


def test_dying_anywhere_in_abort_or_sweep_is_made_good_by_the_next_start(
    place: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    epoch = attempt(1)
    prepared(place, epoch, (1, 2))

    for death, here in deaths(place):

        def work(here: Place = here) -> None:
            here.opened().abort(epoch, [])
            here.opened().sweep(9, lambda number, id: False)

        dies_in(here, death, monkeypatch, work)
        start_again(here, epoch, None)

        assert here.shown() == []
        assert here.staged() == []


@pytest.mark.parametrize("kind", [FilesPlace, SQLitePlace])
def test_dying_anywhere_in_a_rewind_is_made_good_by_doing_it_again(
    kind: type[Place], tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, half = kind(tmp_path / "first", spark), attempt(3)
    for number in (1, 2):
        epoch = attempt(number)
        place.opened().commit(epoch, prepared(place, epoch, (number,)))
    receipts = prepared(place, half, (3,))

    for death, here in deaths(place):
        dies_in(here, death, monkeypatch, lambda here=here: here.opened().rewind(2, 3))  # type: ignore[misc]
        here.opened().rewind(2, 3)
        here.opened().commit(half, receipts)

        assert here.shown() == [1]
        assert here.staged() == []
        newest = here.sink().open(FLOW)
        assert newest is not None
        assert newest.number == 1


def test_whatever_the_moment_the_index_names_whole_epochs_only(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, epoch = FilesPlace(tmp_path / "first", spark), attempt(1)
    receipts = prepared(place, epoch, (1, 2))

    for death, here in deaths(place):
        dies_in(here, death, monkeypatch, lambda here=here: here.opened().commit(epoch, receipts))  # type: ignore[misc]

        for shown in read_index(here.root):
            files = [here.root / file.name for file in shown.files]
            assert [file.stat().st_size for file in files] == [file.size_bytes for file in shown.files]
            assert here.shown() == [1, 2]
