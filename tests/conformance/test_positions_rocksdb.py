"""RocksDB keeps the contract. Its directory is one process's, and one query's."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.positions import open_positions
from holdfast.testing import PersistentPositionSuite
from holdfast.testing.positions import OpenStore

pytest.importorskip("rocksdict")


class TestRocksDB(PersistentPositionSuite):
    @pytest.fixture
    def open_store(self, tmp_path: Path) -> OpenStore:
        return lambda query_id, **options: open_positions(f"rocksdb://{tmp_path}", query_id, **options)
