"""A few rounds of kill -9 for each backend. ``python tests/crash/positions_kills.py`` runs two hundred."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from positions_kills import KINDS, SOURCES, kind_of, position, rounds, state_after

from holdfast.positions import SourceCheckpoint

pytestmark = [pytest.mark.kills, pytest.mark.services]

ROUNDS = 25 if os.environ.get("HOLDFAST_REQUIRE_ALL") == "1" else 5


@pytest.mark.parametrize("kind", KINDS)
def test_a_kill_at_any_moment_loses_nothing_and_tears_nothing(kind: str) -> None:
    library = {"rocksdb": "rocksdict", "redis": "redis", "valkey": "redis", "postgres": "psycopg"}
    pytest.importorskip(library.get(kind.rstrip("!").removesuffix("+rows"), "sqlite3"))
    # A server takes seconds to come back; the moments are as random with fewer of them.
    count = max(1, ROUNDS // 5) if kind.endswith("!") else ROUNDS
    try:
        tally = rounds(kind, count, seed=count)
    except LookupError as error:
        pytest.skip(str(error))

    assert tally.rounds == count


def test_the_expected_states_are_what_the_operations_say() -> None:
    assert [kind_of(n) for n in (1, 4, 9, 10, 14, 19)] == [
        "session",
        "hash",
        "clear",
        "session",
        "hash",
        "clear",
    ]
    eight = state_after(8, with_rows=True)
    assert eight.entries == {name: SourceCheckpoint(8, position(8, name)) for name in SOURCES}
    assert (eight.result, eight.config_hash, eight.generation, eight.rows) == (8, 4, 0, 7)
    nine = state_after(9, with_rows=True)
    assert (nine.entries, nine.result, nine.config_hash, nine.generation, nine.rows) == ({}, None, None, 1, 7)
    assert state_after(14, with_rows=False).config_hash == 14
