"""The Database sink on SQLite keeps the contract of sinks, appending and upserting."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.spark.sinks import Database
from holdfast.testing.sinks import Row, SinkSuite

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


class SQLiteSuite(SinkSuite):
    @pytest.fixture(autouse=True)
    def _place(self, spark: SparkSession, tmp_path: Path) -> None:
        self.spark = spark
        self.path = tmp_path / "out.db"

    def make_sink(self) -> Database:
        return Database(f"sqlite:///{self.path}", table="rows")

    def make_batch(self, rows: Sequence[Row]) -> Any:
        return self.spark.createDataFrame(list(rows), "number INT, text STRING")

    def visible(self) -> list[Row]:
        if not self.path.exists():
            return []
        with closing(sqlite3.connect(self.path)) as connection:
            if not connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'rows'").fetchone():
                return []
            return sorted(connection.execute("SELECT number, text FROM rows").fetchall())

    def everything(self) -> dict[str, str]:
        return {
            file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in self.path.parent.iterdir()
        }

    def lose_staged(self) -> None:
        with closing(sqlite3.connect(self.path)) as connection:
            for (name,) in connection.execute(
                r"SELECT name FROM sqlite_schema WHERE name LIKE '\_hf\_%' ESCAPE '\'"
            ):
                connection.execute(f'DROP TABLE "{name}"')
            connection.commit()


class TestAppending(SQLiteSuite):
    pass


class TestAppendingWithAnEpochColumn(SQLiteSuite):
    def make_sink(self) -> Database:
        return Database(f"sqlite:///{self.path}", table="rows", epoch_column="epoch")


class TestUpserting(SQLiteSuite):
    def make_sink(self) -> Database:
        return Database(f"sqlite:///{self.path}", table="rows", key=["number"])
