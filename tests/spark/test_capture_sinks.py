"""Restoring behind a sink that remembers batch ids: how rows are lost, and the two ways to lose none.

Spark's file sink skips every batch id that it has in its log. An old checkpoint put back under a new one
loses whole batches without a word; this happened to people who copied a saved directory back.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from holdfast.blobs.memory import MemoryBlobs
from holdfast.capture import capture_directory
from holdfast.errors import InvalidInputError, UnsupportedFormatError
from holdfast.sparkdir import SparkCheckpoint
from holdfast.sparkdir.filesink import FileSink
from holdfast.sparkdir.materialise import materialise
from holdfast.sparkdir.rebase import rebase
from holdfast.store.partitioned import PartitionedCheckpointStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def _load_matrix() -> ModuleType:
    spec = importlib.util.spec_from_file_location("holdfast_matrix", Path(__file__).with_name("matrix.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


matrix = _load_matrix()


class Copying:
    """The job: JSON files in, JSON files out, through Spark's own exactly-once sink."""

    def __init__(self, spark: SparkSession, place: Path) -> None:
        self._spark = spark.newSession()
        self._place = place
        self.out = place / "out"
        (place / "in").mkdir(parents=True)

    def arrive(self, name: str, age: int) -> None:
        path = self._place / "in" / f"{name}.json"
        path.write_text("".join(json.dumps({"f": name, "n": n}) + "\n" for n in range(10)))
        os.utime(path, (1_700_000_000 + age,) * 2)

    def run(self, checkpoint: Path, *, files_a_batch: int = 1) -> None:
        stream = self._spark.readStream.schema("f string, n long").option("maxFilesPerTrigger", files_a_batch)
        writer = stream.json(str(self._place / "in")).writeStream.format("json").option("path", str(self.out))
        writer.option("checkpointLocation", str(checkpoint)).trigger(
            availableNow=True
        ).start().awaitTermination()

    def rows(self) -> Counter[str]:
        return Counter(row["f"] for row in self._spark.read.schema("f string").json(str(self.out)).collect())


@pytest.fixture
def job(spark: SparkSession, tmp_path: Path) -> Copying:
    """Batches 0 to 2 are in the sink; one more file arrives; the checkpoint restored is that of batch 0."""
    job = Copying(spark, tmp_path / "job")
    for age, name in enumerate(("first", "second", "third")):
        job.arrive(name, age)
    job.run(tmp_path / "checkpoint")
    store = PartitionedCheckpointStore(MemoryBlobs())
    manifest = capture_directory(SparkCheckpoint(tmp_path / "checkpoint"), store, batch=0)
    job.arrive("new", 9)
    materialise(manifest, store, tmp_path / "restored")
    return job


def test_a_checkpoint_put_back_under_a_newer_sink_loses_every_new_row(job: Copying, tmp_path: Path) -> None:
    job.run(tmp_path / "restored", files_a_batch=10)

    assert job.rows() == {"first": 10, "second": 10, "third": 10}
    assert FileSink(job.out).latest_batch() == 2


def test_a_rewound_sink_gets_every_row_once(job: Copying, tmp_path: Path) -> None:
    sink = FileSink(job.out)
    plan = sink.plan_rewind(0)
    assert plan is not None

    backup = sink.rewind(plan)
    job.run(tmp_path / "restored", files_a_batch=10)

    assert job.rows() == {"first": 10, "second": 10, "third": 10, "new": 10}
    assert (plan.kept, plan.last, len(plan.data_files)) == (0, 2, 2)
    assert all((Path(backup) / key).exists() for key in (*plan.log_entries, *plan.data_files))
    assert sink.plan_unfinished() is None
    assert sink.plan_rewind(1) is None


def test_a_rebased_checkpoint_loses_nothing_and_doubles_what_was_foretold(
    job: Copying, tmp_path: Path
) -> None:
    sink = FileSink(job.out)
    plan = sink.plan_rewind(0)
    latest = sink.latest_batch()
    assert plan is not None
    assert latest is not None
    foretold = Counter(
        json.loads(line)["f"] for key in plan.data_files for line in (job.out / key).read_text().splitlines()
    )

    rebase(tmp_path / "restored", batch=0, onto=latest)
    job.run(tmp_path / "restored", files_a_batch=10)

    assert job.rows() == Counter({"first": 10, "second": 10, "third": 10, "new": 10}) + foretold
    assert foretold == {"second": 10, "third": 10}
    assert sink.latest_batch() == 3


@pytest.mark.parametrize("provider", ["hdfs", "rocksdb-1", "rocksdb-2", "changelog-2"])
def test_rebased_state_is_the_state_it_was(spark: SparkSession, tmp_path: Path, provider: str) -> None:
    case = matrix.Case("aggregation-update", provider, "file")
    place = tmp_path / case.slug
    batches, captured = matrix.capture(spark, case, place)
    store = PartitionedCheckpointStore(matrix.FileBlobs(place / "store"))
    batch = sorted(n for n in captured if n < max(batches) - 1)[-1]
    manifest = store.load_by_id(matrix.CheckpointId.parse(captured[batch]))
    assert manifest is not None
    materialise(manifest, store, tmp_path / "restored")

    rebase(tmp_path / "restored", batch=batch, onto=batch + 20)
    found = matrix.run(spark, case, place, tmp_path / "restored")

    assert found == {n + 20: rows for n, rows in batches.items() if n > batch}


def test_changelogs_without_a_snapshot_are_refused_and_left_as_they_are(
    spark: SparkSession, tmp_path: Path
) -> None:
    case = matrix.Case("aggregation-update", "changelog-2", "file")
    place = tmp_path / case.slug
    matrix.write_input(place / "in")
    matrix.run(spark, case, place, place / "checkpoint")
    store = PartitionedCheckpointStore(MemoryBlobs())
    manifest = capture_directory(SparkCheckpoint(place / "checkpoint"), store, batch=0)
    materialise(manifest, store, tmp_path / "restored")
    before = {path: path.read_bytes() for path in (tmp_path / "restored").rglob("*") if path.is_file()}

    with pytest.raises(UnsupportedFormatError, match="without a snapshot"):
        rebase(tmp_path / "restored", batch=0, onto=20)

    assert {p: p.read_bytes() for p in (tmp_path / "restored").rglob("*") if p.is_file()} == before
    with pytest.raises(InvalidInputError, match="later number"):
        rebase(tmp_path / "restored", batch=3, onto=3)
