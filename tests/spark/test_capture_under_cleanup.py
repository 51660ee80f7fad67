"""Captures of a query that cleans up as fast as it can: each is whole, or was never published."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from holdfast.blobs.files import FileBlobs
from holdfast.capture import capture_directory
from holdfast.errors import NotFoundError
from holdfast.sparkdir import SparkCheckpoint
from holdfast.sparkdir.materialise import materialise
from holdfast.store.partitioned import PartitionedCheckpointStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from holdfast.manifest import CheckpointManifestV2

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


@pytest.mark.parametrize("provider", ["changelog-1", "hdfs"])
def test_captures_every_50_ms_of_a_query_that_keeps_two_batches_are_whole_or_refused(
    spark: SparkSession, tmp_path: Path, provider: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cleanup = {
        "spark.sql.streaming.minBatchesToRetain": "2",
        "spark.sql.streaming.fileSource.log.cleanupDelay": "1ms",
    }
    monkeypatch.setitem(matrix.PROVIDERS, provider, {**matrix.PROVIDERS[provider], **cleanup})
    case = matrix.Case("aggregation-update", provider, "file")
    matrix.write_input(tmp_path / "in")
    store = PartitionedCheckpointStore(FileBlobs(tmp_path / "store"))
    captured: dict[int, CheckpointManifestV2] = {}
    refused: list[str] = []

    def capture() -> None:
        try:
            manifest = capture_directory(
                SparkCheckpoint(tmp_path / "checkpoint"), store, progress=refused.append
            )
        except NotFoundError as error:
            refused.append(str(error))
            return
        assert manifest.engine is not None
        assert manifest.engine.batch_id is not None
        captured[manifest.engine.batch_id] = manifest

    batches = matrix.run(spark, case, tmp_path, tmp_path / "checkpoint", pause_seconds=0.4, meanwhile=capture)
    kept = SparkCheckpoint(tmp_path / "checkpoint").batches()

    assert min(kept) > 0, "Spark did clean up"
    assert len(captured) >= 5
    for batch, manifest in captured.items():
        # Checks every byte, and that a resume finds all it needs.
        assert materialise(manifest, store, tmp_path / f"restored-{batch}").batch_id == batch
    oldest = min(captured)
    found = matrix.run(spark, case, tmp_path, tmp_path / f"restored-{oldest}")
    assert found == {n: rows for n, rows in batches.items() if n > oldest}
