"""The matrix: which queries, on which state, from which source, come back as if nothing had happened.

    python tests/spark/matrix.py [--only PATTERN] [--keep DIRECTORY]

A first process runs every case to its end and captures it while it runs. A second one, which shares nothing
with it but the stores, restores the first, a middle and the newest captured batch of each and runs on. Every
later batch must be equal, row for row, to the run that nobody interrupted. The table goes to stdout; the exit
code is 1 if any case failed. Tests run some of the cases in their own process.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.blobs.files import FileBlobs
from holdfast.capture import capture_directory
from holdfast.errors import NotFoundError
from holdfast.ids import CheckpointId
from holdfast.sparkdir import SparkCheckpoint
from holdfast.sparkdir.materialise import materialise
from holdfast.store.partitioned import PartitionedCheckpointStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LAST = 9
PATIENCE_SECONDS = 240
STATE = "spark.sql.streaming.stateStore."
PROVIDER = "org.apache.spark.sql.execution.streaming.state."
Rows = list[tuple[Any, ...]]


def _rocksdb(changelog: str, version: str) -> dict[str, str]:
    return {
        f"{STATE}providerClass": f"{PROVIDER}RocksDBStateStoreProvider",
        f"{STATE}rocksdb.changelogCheckpointing.enabled": changelog,
        f"{STATE}checkpointFormatVersion": version,
    }


PROVIDERS = {
    "hdfs": {
        f"{STATE}providerClass": f"{PROVIDER}HDFSBackedStateStoreProvider",
        f"{STATE}checkpointFormatVersion": "1",
    },
    "rocksdb-1": _rocksdb("false", "1"),
    "rocksdb-2": _rocksdb("false", "2"),
    "changelog-1": _rocksdb("true", "1"),
    "changelog-2": _rocksdb("true", "2"),
}


# --- sources: each yields k, v and an event time t, the same rows in the same batches every time


def from_files(spark: SparkSession, place: Path) -> DataFrame:
    from pyspark.sql import functions as F

    stream = spark.readStream.schema("k long, v long, ts long").option("maxFilesPerTrigger", 1)
    return stream.json(str(place)).select("k", "v", F.timestamp_seconds("ts").alias("t"))


def from_rate(spark: SparkSession, place: Path) -> DataFrame:
    from pyspark.sql import functions as F

    rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 30).option("numPartitions", 2)
    rows = rate.option("startTimestamp", 1_700_000_000_000).option("advanceMillisPerBatch", 4000).load()
    return rows.select(
        (F.col("value") % 7).alias("k"), F.col("value").alias("v"), F.col("timestamp").alias("t")
    )


def from_python(spark: SparkSession, place: Path) -> DataFrame:
    from pyspark.sql import functions as F
    from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader

    class Reader(SimpleDataSourceStreamReader):
        def initialOffset(self) -> dict[str, int]:
            return {"at": 0}

        def read(self, start: dict[str, int]) -> tuple[Iterator[tuple[int, int, int]], dict[str, int]]:
            at = start["at"]
            return iter([(i % 7, i, i // 8) for i in range(at, at + 30)]), {"at": at + 30}

        def readBetweenOffsets(
            self, start: dict[str, int], end: dict[str, int]
        ) -> Iterator[tuple[int, int, int]]:
            return iter([(i % 7, i, i // 8) for i in range(start["at"], end["at"])])

    class Numbers(DataSource):
        @classmethod
        def name(cls) -> str:
            return "matrix_numbers"

        def schema(self) -> str:
            return "k long, v long, ts long"

        def simpleStreamReader(self, schema: Any) -> Reader:
            return Reader()

    spark.dataSource.register(Numbers)
    return (
        spark.readStream.format("matrix_numbers")
        .load()
        .select("k", "v", F.timestamp_seconds("ts").alias("t"))
    )


SOURCES = {"file": from_files, "rate": from_rate, "python": from_python}
Source = Callable[[], "DataFrame"]


# --- queries


def stateless(rows: Source) -> DataFrame:
    return rows().select("k", "v")


def per_window(rows: Source) -> DataFrame:
    from pyspark.sql import functions as F

    windows = rows().withWatermark("t", "6 seconds").groupBy(F.window("t", "5 seconds"), "k")
    return windows.agg(F.count("*").alias("n"), F.sum("v").alias("s")).select(
        F.col("window.start").cast("long").alias("w"), "k", "n", "s"
    )


def per_key(rows: Source) -> DataFrame:
    return rows().groupBy("k").count()


def dedup(rows: Source) -> DataFrame:
    from pyspark.sql import functions as F

    keyed = rows().withWatermark("t", "6 seconds").withColumn("d", F.col("v") % 83)
    return keyed.dropDuplicates(["d"]).select("d", "v")


def dedup_within(rows: Source) -> DataFrame:
    from pyspark.sql import functions as F

    keyed = rows().withWatermark("t", "6 seconds").withColumn("d", F.col("v") % 17)
    return keyed.dropDuplicatesWithinWatermark(["d"]).select("d", "v")


def _sides(rows: Source) -> tuple[DataFrame, DataFrame]:
    left = rows().withWatermark("t", "6 seconds").selectExpr("k", "v AS a", "t AS ta")
    right = (
        rows().where("v % 3 = 0").withWatermark("t", "6 seconds").selectExpr("k AS kb", "v AS b", "t AS tb")
    )
    return left, right


def inner_join(rows: Source) -> DataFrame:
    left, right = _sides(rows)
    return left.join(right, left.k.eqNullSafe(right.kb) & (right.tb >= left.ta)).select("a", "b")


def outer_join(rows: Source) -> DataFrame:
    from pyspark.sql import functions as F

    left, right = _sides(rows)
    near = F.expr("k = kb AND tb BETWEEN ta AND ta + INTERVAL 2 SECONDS")
    return left.join(right, near, "leftOuter").select("a", "b")


def sessions(rows: Source) -> DataFrame:
    from pyspark.sql import functions as F

    grouped = rows().withWatermark("t", "6 seconds").groupBy(F.session_window("t", "2 seconds"), "k")
    return grouped.count().select(F.col("session_window.start").cast("long").alias("w"), "k", "count")


def map_groups(rows: Source) -> DataFrame:
    import pandas as pd
    from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

    def count(
        key: tuple[Any, ...], frames: Iterator[pd.DataFrame], state: GroupState
    ) -> Iterator[pd.DataFrame]:
        n = (state.get[0] if state.exists else 0) + sum(map(len, frames))
        state.update((n,))
        yield pd.DataFrame({"k": [key[0]], "n": [n]})

    return (
        rows()
        .groupBy("k")
        .applyInPandasWithState(count, "k long, n long", "n long", "update", GroupStateTimeout.NoTimeout)
    )


def _tws(rows: Source, processor: Any, mode: str) -> DataFrame:
    grouped = rows().withWatermark("t", "6 seconds").groupBy("k")
    return grouped.transformWithStateInPandas(processor, "k long, n long, what string", "Update", mode)


def tws_collections(rows: Source) -> DataFrame:
    """Value, list and map state, with a time to live that never comes."""
    import pandas as pd
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

    class Collections(StatefulProcessor):
        def init(self, handle: StatefulProcessorHandle) -> None:
            self.count = handle.getValueState("count", "n long", 3_600_000)
            self.last = handle.getListState("last", "v long", 3_600_000)
            self.by_rest = handle.getMapState("by_rest", "r long", "n long", 3_600_000)

        def handleInputRows(
            self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any
        ) -> Iterator[pd.DataFrame]:
            n = self.count.get()[0] if self.count.exists() else 0
            for frame in rows:
                for v in frame["v"].tolist():
                    n += 1
                    self.by_rest.updateValue((v % 3,), (n,))
                    self.last.appendValue((v,))
            self.count.update((n,))
            held = sum(1 for _ in self.last.get()) + len(list(self.by_rest.keys()))
            yield pd.DataFrame({"k": [key[0]], "n": [n], "what": [str(held)]})

        def close(self) -> None: ...

    return _tws(rows, Collections(), "ProcessingTime")


def tws_timers(rows: Source) -> DataFrame:
    import pandas as pd
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

    class Timers(StatefulProcessor):
        def init(self, handle: StatefulProcessorHandle) -> None:
            self.handle = handle
            self.count = handle.getValueState("count", "n long")

        def handleInputRows(
            self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any
        ) -> Iterator[pd.DataFrame]:
            n = (self.count.get()[0] if self.count.exists() else 0) + sum(map(len, rows))
            self.count.update((n,))
            self.handle.registerTimer(timerValues.getCurrentWatermarkInMs() + 5000)
            yield pd.DataFrame({"k": [key[0]], "n": [n], "what": ["rows"]})

        def handleExpiredTimer(
            self, key: Any, timerValues: Any, expiredTimerInfo: Any
        ) -> Iterator[pd.DataFrame]:
            at = expiredTimerInfo.getExpiryTimeInMs()
            yield pd.DataFrame({"k": [key[0]], "n": [at], "what": ["timer"]})

        def close(self) -> None: ...

    return _tws(rows, Timers(), "EventTime")


def chained(rows: Source) -> DataFrame:
    from pyspark.sql import functions as F

    once = rows().withWatermark("t", "6 seconds").dropDuplicates(["v", "t"])
    return (
        once.groupBy(F.window("t", "5 seconds"))
        .count()
        .select(F.col("window.start").cast("long").alias("w"), "count")
    )


def united(rows: Source) -> DataFrame:
    both = rows().union(rows().selectExpr("k", "v + 100000 AS v", "t"))
    return both.groupBy("k").count()


@dataclass(frozen=True)
class Query:
    build: Callable[[Source], DataFrame]
    mode: str
    rocksdb_only: bool = False
    needs: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)


# With processing time there is always a batch to run, rows or not.
ONLY_BATCHES_WITH_ROWS = {"spark.sql.streaming.noDataMicroBatches.enabled": "false"}

QUERIES = {
    "stateless": Query(stateless, "append"),
    "aggregation-update": Query(per_window, "update"),
    "aggregation-append": Query(per_window, "append"),
    "aggregation-complete": Query(per_key, "complete"),
    "dedup": Query(dedup, "append"),
    "dedup-within": Query(dedup_within, "append"),
    "inner-join": Query(inner_join, "append"),
    "outer-join": Query(outer_join, "append"),
    "sessions": Query(sessions, "append"),
    "map-groups": Query(map_groups, "update"),
    "tws-collections": Query(
        tws_collections, "update", rocksdb_only=True, needs="google.protobuf", conf=ONLY_BATCHES_WITH_ROWS
    ),
    "tws-timers": Query(tws_timers, "update", rocksdb_only=True, needs="google.protobuf"),
    "chained": Query(chained, "append"),
    "united": Query(united, "update"),
}


# --- one case


@dataclass(frozen=True)
class Case:
    query: str
    provider: str
    source: str

    def __str__(self) -> str:
        return f"{self.query} {self.provider} {self.source}"

    @property
    def slug(self) -> str:
        return str(self).replace(" ", "_")


def cases() -> list[Case]:
    """Every query on every provider from files; from the other sources, on the two that differ most."""
    found = []
    for query, facts in QUERIES.items():
        for provider in PROVIDERS:
            if facts.rocksdb_only and provider == "hdfs":
                continue
            found.append(Case(query, provider, "file"))
            if provider in ("hdfs", "changelog-2") and query in (
                "stateless",
                "aggregation-update",
                "inner-join",
            ):
                found += [Case(query, provider, "rate"), Case(query, provider, "python")]
    return found


def missing(case: Case) -> str | None:
    """A package that the case needs and that is not here."""
    needs = QUERIES[case.query].needs
    if needs is None:
        return None
    try:
        return None if importlib.util.find_spec(needs) is not None else needs
    except ModuleNotFoundError:
        return needs


def write_input(place: Path) -> None:
    place.mkdir(parents=True)
    for i in range(LAST):
        rows = [{"k": (i * 7 + j) % 5, "v": i * 100 + j, "ts": i * 4 + j % 6} for j in range(20)]
        path = place / f"f{i:03}.json"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        # Spark takes files by age.
        os.utime(path, (1_700_000_000 + i,) * 2)


def run(
    spark: SparkSession,
    case: Case,
    place: Path,
    checkpoint: Path,
    *,
    pause_seconds: float = 0.0,
    meanwhile: Callable[[], object] | None = None,
) -> dict[int, Rows]:
    """Run ``case`` to its end on ``checkpoint``. The rows of each batch."""
    own = spark.newSession()
    conf = {
        **PROVIDERS[case.provider],
        **QUERIES[case.query].conf,
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.streaming.fileSource.log.compactInterval": "3",
        f"{STATE}minDeltasForSnapshot": "2",
    }
    for name, value in conf.items():
        own.conf.set(name, value)
    batches: dict[int, Rows] = {}
    enough = threading.Event()

    def keep(rows: DataFrame, batch: int) -> None:
        batches[batch] = sorted((tuple(row) for row in rows.collect()), key=repr)
        if batch >= LAST:
            enough.set()
        enough.wait(pause_seconds)

    query = QUERIES[case.query]
    frame = query.build(lambda: SOURCES[case.source](own, place / "in"))
    writer = frame.writeStream.outputMode(query.mode).foreachBatch(keep)
    writer = writer.option("checkpointLocation", str(checkpoint))
    # These two never run dry by themselves, and end where the test says.
    endless = case.source in ("rate", "python")
    running = (writer if endless else writer.trigger(availableNow=True)).start()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while running.isActive and not (endless and enough.is_set()):
        if time.monotonic() > deadline:
            running.stop()
            raise TimeoutError(f"{case}: only batches {sorted(batches)} in {PATIENCE_SECONDS} s")
        if meanwhile is not None:
            meanwhile()
        running.awaitTermination(0.05)
    if endless:
        running.stop()
    else:
        running.awaitTermination()
    # A batch cut off by the stop may have any rows; the last one that counts is LAST.
    return {n: rows for n, rows in batches.items() if not endless or n <= LAST}


def capture(spark: SparkSession, case: Case, place: Path) -> tuple[dict[int, Rows], dict[int, str]]:
    """Run ``case`` and capture it meanwhile: the rows of each batch, and each captured one's checkpoint."""
    write_input(place / "in")
    checkpoint = place / "checkpoint"
    store = PartitionedCheckpointStore(FileBlobs(place / "store"))
    captured: dict[int, str] = {}

    def once() -> None:
        try:
            manifest = capture_directory(SparkCheckpoint(checkpoint), store)
        except NotFoundError:
            return  # nothing committed yet
        assert manifest.engine is not None
        assert manifest.engine.batch_id is not None
        captured[manifest.engine.batch_id] = str(manifest.checkpoint_id)

    batches = run(spark, case, place, checkpoint, pause_seconds=0.2, meanwhile=once)
    # Nothing of the old directory may be of any help.
    shutil.move(checkpoint, place / "gone")
    return batches, captured


