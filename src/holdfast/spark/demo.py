"""The demo: one pipeline killed twice in mid-epoch, a bit flipped each time, and the proof that nothing is
lost or doubled. Starts real processes on real files; every number it prints is computed.

    reference            one run, never disturbed
    life 1               killed between the decision of an epoch and a sink's commit; then a bit of the
                         newest manifest is flipped
    life 2               recovers by replay, goes on, is killed the same way; then a bit of the newest
                         batch object is flipped
    life 3               recovers by replay, and finishes
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from holdfast.blobs import FileBlobs
from holdfast.errors import HoldfastError
from holdfast.recovery import plan_recovery
from holdfast.store import PartitionedCheckpointStore
from holdfast.store.verifying import verify_store

FILES = 8
TRADES_A_FILE = 400
SYMBOLS = ("AAPL", "GOOG", "MSFT", "NVDA", "TSLA")
LIFE_SECONDS = 240

PIPELINE = """\
pipeline: orders
store: ./checkpoints
scratch: ./scratch
trigger: available-now
output_mode: update
spark: {{spark.sql.shuffle.partitions: 2}}
sources:
  trades:
    format: json
    path: {input}
    schema: "ts TIMESTAMP, symbol STRING, qty BIGINT"
    options: {{maxFilesPerTrigger: 1}}
operators:
  per_minute:
    watermark: {{trades: {{column: ts, delay: 10 minutes}}}}
    sql: >
      SELECT window.start AS minute, symbol, sum(qty) AS qty, count(*) AS trades
      FROM trades GROUP BY window(ts, '1 minute'), symbol
sinks:
  lake: {{from: per_minute, files: {{path: ./out/per_minute, format: parquet}}}}
  db: {{from: per_minute, database: {{url: "sqlite:///out.db", table: per_minute, key: [minute, symbol]}}}}
