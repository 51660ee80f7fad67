"""PostgreSQL keeps the contract: by URL, through psycopg, and through ADBC."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from holdfast.positions import open_positions
from holdfast.positions.sql import SQLSourceCheckpointStore
from holdfast.testing import SharedPositionSuite
from holdfast.testing.positions import OpenStore

if TYPE_CHECKING:
    from databases import Server

pytestmark = pytest.mark.services
psycopg = pytest.importorskip("psycopg")


@pytest.fixture
def database(postgres_server: Server) -> str:
    """The URL of a database of this test's own."""
    name = f"test_{uuid4().hex}"
    with psycopg.connect(postgres_server.url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return postgres_server.url.rpartition("/")[0] + "/" + name


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
