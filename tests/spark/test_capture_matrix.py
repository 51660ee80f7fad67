"""Some of the matrix, in the test session: what differs most, each once. ``make matrix`` runs it all."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def _load_matrix() -> ModuleType:
    spec = importlib.util.spec_from_file_location("holdfast_matrix", Path(__file__).with_name("matrix.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Its dataclasses look themselves up by module name.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


matrix = _load_matrix()


@pytest.mark.parametrize(
    ("query", "provider", "source"),
    [
        # Four stores a partition; snapshots only, ids in their names.
        ("outer-join", "rocksdb-2", "file"),
        # Two operators; changelogs found by number.
        ("chained", "changelog-1", "file"),
        # State in Python; deltas and snapshots; a source without a log of entries.
        ("map-groups", "hdfs", "rate"),
        # Two sources with a log each; snapshots found by number.
        ("united", "rocksdb-1", "file"),
        # A source written in Python.
        ("stateless", "hdfs", "python"),
        # State variables and timers in Python; schemas under absolute paths.
        ("tws-timers", "changelog-2", "file"),
    ],
)
def test_a_case_of_the_matrix_resumes_as_if_nothing_had_happened(
    spark: SparkSession, tmp_path: Path, query: str, provider: str, source: str
) -> None:
    case = matrix.Case(query, provider, source)
    place = tmp_path / case.slug

    batches, captured = matrix.capture(spark, case, place)
    restored = matrix.resume(spark, case, place, batches, captured, middle_only=True)

    assert len(captured) >= 3, "the capture kept up with the query"
    assert len(restored) == 1