"""

Say: TypeAlias = Callable[[str], None]
Rows: TypeAlias = Counter[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Proof:
    """One sink of the disturbed run beside the undisturbed one."""

    sink: str
    expected: int
    found: int
    lost: int
    doubled: int

    @property
    def holds(self) -> bool:
        return self.expected > 0 and self.lost == 0 and self.doubled == 0


def main(directory: str | None = None, *, say: Say = print, seed: int = 7) -> int:
    """Run the demo in ``directory`` (default: a temporary one, removed at the end). 0 if the proof holds."""
    if directory is not None:
        home = Path(directory).absolute()
        home.mkdir(parents=True, exist_ok=False)
        return _demo(home, say, seed)
    home = Path(tempfile.mkdtemp(prefix="holdfast-demo-"))
    try:
        return _demo(home, say, seed)
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _demo(home: Path, say: Say, seed: int) -> int:
    started = time.monotonic()
    chance = random.Random(seed)
    trades = write_trades(home / "in", chance)
    say(
        f"{trades} trades in {FILES} files; one micro-batch a file; a windowed sum goes to Parquet and SQLite"
    )
    for name in ("reference", "disturbed"):
        (home / name).mkdir()
        (home / name / "pipeline.yaml").write_text(PIPELINE.format(input=home / "in"), encoding="utf-8")

    say("\n— the reference: one run, never disturbed")
    _live(home / "reference", say)

    disturbed = home / "disturbed"
    store = PartitionedCheckpointStore(FileBlobs(disturbed / "checkpoints" / "orders" / "per_minute"))
    findings = []
    for life, (die_at, victim) in enumerate(
        (("commit:before:3:db", "manifest"), ("commit:before:6:lake", "batch")), 1
    ):
        say(f"\n— life {life}: killed, driver and JVM, between a decision and a sink's commit")
        _live(disturbed, say, die_at=die_at)
        findings.append(_flip_and_look(store, victim, chance, say))
    say("\n— life 3: recovers, and finishes")
    _live(disturbed, say)

    proofs = [
        _proof(
            "lake (Parquet)",
            parquet_rows(home / "reference" / "out" / "per_minute"),
            parquet_rows(disturbed / "out" / "per_minute"),
        ),
        _proof("db (SQLite)", sqlite_rows(home / "reference" / "out.db"), sqlite_rows(disturbed / "out.db")),
    ]
    return _conclude(proofs, findings, time.monotonic() - started, say)


# --- input -------------------------------------------------------------------------------------


def write_trades(directory: Path, chance: random.Random, *, files: int = FILES) -> int:
    """Files of trades, a minute and a half each, with stragglers up to two minutes late."""
    directory.mkdir()
    for number in range(files):
        lines = []
        for _ in range(TRADES_A_FILE):
            second = max(0, number * 90 + chance.randrange(90) - chance.choice((0, 0, 0, 120)))
            stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(1_767_225_600 + second))
            trade = {"ts": stamp, "symbol": chance.choice(SYMBOLS), "qty": chance.randrange(1, 500)}
            lines.append(json.dumps(trade))
        path = directory / f"trades-{number:03}.json"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        # Spark takes files in the order of their time stamps.
        os.utime(path, (1_767_225_600 + number, 1_767_225_600 + number))
    return files * TRADES_A_FILE


# --- lives -------------------------------------------------------------------------------------


def _live(directory: Path, say: Say, *, die_at: str | None = None) -> None:
    """Run the pipeline in a process of its own; it must finish, or die exactly where it was told to."""
    command = [sys.executable, "-m", "holdfast.spark.demo_life", str(directory / "pipeline.yaml")]
    with (directory / "log.txt").open("a", encoding="utf-8") as log:
        child = subprocess.Popen(
            [*command, *([die_at] if die_at else [])],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,  # its JVM is in the same group, and dies with it
        )
        with child:
            try:
                for line in _lines(child):
                    say(f"  {line}")
                code = child.wait(LIFE_SECONDS)
            finally:
                _kill_group(child.pid)
    if code != (-signal.SIGKILL if die_at else 0):
        raise HoldfastError(
            f"the demo's pipeline ended with {code}\n{_tail(directory / 'log.txt')}"
        ).with_hint(f"everything it printed is in {directory / 'log.txt'}")
    if die_at:
        say("  killed")


def _lines(child: subprocess.Popen[str]) -> Iterator[str]:
    assert child.stdout is not None
    for line in child.stdout:
        yield line.rstrip()


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return  # all of it has ended


def _tail(path: Path) -> str:
    return "\n".join(path.read_text(encoding="utf-8", errors="replace").splitlines()[-15:])


# --- damage, and what it is seen to be -----------------------------------------------------------


def _flip_and_look(store: PartitionedCheckpointStore, victim: str, chance: random.Random, say: Say) -> str:
    newest = store.ledger.read().newest_decision
    assert newest is not None
    directory = store.paths.checkpoint_dir(newest.checkpoint_id)
    key = next(info.key for info in store.blobs.list(directory) if victim in info.key)
    _flip(store, key, chance, say)

    report = verify_store(store, read_data=True)
    for problem in report.problems:
        say(f"  holdfast verify: {problem.code}: {problem.message}")
    plan = plan_recovery(store)
    for skipped in plan.skipped:
        say(f"  holdfast recover --dry-run: skips {skipped.id}: {skipped.reason}")
    replayed = ", ".join(str(decision.epoch) for decision in plan.replay)
    say(f"  holdfast recover --dry-run: resumes from {plan.chosen},")
    say(f"    replays epoch {replayed} with the sinks closed")
    if report.ok or plan.verdict != "replay":
        raise HoldfastError(
            f"{key} is damaged and the plan is {plan.verdict}: {plan.reason or 'nothing found'}"
        )
    return (
        f"epoch {newest.epoch}: flipped bit in its {victim} found, "
        f"{len(plan.skipped)} checkpoint skipped, epoch {replayed} replayed"
    )


def _flip(store: PartitionedCheckpointStore, key: str, chance: random.Random, say: Say) -> None:
    data = bytearray(store.blobs.get(key))
    position, bit = chance.randrange(len(data)), chance.randrange(8)
    data[position] ^= 1 << bit
    store.blobs.put(key, bytes(data))
    say(f"  flipped bit {bit} of byte {position} in {key}")


# --- the proof -----------------------------------------------------------------------------------


def parquet_rows(directory: Path) -> Rows:
    """Every row that a plain reader of the directory sees, as often as it sees it."""
    import pyarrow.parquet as parquet

    rows: Rows = Counter()
    for path in sorted(directory.glob("*.parquet")):
        table = parquet.read_table(path)
        rows.update(
            zip(*(table.column(name).to_pylist() for name in sorted(table.column_names)), strict=True)
        )
    return rows


def sqlite_rows(path: Path) -> Rows:
    with closing(sqlite3.connect(path)) as connection:
        return Counter(connection.execute("SELECT minute, qty, symbol, trades FROM per_minute"))


def _proof(sink: str, expected: Rows, found: Rows) -> Proof:
    return Proof(
        sink, expected.total(), found.total(), (expected - found).total(), (found - expected).total()
    )


def _conclude(proofs: list[Proof], findings: list[str], seconds: float, say: Say) -> int:
    say("\n— the proof: each sink beside the undisturbed run, row by row")
    say(f"  {'sink':<16}{'expected':>10}{'found':>8}{'lost':>6}{'doubled':>9}")
    for proof in proofs:
        say(f"  {proof.sink:<16}{proof.expected:>10}{proof.found:>8}{proof.lost:>6}{proof.doubled:>9}")
    for finding in findings:
        say(f"  {finding}")
    holds = all(proof.holds for proof in proofs)
    lost, doubled = sum(proof.lost for proof in proofs), sum(proof.doubled for proof in proofs)
    say(f"\n{'PROVED' if holds else 'FAILED'}: rows lost {lost}, rows doubled {doubled}, in {seconds:.0f} s")
    return 0 if holds else 1
