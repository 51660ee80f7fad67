"""The store in memory keeps the part of the contract that needs no disk."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.positions import MemorySourceCheckpointStore, SourceCheckpoint
from holdfast.testing import PositionSuite
from holdfast.testing.positions import OpenStore


class TestMemory(PositionSuite):
    @pytest.fixture
    def open_store(self) -> OpenStore:
        def opened(query_id: str, **options: Any) -> MemorySourceCheckpointStore:
            return MemorySourceCheckpointStore(**options)

        return opened


def test_nothing_survives_and_the_store_says_so() -> None:
    assert MemorySourceCheckpointStore().is_persistent() is False


def test_staging_needs_no_session_and_takes_effect_at_once() -> None:
    store = MemorySourceCheckpointStore()

    store.stage_checkpoint("s", 1, b"p")
    with store.session():
        store.stage_checkpoint("s", 2)
        store.stage_result_sequence("q", 3)

    assert store.read_checkpoint("s") == SourceCheckpoint(2, b"p")
    assert store.read_result_sequence("q") == 3


def test_the_three_calls_of_a_session_always_succeed_and_clear_always_works() -> None:
    store = MemorySourceCheckpointStore()
    session = store.session()

    session.commit()
    session.rollback()
    session.begin()
    store.clear_checkpoints()

    assert store.read_generation() == 1
