"""The values that cross the border: frozen, equal on both fields, and whole after a pickle."""

from __future__ import annotations

import copy
import dataclasses
import pickle

import pytest

from holdfast.errors import ForeignSessionError, NoActiveSessionError, SequenceRegressionError
from holdfast.positions import MAX_SOURCE_POSITION_BYTES, Marker, SourceCheckpoint


def test_a_checkpoint_is_equal_on_both_fields_and_hashable() -> None:
    one = SourceCheckpoint(1, b"p")

    assert one == SourceCheckpoint(sequence=1, source_position=b"p")
    assert one != SourceCheckpoint(2, b"p")
    assert one != SourceCheckpoint(1, b"")
    assert SourceCheckpoint(1, b"") != SourceCheckpoint(1, None)
    assert SourceCheckpoint(1) == SourceCheckpoint(1, None)
    assert len({one, SourceCheckpoint(1, b"p"), SourceCheckpoint(1)}) == 2
    assert repr(one) == "SourceCheckpoint(sequence=1, source_position=b'p')"


def test_a_checkpoint_cannot_be_changed_and_survives_copies() -> None:
    one = SourceCheckpoint(2**64 - 1, b"\0")

    with pytest.raises(dataclasses.FrozenInstanceError):
        one.sequence = 2  # type: ignore[misc]

    assert pickle.loads(pickle.dumps(one)) == one
    assert copy.deepcopy(one) == one
    assert dataclasses.replace(one, sequence=3) == SourceCheckpoint(3, b"\0")


def test_the_longest_position_and_the_names_of_markers_are_part_of_the_format() -> None:
    assert MAX_SOURCE_POSITION_BYTES == 65_536
    assert [str(marker) for marker in Marker] == ["bootstrapped", "resetting"]


@pytest.mark.parametrize(
    "error", [SequenceRegressionError("s", 5, 4), NoActiveSessionError("none"), ForeignSessionError("theirs")]
)
def test_errors_survive_a_pickle(error: Exception) -> None:
    again = pickle.loads(pickle.dumps(error))

    assert type(again) is type(error)
    assert (str(again), vars(again)) == (str(error), vars(error))
