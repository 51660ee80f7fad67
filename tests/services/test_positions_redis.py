"""Redis and Valkey keep the contract."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from holdfast.positions import open_positions
from holdfast.testing import SharedPositionSuite
from holdfast.testing.positions import OpenStore

if TYPE_CHECKING:
    from databases import Server

pytestmark = pytest.mark.services
pytest.importorskip("redis")


class TestRedis(SharedPositionSuite):
    @pytest.fixture
    def open_store(self, redis_server: Server) -> OpenStore:
        # One server for all tests: each has queries of its own.
        mine = uuid4().hex
        return lambda query_id, **options: open_positions(redis_server.url, f"{mine}-{query_id}", **options)


class TestValkey(SharedPositionSuite):
    @pytest.fixture
    def open_store(self, valkey_server: Server) -> OpenStore:
        mine = uuid4().hex
        url = valkey_server.url.replace("redis://", "valkey://")
        return lambda query_id, **options: open_positions(url, f"{mine}-{query_id}", **options)
