"""What an epoch costs: objects written, and time added to a micro-batch.

One process, one session, the same stateful query over the same files, in turn:

    spark     a plain foreachBatch that writes the same two sinks, on Spark's own checkpoint (at least once)
    holdfast  ours: the same sinks, exactly once, each epoch captured

    python bench/epoch.py [--batches 24] [--partitions 4]

Machines differ and are shared: read the ratio, not the milliseconds.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sqlite3
import statistics
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

from holdfast.blobs import BlobStore, FileBlobs
from holdfast.coordinator import Observer, Step, ignore
from holdfast.pipeline import Trigger, flows, load_yaml
from holdfast.spark.demo import PIPELINE, write_trades
from holdfast.spark.frames import Functions, build_flow
from holdfast.spark.runner import FlowRunner
from holdfast.spark.session import session_for
from holdfast.spark.sinks import Database, Files
from holdfast.store import PartitionedCheckpointStore

WARM_UP = 6


class CountingBlobs(BlobStore):
    """Counts what is written, by the kind of object, on the way to another store."""

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs
        self.written: Counter[str] = Counter()

    def create(self, key: str, data: Any) -> None:
        self._blobs.create(key, data)
        self.written[_kind(key)] += 1

    def put(self, key: str, data: Any) -> None:
        self._blobs.put(key, data)
        self.written[_kind(key)] += 1

    def get(self, key: str) -> bytes:
        return self._blobs.get(key)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self._blobs.get_range(key, start, length)

    def head(self, key: str) -> Any:
        return self._blobs.head(key)

    def list(self, prefix: str, start_after: str | None = None) -> Any:
        return self._blobs.list(prefix, start_after)

    def delete(self, key: str) -> None:
        self._blobs.delete(key)


def _kind(key: str) -> str:
    name = key.rsplit("/", 1)[-1]
    if key.startswith("ledger/"):
        return "record"
    return "batch" if name.startswith("batch-") else name.removesuffix(".json")


class Batches(StreamingQueryListener):
    """How long each micro-batch took, as Spark itself measures it."""

    def __init__(self) -> None:
        self.milliseconds: list[int] = []

    def onQueryStarted(self, event: Any) -> None:
        pass

    def onQueryProgress(self, event: Any) -> None:
        if event.progress.numInputRows:
            self.milliseconds.append(event.progress.durationMs["triggerExecution"])

    def onQueryIdle(self, event: Any) -> None:
        pass

    def onQueryTerminated(self, event: Any) -> None:
        pass


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--batches", type=int, default=24)
    arguments.add_argument("--partitions", type=int, default=4)
    options = arguments.parse_args()

    home = Path(tempfile.mkdtemp(prefix="holdfast-bench-"))
    session = session_for("bench", {"spark.master": "local[2]"})
    try:
        write_trades(home / "in", random.Random(7), files=options.batches + WARM_UP)
        _compare(session, home, options.partitions)
        for partitions in (4, 200):
            _count_objects(session, home, partitions)
    finally:
        session.stop()
        shutil.rmtree(home, ignore_errors=True)


def _compare(session: SparkSession, home: Path, partitions: int) -> None:
    session.conf.set("spark.sql.shuffle.partitions", str(partitions))
    plain = _measured(session, lambda: _run_plain(session, home))
    steps: dict[str, list[float]] = {}
    ours = _measured(session, lambda: _run_ours(session, home, home / "ours", observe=_collecting(steps)))
    before, after = statistics.median(plain), statistics.median(ours)
    print(f"\na micro-batch at {partitions} partitions, median of {len(ours)} (after {WARM_UP} to warm up)")
    print(f"  spark, its own checkpoint    {before:8.0f} ms")
    print(f"  holdfast, exactly once       {after:8.0f} ms")
    print(f"  added                        {after - before:8.0f} ms   ratio {after / before:.2f}")
    for name, spent in steps.items():
        print(f"    {name:<12} {statistics.median(spent[WARM_UP:]):8.1f} ms")


def _collecting(steps: dict[str, list[float]]) -> Observer:
    def observe(step: Step) -> None:
        if step.when == "after" and step.epoch is not None:
            name = f"{step.name} {step.sink}" if step.sink else step.name
            steps.setdefault(name, []).append(step.facts["milliseconds"])

    return observe


def _measured(session: SparkSession, run: Any) -> list[int]:
    batches = Batches()
    session.streams.addListener(batches)
    try:
        run()
        time.sleep(1.0)  # the listener hears of the last batch a moment later
    finally:
        session.streams.removeListener(batches)
    return batches.milliseconds[WARM_UP:]


# --- ours ------------------------------------------------------------------------------------------


def _run_ours(session: SparkSession, home: Path, where: Path, *, observe: Observer = ignore) -> CountingBlobs:
    where.mkdir()
    (where / "pipeline.yaml").write_text(PIPELINE.format(input=home / "in"), encoding="utf-8")
    (flow,) = flows(load_yaml(where / "pipeline.yaml"))
    blobs = CountingBlobs(FileBlobs(where / "store"))
    sinks = {
        "lake": Files(where / "lake"),
        "db": Database(f"sqlite:///{where}/out.db", table="per_minute", key=("minute", "symbol")),
    }
    runner = FlowRunner(
        build_flow(flow, session, Functions()),
        sinks,
        PartitionedCheckpointStore(blobs),
        session,
        scratch_root=where / "scratch",
        observe=observe,
    )
    runner.run(Trigger(None))
    return blobs


# --- the same, by hand ---------------------------------------------------------------------------------


def _run_plain(session: SparkSession, home: Path) -> None:
    where = home / "plain"
    where.mkdir()
    (where / "pipeline.yaml").write_text(PIPELINE.format(input=home / "in"), encoding="utf-8")
    (flow,) = flows(load_yaml(where / "pipeline.yaml"))
    frame = build_flow(flow, session, Functions()).frame
    database = sqlite3.connect(where / "out.db", check_same_thread=False)
    database.execute("CREATE TABLE per_minute (minute, symbol, qty, trades, PRIMARY KEY (minute, symbol))")

    def on_batch(rows: DataFrame, _: int) -> None:
        rows.persist()
        rows.write.mode("append").parquet(str(where / "lake"))
        with database:
            database.executemany(
                "INSERT OR REPLACE INTO per_minute VALUES (?, ?, ?, ?)",
                ((str(row.minute), row.symbol, row.qty, row.trades) for row in rows.toLocalIterator()),
            )
        rows.unpersist()

    query = (
        frame.writeStream.outputMode("update")
        .option("checkpointLocation", str(where / "checkpoint"))
        .foreachBatch(on_batch)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    database.close()


# --- objects ----------------------------------------------------------------------------------------


def _count_objects(session: SparkSession, home: Path, partitions: int) -> None:
    session.conf.set("spark.sql.shuffle.partitions", str(partitions))
    small = home / f"objects-{partitions}"
    small.mkdir()
    write_trades(small / "in", random.Random(7), files=3)
    blobs = _run_ours(session, small, small / "run")
    epochs = blobs.written["record"] - 3  # the start, the outcome and the stop
    told = ", ".join(f"{kind} {count / epochs:g}" for kind, count in _of_epochs(blobs).items())
    total = sum(_of_epochs(blobs).values()) / epochs
    print(f"\nobjects written an epoch at {partitions} partitions: {total:g} ({told}) over {epochs} epochs")


def _of_epochs(blobs: CountingBlobs) -> dict[str, int]:
    """Without what a whole run writes once: its start, outcome and stop records, and the pointer on stop."""
    written = dict(blobs.written)
    written["record"] -= 3
    written.pop("_latest", None)
    return written


if __name__ == "__main__":
    main()
