"""A session's block calls exactly what it should, and the depth table holds against a model."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import (
    ForeignSessionError,
    HoldfastError,
    InvalidInputError,
    NoActiveSessionError,
    SequenceRegressionError,
)
from holdfast.positions import KEEP, Session, SourceCheckpoint, SourceCheckpointStore, open_positions


class Recorder:
    """A control that writes down what it is told, and fails where it is asked to."""

    def __init__(self, **failures: Exception) -> None:
        self.calls: list[str] = []
        self._failures = failures

    def _do(self, name: str) -> None:
        self.calls.append(name)
        if name in self._failures:
            raise self._failures[name]

    def begin(self) -> None:
        self._do("begin")

    def commit(self) -> None:
        self._do("commit")

    def rollback(self) -> None:
        self._do("rollback")


def test_the_three_methods_pass_through() -> None:
    control = Recorder()
    session = Session(control)

    session.begin()
    session.commit()
    session.rollback()

    assert control.calls == ["begin", "commit", "rollback"]


def test_leaving_without_a_commit_rolls_back_once() -> None:
    control = Recorder()

    with Session(control):
        pass

    assert control.calls == ["begin", "rollback"]


def test_leaving_after_a_commit_calls_nothing_more() -> None:
    control = Recorder()

    with Session(control) as session:
        session.commit()

    assert control.calls == ["begin", "commit"]


def test_leaving_after_a_rollback_by_hand_calls_nothing_more() -> None:
    control = Recorder()

    with Session(control) as session:
        session.rollback()

    assert control.calls == ["begin", "rollback"]


def test_a_commit_that_raised_is_rolled_back_and_its_error_passed_on() -> None:
    failure = KeyError("commit")
    control = Recorder(commit=failure)

    with pytest.raises(KeyError) as caught, Session(control) as session:
        session.commit()

    assert caught.value is failure
    assert control.calls == ["begin", "commit", "rollback"]


def test_a_commit_that_failed_and_then_succeeded_is_not_rolled_back() -> None:
    control = Recorder(commit=KeyError())

    with Session(control) as session:
        with pytest.raises(KeyError):
            session.commit()
        control._failures.clear()
        session.commit()

    assert control.calls == ["begin", "commit", "commit"]


def test_an_error_in_the_block_is_passed_on_unchanged_even_if_the_rollback_fails(
    caplog: pytest.LogCaptureFixture,
) -> None:
    mine = KeyError("mine")
    control = Recorder(rollback=OSError("disk"))

    with (
        caplog.at_level(logging.ERROR, logger="holdfast.positions"),
        pytest.raises(KeyError) as caught,
        Session(control),
    ):
        raise mine

    assert caught.value is mine
    assert control.calls == ["begin", "rollback"]
    assert "disk" in caplog.text


def test_a_rollback_that_fails_on_the_way_out_is_logged_and_not_raised(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with (
        caplog.at_level(logging.ERROR, logger="holdfast.positions"),
        Session(Recorder(rollback=OSError("disk"))),
    ):
        pass

    assert "disk" in caplog.text


def test_a_begin_that_fails_leaves_nothing_to_roll_back() -> None:
    control = Recorder(begin=OSError())

    with pytest.raises(OSError), Session(control):
        raise AssertionError("never entered")

    assert control.calls == ["begin"]


def test_one_handle_may_be_entered_twice_and_each_block_settles_itself() -> None:
    control = Recorder()
    session = Session(control)

    with session:
        with session:
            session.commit()
        session.commit()
    with session, session:
        session.commit()

    assert control.calls == ["begin", "begin", "commit", "commit", "begin", "begin", "commit", "rollback"]


def test_a_strangers_attempt_to_roll_back_does_not_settle_the_owners_block() -> None:
    control = Recorder(rollback=ForeignSessionError())

    with Session(control) as session:
        with pytest.raises(ForeignSessionError):
            session.rollback()
        control._failures.clear()

    assert control.calls == ["begin", "rollback", "rollback"]


# -- the depth table, the guards and KEEP, against a model


@dataclass
class Model:
    """What the table says, with nothing but dictionaries."""

    depth: int = 0
    stored: dict[str, tuple[int, bytes | None]] = field(default_factory=dict)
    staged: dict[str, tuple[int, bytes | None]] = field(default_factory=dict)

    def begin(self) -> None:
        if not self.depth:
            self.staged = dict(self.stored)
        self.depth += 1

    def commit(self) -> None:
        if not self.depth:
            raise NoActiveSessionError
        self.depth -= 1
        if not self.depth:
            self.stored = self.staged

    def rollback(self) -> None:
        self.depth = 0

    def stage(self, source_id: str, sequence: int, position: Any, guard: str) -> None:
        if not self.depth:
            raise NoActiveSessionError
        now = self.staged.get(source_id)
        if now and sequence < now[0] and guard != "allow":
            if guard == "ignore":
                return
            raise SequenceRegressionError(source_id, now[0], sequence)
        if position is KEEP:
            position = now[1] if now else None
        self.staged[source_id] = (sequence, position)

    def bad(self) -> None:
        raise InvalidInputError

    def seen(self) -> dict[str, SourceCheckpoint]:
        now = self.staged if self.depth else self.stored
        return {name: SourceCheckpoint(*entry) for name, entry in now.items()}


CALLS = st.one_of(
    st.just(("begin",)),
    st.just(("commit",)),
    st.just(("commit",)),
    st.just(("rollback",)),
    st.just(("bad",)),
    st.tuples(
        st.just("stage"),
        st.sampled_from(["a", "b"]),
        st.integers(0, 4),
        st.sampled_from([KEEP, None, b"", b"x", b"y"]),
        st.sampled_from(["reject", "ignore", "allow"]),
    ),
)


def told(call: Callable[[], Any]) -> type[HoldfastError] | None:
    try:
        call()
    except HoldfastError as error:
        return type(error)
    return None


def do(store: SourceCheckpointStore, name: str, *args: Any) -> Any:
    if name == "stage":
        source_id, sequence, position, guard = args
        return store.stage_checkpoint(source_id, sequence, position, guard=guard)
    if name == "bad":
        return store.stage_checkpoint("a", -1)
    # A new handle for each call: all of them count one depth.
    return getattr(store.session(), name)()


@settings(max_examples=150)
@given(st.lists(CALLS, max_size=25))
def test_a_store_does_what_the_depth_table_says(calls: list[tuple[Any, ...]]) -> None:
    model = Model()
    with tempfile.TemporaryDirectory() as place:
        with open_positions(place, "q", sync=False) as store:
            for name, *args in calls:
                expected = told(lambda name=name, args=args: getattr(model, name)(*args))  # type: ignore[misc]
                assert told(lambda name=name, args=args: do(store, name, *args)) is expected, (name, args)  # type: ignore[misc]
                assert store.read_all_checkpoints() == model.seen()
                assert store.read_checkpoint("a") == model.seen().get("a")
            store.session().rollback()
            model.rollback()

        with open_positions(Path(place), "q") as again:
            assert again.read_all_checkpoints() == model.seen()
