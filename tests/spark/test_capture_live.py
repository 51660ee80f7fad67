"""A plain PySpark job that knows nothing of Holdfast: captured while it runs, restored elsewhere, resumed.

Every batch after the restored one must be equal, row for row, to the same batch of the run that nobody
interrupted.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.blobs.files import FileBlobs
from holdfast.capture import capture_directory
from holdfast.errors import NotFoundError
from holdfast.manifest.v2 import CheckpointManifestV2
from holdfast.sparkdir import SparkCheckpoint
from holdfast.sparkdir.materialise import materialise
from holdfast.store.partitioned import PartitionedCheckpointStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = pytest.mark.spark

FILES = 9
STATE = "spark.sql.streaming.stateStore."
PROVIDER = "org.apache.spark.sql.execution.streaming.state."
HDFS = {
    f"{STATE}providerClass": f"{PROVIDER}HDFSBackedStateStoreProvider",
    f"{STATE}checkpointFormatVersion": "1",
}
ROCKSDB_2 = {
    f"{STATE}providerClass": f"{PROVIDER}RocksDBStateStoreProvider",
    f"{STATE}rocksdb.changelogCheckpointing.enabled": "true",
    f"{STATE}checkpointFormatVersion": "2",
}
Rows = list[tuple[Any, ...]]


@dataclass
class Job:
    """The job: reads a directory file by file, keeps the rows of each batch."""

    spark: SparkSession
    query: Callable[[SparkSession, Path], DataFrame]
    input: Path
    pause_seconds: float = 0.0
    batches: dict[int, Rows] = field(default_factory=dict)

    def start(self, checkpoint: Path) -> StreamingQuery:
        def keep(rows: DataFrame, batch: int) -> None:
            self.batches[batch] = sorted(tuple(row) for row in rows.collect())
            threading.Event().wait(self.pause_seconds)

        writer = self.query(self.spark, self.input).writeStream.outputMode("update").foreachBatch(keep)
        return writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()

    def run(self, checkpoint: Path) -> dict[int, Rows]:
        self.start(checkpoint).awaitTermination()
        return self.batches


def trades(spark: SparkSession, path: Path) -> DataFrame:
    from pyspark.sql import functions as F

    stream = spark.readStream.schema("k long, v long, ts long").option("maxFilesPerTrigger", 1)
    return stream.json(str(path)).withColumn("t", F.timestamp_seconds("ts"))


def per_window(spark: SparkSession, path: Path) -> DataFrame:
    from pyspark.sql import functions as F

    windows = trades(spark, path).withWatermark("t", "10 seconds").groupBy(F.window("t", "10 seconds"), "k")
    counted = windows.agg(F.count("*").alias("n"), F.sum("v").alias("s"))
    return counted.select(F.col("window.start").cast("long").alias("w"), "k", "n", "s")


def as_they_come(spark: SparkSession, path: Path) -> DataFrame:
    return trades(spark, path).select("k", "v")


@pytest.fixture
def input_files(tmp_path: Path) -> Path:
    place = tmp_path / "in"
    place.mkdir()
    for i in range(FILES):
        rows = [{"k": (i * 7 + j) % 5, "v": i * 100 + j, "ts": i * 4 + j % 6} for j in range(20)]
        path = place / f"f{i:03}.json"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        # Spark takes files by age; a copy of the directory must be read in the same order.
        os.utime(path, (1_700_000_000 + i,) * 2)
    return place


def session(spark: SparkSession, conf: dict[str, str]) -> SparkSession:
    own = spark.newSession()
    for name, value in {
        **conf,
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.streaming.fileSource.log.compactInterval": "3",
        f"{STATE}minDeltasForSnapshot": "2",
    }.items():
        own.conf.set(name, value)
    return own


@pytest.mark.parametrize(
    ("query", "conf"),
    [(per_window, HDFS), (per_window, ROCKSDB_2), (as_they_come, HDFS)],
    ids=["hdfs-aggregation", "rocksdb-2-aggregation", "stateless"],
)
def test_a_job_captured_while_it_runs_resumes_elsewhere_as_if_nothing_had_happened(
    spark: SparkSession,
    input_files: Path,
    tmp_path: Path,
    query: Callable[[SparkSession, Path], DataFrame],
    conf: dict[str, str],
) -> None:
    job = Job(session(spark, conf), query, input_files, pause_seconds=0.3)
    directory = tmp_path / "checkpoint"
    store = PartitionedCheckpointStore(FileBlobs(tmp_path / "store"))

    captured = capture_while_it_runs(job.start(directory), SparkCheckpoint(directory), store)
    uninterrupted = dict(job.batches)
    # Nothing of the old directory may be of any help.
    shutil.move(directory, tmp_path / "gone")

    assert len(captured) >= 4, f"only batches {sorted(captured)} were seen while the job ran"
    assert any(manifest.parent_id is not None for manifest in captured.values())
    for batch in (min(captured), sorted(captured)[len(captured) // 2], max(captured)):
        target = tmp_path / f"restored-{batch}"
        restored = materialise(captured[batch], store, target)
        resumed = Job(job.spark, query, input_files).run(target)
        expected = {n: rows for n, rows in uninterrupted.items() if n > batch}
        assert restored.batch_id == batch
        assert resumed == expected, f"restored at batch {batch}"
    assert store.validate_checkpoint(captured[max(captured)].checkpoint_id).valid


def capture_while_it_runs(
    running: StreamingQuery, checkpoint: SparkCheckpoint, store: PartitionedCheckpointStore
) -> dict[int, CheckpointManifestV2]:
    """One capture after the other until the query ends, and one more; by batch."""
    captured: dict[int, CheckpointManifestV2] = {}
    active = True
    while active:
        active = running.isActive
        try:
            manifest = capture_directory(checkpoint, store)
        except NotFoundError:
            continue  # the first batch is still running
        assert manifest.engine is not None
        assert manifest.engine.batch_id is not None
        captured[manifest.engine.batch_id] = manifest
        running.awaitTermination(0.1)
    return captured


def test_a_second_capture_of_a_batch_writes_nothing(
    spark: SparkSession, input_files: Path, tmp_path: Path
) -> None:
    Job(session(spark, ROCKSDB_2), per_window, input_files).run(tmp_path / "checkpoint")
    store = PartitionedCheckpointStore(FileBlobs(tmp_path / "store"))
    first = capture_directory(SparkCheckpoint(tmp_path / "checkpoint"), store)
    before = [info.key for info in store.blobs.list("")]

    again = capture_directory(SparkCheckpoint(tmp_path / "checkpoint"), store)

    assert again.checkpoint_id == first.checkpoint_id
    assert [info.key for info in store.blobs.list("")] == before


def test_an_older_batch_can_be_captured_as_long_as_it_is_complete(
    spark: SparkSession, input_files: Path, tmp_path: Path
) -> None:
    job = Job(session(spark, ROCKSDB_2), per_window, input_files)
    uninterrupted = dict(job.run(tmp_path / "checkpoint"))
    store = PartitionedCheckpointStore(FileBlobs(tmp_path / "store"))
    capture_directory(SparkCheckpoint(tmp_path / "checkpoint"), store)

    older = capture_directory(SparkCheckpoint(tmp_path / "checkpoint"), store, batch=3)
    materialise(older, store, tmp_path / "restored")
    resumed = Job(job.spark, per_window, input_files).run(tmp_path / "restored")

    assert resumed == {n: rows for n, rows in uninterrupted.items() if n > 3}


def test_a_job_whose_input_was_moved_goes_on_where_it_was(
    spark: SparkSession, input_files: Path, tmp_path: Path
) -> None:
    job = Job(session(spark, HDFS), per_window, input_files)
    uninterrupted = dict(job.run(tmp_path / "checkpoint"))
    store = PartitionedCheckpointStore(FileBlobs(tmp_path / "store"))
    manifest = capture_directory(SparkCheckpoint(tmp_path / "checkpoint"), store, batch=3)
    elsewhere = tmp_path / "another place"
    shutil.move(input_files, elsewhere)

    materialise(manifest, store, tmp_path / "restored", moved_inputs={str(input_files): str(elsewhere)})
    resumed = Job(job.spark, per_window, elsewhere).run(tmp_path / "restored")

    assert resumed == {n: rows for n, rows in uninterrupted.items() if n > 3}
