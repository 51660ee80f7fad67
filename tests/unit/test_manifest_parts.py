"""The pieces of a manifest: base64 without slack, statuses in their stored forms."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import CorruptError, InvalidInputError
from holdfast.manifest.parts import (
    ConnectorCheckpoint,
    InFlightRecord,
    OperatorCheckpoint,
    SinkCommitStatus,
    check_receipt,
)


def test_state_up_to_the_threshold_is_inline_and_one_byte_more_is_external() -> None:
    inline, nothing = OperatorCheckpoint.from_bytes(b"x" * 100, 100, 2048)
    external, data = OperatorCheckpoint.from_bytes(b"x" * 101, 100, 2048)

    assert nothing is None
    assert inline.decode_inline() == b"x" * 100
    assert data == b"x" * 101
    assert external == OperatorCheckpoint(external=True, external_offset=2048, external_length=101)
    assert external.decode_inline() is None


def test_empty_state_is_inline_and_is_not_the_same_as_none() -> None:
    empty, _ = OperatorCheckpoint.from_bytes(b"", 0, 0)

    assert empty.state_b64 == ""
    assert empty.decode_inline() == b""
    assert OperatorCheckpoint().decode_inline() is None


@pytest.mark.parametrize("text", ["aGVsbG8", "aGVsbG8= ", "aGVs\nbG8=", "aGVsbG9=", "a-_=", "é", "===="])
def test_bad_base64_is_corrupt_and_never_no_state(text: str) -> None:
    with pytest.raises(CorruptError, match="base64"):
        OperatorCheckpoint(state_b64=text).decode_inline()
    with pytest.raises(CorruptError, match="input 3"):
        _ = InFlightRecord(input_id=3, data_b64=text).data


@given(st.binary(max_size=50))
def test_in_flight_data_comes_back(data: bytes) -> None:
    assert InFlightRecord.of(1, data).data == data


def test_a_connector_checkpoint_starts_empty_or_with_offsets() -> None:
    assert ConnectorCheckpoint.new(5) == ConnectorCheckpoint(offsets={}, epoch=5, metadata={})
    assert ConnectorCheckpoint.with_offsets(5, {"trades-0": "12"}).offsets == {"trades-0": "12"}


@pytest.mark.parametrize(
    ("wire", "status"),
    [
        ("Pending", SinkCommitStatus.PENDING),
        ("Committed", SinkCommitStatus.COMMITTED),
        ({"Pending": None}, SinkCommitStatus.PENDING),
        ({"Failed": ""}, SinkCommitStatus.failed("")),
        ({"Failed": "no"}, SinkCommitStatus.failed("no")),
    ],
)
def test_a_status_is_read_in_all_its_forms(wire: Any, status: SinkCommitStatus) -> None:
    assert SinkCommitStatus.from_wire(wire) == status
    assert SinkCommitStatus.from_wire(status.to_wire()) == status
    assert pickle.loads(pickle.dumps(status)) == status


@pytest.mark.parametrize(
    "wire",
    ["Failed", "pending", {}, {"Failed": 1}, {"Failed": "a", "Pending": None}, {"Pending": ""}, None, 3],
)
def test_anything_else_is_no_status(wire: Any) -> None:
    with pytest.raises(ValueError, match="sink commit status"):
        SinkCommitStatus.from_wire(wire)


def test_a_status_says_what_it_is() -> None:
    failed = SinkCommitStatus.failed("reset")

    assert (failed.is_failed, failed.message, failed.is_pending) == (True, "reset", False)
    assert SinkCommitStatus.PENDING.is_pending
    assert SinkCommitStatus.COMMITTED.is_committed
    assert len({failed, SinkCommitStatus.failed("reset"), SinkCommitStatus.PENDING}) == 2


def test_a_receipt_with_a_float_is_refused() -> None:
    check_receipt({"files": [{"path": "a", "rows": 3}]}, "lake")

    with pytest.raises(InvalidInputError, match=r"lake.*float"):
        check_receipt({"rows": 3.0}, "lake")
