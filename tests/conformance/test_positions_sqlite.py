"""SQLite keeps the contract: by a directory, and through a function that connects."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from holdfast.positions import open_positions
from holdfast.positions.sql import SQLSourceCheckpointStore
from holdfast.testing import SharedPositionSuite
from holdfast.testing.positions import OpenStore


class TestSQLiteByDirectory(SharedPositionSuite):
    @pytest.fixture
    def open_store(self, tmp_path: Path) -> OpenStore:
        return lambda query_id, **options: open_positions(tmp_path, query_id, **options)


class TestSQLiteByFunction(SharedPositionSuite):
    @pytest.fixture
    def open_store(self, tmp_path: Path) -> OpenStore:
        def opened(query_id: str, **options: Any) -> SQLSourceCheckpointStore:
            return SQLSourceCheckpointStore(
                lambda: sqlite3.connect(tmp_path / "mine.db"), query_id, **options
            )

        return opened


class TestSQLiteThroughADBC(SharedPositionSuite):
    @pytest.fixture
    def open_store(self, tmp_path: Path) -> OpenStore:
        dbapi = pytest.importorskip("adbc_driver_sqlite.dbapi")

        def opened(query_id: str, **options: Any) -> SQLSourceCheckpointStore:
            return SQLSourceCheckpointStore(
                lambda: dbapi.connect(str(tmp_path / "mine.db")), query_id, **options
            )

        return opened