def resume(
    spark: SparkSession,
    case: Case,
    place: Path,
    batches: dict[int, Rows],
    captured: dict[int, str],
    *,
    middle_only: bool = False,
) -> list[int]:
    """Restore the first, a middle and the newest captured batch, and run on. The batches restored.

    Raises AssertionError with the difference.
    """
    store = PartitionedCheckpointStore(FileBlobs(place / "store"))
    # At least one batch with rows must be left: a query that is started again runs no empty one by itself.
    known = [batch for batch in sorted(captured) if batch < LAST - 1]
    middle = known[len(known) // 2]
    chosen = [middle] if middle_only else sorted({known[0], middle, known[-1]})
    for batch in chosen:
        manifest = store.load_by_id(CheckpointId.parse(captured[batch]))
        assert manifest is not None
        target = place / f"restored-{batch}"
        materialise(manifest, store, target)
        found = run(spark, case, place, target)
        expected = {n: rows for n, rows in batches.items() if n > batch}
        assert found == expected, f"{case}, restored at batch {batch}: {_difference(expected, found)}"
    return chosen


def _difference(expected: dict[int, Rows], found: dict[int, Rows]) -> str:
    if sorted(expected) != sorted(found):
        return f"batches {sorted(expected)} expected, {sorted(found)} run"
    first = next(n for n in sorted(expected) if expected[n] != found[n])
    return f"batch {first} should be {expected[first][:5]}… and is {found[first][:5]}…"


# --- all of it


def start_session(place: Path) -> SparkSession:
    from pyspark.sql import SparkSession

    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": "-Xss8m",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(place / "warehouse"),
        "spark.local.dir": str(place / "local"),
        "spark.sql.streaming.stateStore.maintenanceInterval": "1s",
    }
    builder = SparkSession.builder.master("local[2]").appName("holdfast-matrix")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    return session


