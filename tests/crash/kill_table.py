"""Kill a pipeline at every step of the protocol and see what the next life makes of it.

    kill_table.py [--only PATTERN] [--jobs N] [--keep DIRECTORY]

One row is one death: a pipeline (windowed aggregation with a watermark, state in RocksDB, a Parquet and a
SQLite sink) is killed with SIGKILL, driver and JVM, at one point; another process then finishes the work.
The row holds if both sinks equal, row for row, those of a run that nobody disturbed; if every batch is
decided once; if nothing is left staged; and if every byte of the store verifies. A point that never fires
fails, and so does a step of the protocol that a finished life took and no row has killed.

Exit code 0 if every row holds.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.blobs import FileBlobs
from holdfast.spark.demo import PIPELINE, parquet_rows, sqlite_rows, write_trades
from holdfast.spark.sinks.attempts import Attempt, parse_directory, parse_table
from holdfast.store import PartitionedCheckpointStore
from holdfast.store.verifying import verify_store

HERE = Path(__file__).resolve().parent
FILES = 3
LIFE_SECONDS = 300
SEED = 11
STORY = 76

Steps = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Case:
    """One row to be: what the world looks like, where the life in it dies, and what is lost with it."""

    point: str
    world: str = "fresh"
    without_scratch: bool = False

    @property
    def name(self) -> str:
        where = "" if self.world == "fresh" else f" [{self.world}]"
        return self.point + where + (" [scratch removed]" if self.without_scratch else "")


@dataclass(slots=True)
class Row:
    """One death and what came after it."""

    case: Case
    died_in: str = "–"
    then: str = ""
    lost: int = 0
    doubled: int = 0
    faults: list[str] = field(default_factory=list)
    killed_at: tuple[str, str, str] | None = None
    seen: set[tuple[str, str, str]] = field(default_factory=set)

    @property
    def holds(self) -> bool:
        return not self.faults and self.lost == 0 and self.doubled == 0


# --- the points ----------------------------------------------------------------------------------------


def both(*steps: str) -> list[str]:
    """``step:epoch:sink`` before it and after it."""
    return [
        ":".join((name, when, *rest)) for name, *rest in map(_parts, steps) for when in ("before", "after")
    ]


def _parts(step: str) -> list[str]:
    return step.split("/")


#: A run's first life, killed in its second epoch: there is one to stand on and one to come.
ONE_EPOCH = both(
    "admit/2/*",
    "begin/2/db",
    "begin/2/lake",
    "compute/2/*",
    "prepare/2/db",
    "prepare/2/lake",
    "capture/2/*",
    "manifest/2/*",
    "publish/2/*",
    "commit/2/db",
    "commit/2/lake",
    "finish/2/*",
    "stop/*/*",
)
#: A start that finds an epoch decided and shown by nobody.
START = both(
    "plan/*/*",
    "start/*/*",
    "resolve/2/*",
    "commit/2/db",
    "commit/2/lake",
    "sweep/*/db",
    "sweep/*/lake",
    "materialise/*/*",
)


def cases() -> list[Case]:
    # Here, since importing it imports Spark.
    from killed_life import INSIDE

    return [
        *(Case(point) for point in ONE_EPOCH),
        *(Case(f"inside:{place}") for place in INSIDE),
        *(Case(point, "undone") for point in START),
        *(Case(point, "damaged") for point in both("replay/2/*", "publish/3/*")),
        *(Case(point, "unstaged") for point in both("replay/2/*", "feed/2/db", "feed/2/lake")),
        Case("commit:after:2:db", "unstaged"),
        *(
            Case(point, without_scratch=True)
            for point in (
                "prepare:after:2:lake",
                "capture:after:2:*",
                "publish:after:2:*",
                "commit:before:2:db",
                "finish:after:2:*",
            )
        ),
        Case("materialise:after:*:*", "undone", without_scratch=True),
        Case("replay:after:2:*", "damaged", without_scratch=True),
    ]


# --- worlds: what a life finds when it starts ------------------------------------------------------------


class Worlds:
    """Directories to start from, each made once, and copied for every row."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.input = root / "in"
        root.mkdir(parents=True, exist_ok=True)
        write_trades(self.input, random.Random(SEED), files=FILES)
        self._made: dict[str, Path] = {}

    def make(self, wanted: set[str]) -> None:
        self._fresh()
        if wanted & {"undone", "damaged", "unstaged"}:
            undone = self._copy("fresh", "undone")
            _expect_death(undone, "publish:after:2:*")
        if "damaged" in wanted:
            _damage(self._copy("undone", "damaged"))
        if "unstaged" in wanted:
            _unstage(self._copy("undone", "unstaged"))

    def copy(self, world: str, target: Path) -> Path:
        shutil.copytree(self._made[world], target, symlinks=True)
        # Its steps are told by those who live there.
        (target / "steps.jsonl").unlink(missing_ok=True)
        return target

    def _fresh(self) -> None:
        home = self._made["fresh"] = self.root / "worlds" / "fresh"
        home.mkdir(parents=True)
        (home / "pipeline.yaml").write_text(PIPELINE.format(input=self.input), encoding="utf-8")

    def _copy(self, world: str, name: str) -> Path:
        self._made[name] = self.copy(world, self.root / "worlds" / name)
        return self._made[name]


