"""MemoryBlobs keeps the contract."""

from __future__ import annotations

import pytest

from holdfast.blobs.memory import MemoryBlobs
from holdfast.testing import BlobSuite


class TestMemoryBlobs(BlobSuite):
    @pytest.fixture
    def blobs(self) -> MemoryBlobs:
        return MemoryBlobs()
