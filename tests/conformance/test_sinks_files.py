"""The Files sink keeps the contract of sinks, in every format."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.spark.sinks import Files
from holdfast.testing.sinks import Row, SinkSuite

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


class FilesSuite(SinkSuite):
    format = "parquet"

    @pytest.fixture(autouse=True)
    def _place(self, spark: SparkSession, tmp_path: Path) -> None:
        self.spark = spark
        self.path = tmp_path / "out"

    def make_sink(self) -> Files:
        return Files(self.path, format=self.format)

    def make_batch(self, rows: Sequence[Row]) -> Any:
        return self.spark.createDataFrame(list(rows), "number INT, text STRING")

    def visible(self) -> list[Row]:
        if not self.path.exists():
            return []
        # A reader that knows nothing of us.
        reader = self.spark.read.schema("number INT, text STRING").format(self.format)
        return sorted((row["number"], row["text"]) for row in reader.load(str(self.path)).collect())

    def everything(self) -> dict[str, str]:
        return {
            str(file.relative_to(self.path)): hashlib.sha256(file.read_bytes()).hexdigest()
            for file in self.path.rglob("*")
            if file.is_file()
        }

    def lose_staged(self) -> None:
        shutil.rmtree(self.path / "_holdfast" / "staged")


class TestFilesAsParquet(FilesSuite):
    pass


class TestFilesAsJson(FilesSuite):
    format = "json"


class TestFilesAsCsv(FilesSuite):
    format = "csv"


class TestFilesAsOrc(FilesSuite):
    format = "orc"


class TestPartitionedFiles(FilesSuite):
    def make_sink(self) -> Files:
        return Files(self.path, partition_by=["text"])