def _damage(home: Path) -> None:
    """Flip a bit of the newest manifest: the epoch after the one before it has to be replayed."""
    store = store_of(home)
    newest = store.ledger.read().newest_decision
    assert newest is not None
    key = store.paths.manifest(newest.checkpoint_id)
    data = bytearray(store.blobs.get(key))
    data[len(data) // 2] ^= 1
    store.blobs.put(key, bytes(data))


def _unstage(home: Path) -> None:
    """Remove what both sinks staged: the decided epoch has to be computed again, for them alone."""
    for attempts in home.glob("out/*/_holdfast/staged/*"):
        shutil.rmtree(attempts)
    with closing(sqlite3.connect(home / "out.db")) as connection:
        for table in _staging_tables(connection):
            connection.execute(f'DROP TABLE "{table}"')
        connection.commit()


def store_of(home: Path) -> PartitionedCheckpointStore:
    return PartitionedCheckpointStore(FileBlobs(home / "checkpoints" / "orders" / "per_minute"))


# --- lives -----------------------------------------------------------------------------------------------


def live(home: Path, point: str = "") -> int:
    """One life in a process of its own; its exit code. Whatever it started is gone afterwards."""
    command = [sys.executable, str(HERE / "killed_life.py"), str(home / "pipeline.yaml")]
    with (home / "log.txt").open("a", encoding="utf-8") as log:
        child = subprocess.Popen(
            [*command, str(home / "steps.jsonl"), *([point] if point else [])],
            stdout=log,
            stderr=log,
            cwd=home,
            start_new_session=True,  # its JVM is in the same group, and dies with it
        )
        try:
            return child.wait(LIFE_SECONDS)
        finally:
            kill_group(child.pid)


def kill_group(pid: int) -> None:
    with suppress(ProcessLookupError):  # all of it has ended
        os.killpg(pid, signal.SIGKILL)


class Survivors:
    """Processes that live the undisturbed lives, one after the other, with a Spark that is up already."""

    def __init__(self, root: Path, count: int) -> None:
        self._root = root
        self._idle: queue.SimpleQueue[subprocess.Popen[str]] = queue.SimpleQueue()
        for _ in range(count):
            self._idle.put(self._start())

    def live(self, home: Path) -> int:
        """One life; 0, or 1 with the error in the home's log."""
        child = self._idle.get()
        too_long = threading.Timer(LIFE_SECONDS, kill_group, [child.pid])
        too_long.start()
        try:
            error = _ask(child, home)
        finally:
            too_long.cancel()
        if error:
            kill_group(child.pid)  # what is left of a failed life must not meet the next one
            child = self._start()
            with (home / "log.txt").open("a", encoding="utf-8") as log:
                log.write(error)
        self._idle.put(child)
        return 1 if error else 0

    def stop(self) -> None:
        while not self._idle.empty():
            kill_group(self._idle.get().pid)

    def _start(self) -> subprocess.Popen[str]:
        with (self._root / "survivors.txt").open("a", encoding="utf-8") as log:
            return subprocess.Popen(
                [sys.executable, str(HERE / "killed_life.py")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=self._root,
                start_new_session=True,
            )


def _ask(child: subprocess.Popen[str], home: Path) -> str:
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(json.dumps([str(home / "pipeline.yaml"), str(home / "steps.jsonl")]) + "\n")
    child.stdin.flush()
    for line in child.stdout:
        if line.startswith("life:"):
            return str(json.loads(line.removeprefix("life:")))
    return "the process ended, or took too long"


def _expect_death(home: Path, point: str) -> None:
    code = live(home, point)
    if code != -signal.SIGKILL:
        raise SystemExit(f"{point} was to kill, and the life ended with {code}\n{tail(home)}")


def tail(home: Path) -> str:
    lines = (home / "log.txt").read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join(lines[-15:])


def steps_of(home: Path) -> Steps:
    path = home / "steps.jsonl"
    if not path.exists():
        return []
    # A line without its end is the one that a death interrupted.
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]


# --- one row ---------------------------------------------------------------------------------------------


def run_case(case: Case, worlds: Worlds, home: Path, reference: Path, finish: Callable[[Path], int]) -> Row:
    """Die, live again (``finish`` is that life, in another process), and compare."""
    row = Row(case)
    worlds.copy(case.world, home)
    code = live(home, case.point)
    first = steps_of(home)
    if code != -signal.SIGKILL:
        row.faults.append(
            f"never fired (exit code {code})" if code == 0 else f"exit code {code}\n{tail(home)}"
        )
        return row
    row.died_in = _epoch_of(first)
    row.killed_at = None if case.point.startswith("inside:") else _signature(first[-1])
    if case.without_scratch:
        shutil.rmtree(home / "scratch", ignore_errors=True)
    undecided = leftovers(home) - decided(home)
    (home / "steps.jsonl").unlink(missing_ok=True)
    code = finish(home)
    second = steps_of(home)
    row.seen = set(map(_signature, second))
    row.then = _story(second, swept=len(undecided - leftovers(home)))
    if code != 0:
        row.faults.append(f"the next life ended with {code}\n{tail(home)}")
        return row
    _compare(row, home, reference)
    return row


def _compare(row: Row, home: Path, reference: Path) -> None:
    for rows_of in (parquet_of, sqlite_of):
        expected, found = rows_of(reference), rows_of(home)
        row.lost += (expected - found).total()
        row.doubled += (found - expected).total()
    if left := leftovers(home):
        row.faults.append(f"{len(left)} attempts still staged")
    history = store_of(home).ledger.read()
    batches = [decision.batches for decision in history.timeline]
    # One a file, and one without rows where Spark saw that the watermark had moved: a query that starts
    # anew does not look for that.
    if batches != [(number, number) for number in range(max(FILES, len(batches)))][: FILES + 1]:
        row.faults.append(f"batches decided: {batches}")
    report = verify_store(store_of(home), read_data=True)
    damaged = [problem for problem in report.problems if row.case.world != "damaged"]
    row.faults += [f"{problem.code}: {problem.key}: {problem.message}" for problem in damaged]


def parquet_of(home: Path) -> Any:
    return parquet_rows(home / "out" / "per_minute")


def sqlite_of(home: Path) -> Any:
    return sqlite_rows(home / "out.db")


def leftovers(home: Path) -> set[tuple[str, Attempt]]:
    """What both sinks hold staged."""
    found: set[tuple[str, Attempt]] = set()
    for path in home.glob("out/*/_holdfast/staged/*/*"):
        if attempt := parse_directory(path.name.removeprefix("gone-")):
            found.add(("lake", attempt))
    if (home / "out.db").exists():
        with closing(sqlite3.connect(home / "out.db")) as connection:
            for table in _staging_tables(connection):
                if attempt := parse_table(table):
                    found.add(("db", attempt))
    return found


def decided(home: Path) -> set[tuple[str, Attempt]]:
    timeline = store_of(home).ledger.read().timeline
    attempts = [Attempt(one.generation, one.epoch, one.checkpoint_id) for one in timeline]
    return {(sink, attempt) for attempt in attempts for sink in ("lake", "db")}


def _staging_tables(connection: sqlite3.Connection) -> list[str]:
    rows = connection.execute(
        "SELECT name FROM sqlite_schema WHERE type = 'table' AND substr(name, 1, 4) = '_hf_'"
    )
    return [name for (name,) in rows.fetchall()]


def _signature(step: dict[str, Any]) -> tuple[str, str, str]:
    return step["name"], step["when"], step["sink"] or ""


def _epoch_of(steps: Steps) -> str:
    """The epoch at work at the end; a start is at work on none."""
    epochs = [step["epoch"] for step in steps if step["epoch"] is not None]
    return str(epochs[-1]) if epochs else "–"


def _story(steps: Steps, *, swept: int) -> str:
    """What a life did, in a few words."""
    told = []
    for step in steps:
        if step["when"] != "after":
            continue
        facts = step["facts"]
        if step["name"] == "resolve":
            done = {"shown": "had it", "committed": "committed", "feed_again": "lost it"}
            parts = [f"{' '.join(facts[how])} {said}" for how, said in done.items() if facts[how]]
            told.append(f"resolved {step['epoch']} ({', '.join(parts)})")
        elif step["name"] == "replay":
            told.append(f"replayed {step['epoch']}")
        elif step["name"] == "feed":
            told.append(f"fed {step['sink']} again")
    if swept:
        told.append(f"swept {swept}")
    epochs = [str(step["epoch"]) for step in steps if (step["name"], step["when"]) == ("publish", "after")]
    told.append(f"ran {', '.join(epochs)}" if epochs else "nothing left to do")
    return "; ".join(told)


# --- the table -------------------------------------------------------------------------------------------


def table(wanted: Callable[[Case], bool], root: Path, jobs: int, say: Callable[[str], None] = print) -> int:
    """Run every wanted case and print its row. The number of failures."""
    every = cases()
    chosen = [case for case in every if wanted(case)]
    worlds = Worlds(root)
    worlds.make({case.world for case in chosen})
    reference = worlds.copy("fresh", root / "reference")
    started = time.monotonic()
    if (code := live(reference)) != 0:
        raise SystemExit(f"the undisturbed run ended with {code}\n{tail(reference)}")
    say(
        f"the reference: {FILES} epochs, {parquet_of(reference).total()} rows in Parquet, "
        f"{sqlite_of(reference).total()} in SQLite; {len(chosen)} deaths, {jobs} at a time\n"
    )
    width = max(len(case.name) for case in chosen)
    say(f"{'killed at':<{width}}  epoch  {'the next life':<{STORY}}  lost  doubled  verdict")
    rows = []
    survivors = Survivors(root, jobs)
    try:
        for row in _rows(chosen, worlds, root, reference, jobs, survivors.live):
            rows.append(row)
            say(_line(row, width))
    finally:
        survivors.stop()
    failures = sum(not row.holds for row in rows)
    if len(chosen) == len(every):
        missed = _never_killed(rows, steps_of(reference))
        failures += len(missed)
        for name, when, sink in missed:
            say(f"FAILED: no row was killed {when} {name} {sink}".rstrip())
    lost, doubled = sum(row.lost for row in rows), sum(row.doubled for row in rows)
    say(
        f"\n{len(rows)} deaths, {len(rows) - failures} survived as if nothing had happened; "
        f"rows lost {lost}, rows doubled {doubled}; {time.monotonic() - started:.0f} s"
    )
    return failures


def _rows(
    chosen: list[Case],
    worlds: Worlds,
    root: Path,
    reference: Path,
    jobs: int,
    finish: Callable[[Path], int],
) -> Iterator[Row]:
    def run(numbered: tuple[int, Case]) -> Row:
        number, case = numbered
        home = root / f"{number:03}"
        row = run_case(case, worlds, home, reference, finish)
        if row.holds:
            shutil.rmtree(home)
        return row

    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(run, enumerate(chosen))


def _line(row: Row, width: int) -> str:
    verdict = "ok" if row.holds else "FAILED"
    lines = [
        f"{row.case.name:<{width}}  {row.died_in:>5}  {row.then:<{STORY}}  "
        f"{row.lost:>4}  {row.doubled:>7}  {verdict}"
    ]
    return "\n".join(lines + [f"    {fault}" for fault in row.faults])


def _never_killed(rows: list[Row], reference: Steps) -> list[tuple[str, str, str]]:
    """Steps that some finished life took, and at which no life was ended."""
    taken = set(map(_signature, reference)).union(*(row.seen for row in rows))
    return sorted(taken - {row.killed_at for row in rows if row.killed_at})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", default="", help="only points whose name holds this text")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--keep", type=Path, help="work here, and leave what failed behind")
    options = parser.parse_args()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    root = options.keep or Path(tempfile.mkdtemp(prefix="holdfast-kills-"))
    try:
        return 1 if table(lambda case: options.only in case.name, root, options.jobs) else 0
    finally:
        if options.keep is None:
            shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
