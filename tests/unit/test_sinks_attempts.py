"""Names of staged output: read back as they were written, and never two owners' the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.coordinator.sink import SinkFlow
from holdfast.errors import InvalidInputError
from holdfast.ids import CheckpointId
from holdfast.spark.sinks.attempts import (
    Attempt,
    attempt_directory,
    attempt_tables,
    owner_directory,
    parse_directory,
    parse_table,
    part_table,
    table_prefix,
)

FLOW = SinkFlow("orders/per_minute", "lake")

ids = st.builds(CheckpointId, st.integers(0, 2**128 - 1))
attempts = st.builds(Attempt, st.integers(1, 10**13), st.integers(1, 10**13), ids)
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=300)
flows = st.builds(SinkFlow, texts, texts)


@given(attempts)
def test_a_directory_name_is_read_back(attempt: Attempt) -> None:
    assert parse_directory(attempt_directory(attempt)) == attempt


@given(flows, st.builds(Attempt, st.integers(1, 10**9), st.integers(1, 10**9), ids))
def test_a_table_name_is_read_back_and_fits_into_63_bytes(flow: SinkFlow, attempt: Attempt) -> None:
    name = part_table(flow, attempt, 999)

    assert parse_table(name) == attempt
    assert name.startswith(table_prefix(flow))
    assert name.startswith(attempt_tables(flow, attempt))
    assert len(name.encode()) < 63
    assert parse_table(f"{name}_") == attempt


def test_a_table_name_that_would_be_cut_is_refused() -> None:
    attempt = Attempt(10**14, 10**14, CheckpointId.now())

    with pytest.raises(InvalidInputError, match="no table name that fits"):
        part_table(FLOW, attempt, 10)


def test_attempts_whose_number_begins_alike_have_no_table_name_in_common() -> None:
    id = CheckpointId.now()

    assert not part_table(FLOW, Attempt(1, 12, id), 0).startswith(attempt_tables(FLOW, Attempt(1, 1, id)))


@given(flows)
def test_an_owners_directory_is_a_plain_short_name(flow: SinkFlow) -> None:
    name = owner_directory(flow)

    assert len(name.encode()) <= 120
    assert not name.startswith(".")
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


@pytest.mark.parametrize(
    "other",
    [
        SinkFlow("orders/per_minute", "lake2"),
        SinkFlow("orders", "per_minute.lake"),
        SinkFlow("orders/per", "minute/lake"),
        SinkFlow("Orders/per_minute", "lake"),
    ],
)
def test_other_owners_have_other_names(other: SinkFlow) -> None:
    assert owner_directory(other).lower() != owner_directory(FLOW).lower()
    assert table_prefix(other) != table_prefix(FLOW)


@pytest.mark.parametrize(
    "name", ["", "x", "000000000001-000000000001", "_hf_x_1_1_a_0", "orders", "_hf_1_2_3"]
)
def test_a_foreign_name_is_nobodys_attempt(name: str) -> None:
    assert parse_directory(name) is None
    assert parse_table(name) is None
