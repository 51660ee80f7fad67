"""PostgreSQL keeps the contract: by URL, through psycopg, and through ADBC."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.positions import open_positions
from holdfast.positions.sql import SQLSourceCheckpointStore
from holdfast.testing import SharedPositionSuite
from holdfast.testing.positions import OpenStore

pytestmark = pytest.mark.services
psycopg = pytest.importorskip("psycopg")


class TestPostgresByURL(SharedPositionSuite):
    @pytest.fixture
    def open_store(self, database: str) -> OpenStore:
        return lambda query_id, **options: open_positions(database, query_id, **options)


class TestPostgresThroughPsycopg(SharedPositionSuite):
    @pytest.fixture
    def open_store(self, database: str) -> OpenStore:
        def opened(query_id: str, **options: Any) -> SQLSourceCheckpointStore:
            return SQLSourceCheckpointStore(lambda: psycopg.connect(database), query_id, **options)

        return opened


class TestPostgresThroughADBC(SharedPositionSuite):
    @pytest.fixture
    def open_store(self, database: str) -> OpenStore:
        dbapi = pytest.importorskip("adbc_driver_postgresql.dbapi")

        def opened(query_id: str, **options: Any) -> SQLSourceCheckpointStore:
            return SQLSourceCheckpointStore(lambda: dbapi.connect(database), query_id, **options)

        return opened