def _phase(phase: str, place: Path, only: str) -> None:
    """One of the two processes. Results lie beside each case's data."""
    spark = start_session(place)
    try:
        for case in (case for case in cases() if re.search(only, str(case))):
            own = place / case.slug
            result = own / f"{phase}.pickle"
            begin = time.monotonic()
            outcome: Any
            try:
                if missing(case) is not None:
                    outcome = f"skipped: needs {missing(case)}"
                elif phase == "capture":
                    outcome = capture(spark, case, own)
                else:
                    outcome = resume(spark, case, own, *pickle.loads((own / "capture.pickle").read_bytes()))
            except Exception as error:
                # One broken case must not hide the others; the table shows it and the exit code tells.
                outcome = f"{type(error).__name__}: {str(error)[:300]}"
            own.mkdir(parents=True, exist_ok=True)
            result.write_bytes(pickle.dumps(outcome))
            print(f"{phase} {case} {time.monotonic() - begin:.1f} s", file=sys.stderr, flush=True)
    finally:
        spark.stop()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--only", default="", help="cases whose name (query, state, source) matches this pattern"
    )
    parser.add_argument("--keep", type=Path, help="work here, and leave everything")
    parser.add_argument("--phase", choices=["capture", "resume"], help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.phase:
        _phase(chosen.phase, chosen.keep, chosen.only)
        return 0
    place = chosen.keep or Path(tempfile.mkdtemp(prefix="holdfast-matrix-"))
    for phase in ("capture", "resume"):
        command = [sys.executable, __file__, "--phase", phase, "--keep", str(place), "--only", chosen.only]
        subprocess.run(command, check=True, env=_environment())
    failed = _print_table(place, [case for case in cases() if re.search(chosen.only, str(case))])
    if chosen.keep is None:
        shutil.rmtree(place)
    return 1 if failed else 0


def _environment() -> dict[str, str]:
    from holdfast.spark.java import find_java

    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    find_java().export(environment)
    return environment


def _print_table(place: Path, chosen: list[Case]) -> int:
    failed = 0
    print("| query | state | source | captured | restored at | result |\n|---|---|---|---|---|---|")
    for case in chosen:
        taken = pickle.loads((place / case.slug / "capture.pickle").read_bytes())
        found = pickle.loads((place / case.slug / "resume.pickle").read_bytes())
        captured = len(taken[1]) if isinstance(taken, tuple) else "-"
        at, result = ("-", str(found)) if isinstance(found, str) else (", ".join(map(str, found)), "equal")
        if isinstance(taken, str):
            result = taken
        failed += result != "equal" and not result.startswith("skipped")
        print(f"| {case.query} | {case.provider} | {case.source} | {captured} | {at} | {result} |")
    return failed


if __name__ == "__main__":
    sys.exit(main())
