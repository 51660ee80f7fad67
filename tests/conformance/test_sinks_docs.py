"""The sink of a user's own in docs/sinks.md is complete: it passes the suite that it is advertised with."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.testing.sinks import Row, SinkSuite

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

PAGE = Path(__file__).parents[2] / "docs" / "sinks.md"


def example() -> type[Any]:
    """The class in the page's own words."""
    found_blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    blocks = [block for block in found_blocks if "class Scores" in block]
    assert len(blocks) == 1
    names: dict[str, Any] = {}
    exec(compile(blocks[0], str(PAGE), "exec"), names)
    found: type[Any] = names["Scores"]
    return found


class TestTheExampleOfTheDocs(SinkSuite):
    @pytest.fixture(autouse=True)
    def _place(self, spark: SparkSession, tmp_path: Path) -> None:
        self.spark = spark
        self.path = tmp_path / "scores.db"
        self.sink_type = example()

    def make_sink(self) -> Any:
        return self.sink_type(self.path)

    def make_batch(self, rows: Sequence[Row]) -> Any:
        return self.spark.createDataFrame(list(rows), "number INT, text STRING")

    def visible(self) -> list[Row]:
        if not self.path.exists():
            return []
        with closing(sqlite3.connect(self.path)) as connection:
            return sorted(connection.execute("SELECT number, text FROM scores").fetchall())

    def lose_staged(self) -> None:
        with closing(sqlite3.connect(self.path)) as connection, connection:
            connection.execute("DELETE FROM staged")
