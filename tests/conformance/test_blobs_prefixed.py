"""A part of a store keeps the contract, whatever lies beside it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast.blobs.memory import MemoryBlobs
from holdfast.blobs.prefixed import PrefixedBlobs
from holdfast.testing import BlobSuite

BESIDE = {"team/orders-": b"1", "team/orders": b"2", "team/orders0": b"3", "z": b"4"}


class TestPrefixedBlobs(BlobSuite):
    @pytest.fixture
    def blobs(self) -> Iterator[PrefixedBlobs]:
        whole = MemoryBlobs()
        for key, data in BESIDE.items():
            whole.create(key, data)

        yield PrefixedBlobs(whole, "team/orders/")

        outside = {info.key: whole.get(info.key) for info in whole.list("") if "orders/" not in info.key}
        assert outside == BESIDE
