"""What every sink must do, as tests. A sink of your own passes them too, or it is no sink.

    class TestMySink(SinkSuite):
        def make_sink(self) -> MySink: ...               a new instance each time, always at the same place
        def make_batch(self, rows) -> Any: ...           what your ``prepare`` takes
        def visible(self) -> list[tuple[int, str]]: ...  what a reader sees now

Rows are ``(number, text)``. Put the place into an autouse fixture. Nothing here needs Spark.
"""

from __future__ import annotations

import json
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import pytest

from holdfast.coordinator.sink import Epoch, Outcome, Sink, SinkFlow, StagedOutputGoneError
from holdfast.ids import CheckpointId
from holdfast.manifest import Receipt

Row: TypeAlias = tuple[int, str]

FLOW = SinkFlow("orders/per_minute", "lake")


def attempt(number: int, generation: int = 1) -> Epoch:
    """A new attempt at an epoch, as the coordinator makes them: the id is never used again."""
    return Epoch(number, CheckpointId.now(), generation)


def stored(receipts: Sequence[Receipt]) -> list[Receipt]:
    """Receipts as another process finds them in the ledger: JSON, without floats."""
    text = json.dumps(receipts, allow_nan=False)
    return list(json.loads(text, parse_float=_refuse_float))


def _refuse_float(text: str) -> float:
    raise AssertionError(f"a receipt holds the float {text}; the ledger takes none")


class SinkSuite(ABC):
    """The contract of ``holdfast.coordinator.sink.Sink``, one sentence a test."""

    @abstractmethod
    def make_sink(self) -> Sink:
        """A new, unopened instance at this test's place, as another process would make it."""

    @abstractmethod
    def make_batch(self, rows: Sequence[Row]) -> Any:
        """``rows`` as one micro-batch."""

    @abstractmethod
    def visible(self) -> list[Row]:
        """The rows that any reader sees now, sorted."""

    def everything(self) -> Any:
        """All there is at the place, to compare: what must not change does not. None: not comparable."""
        return None

    def lose_staged(self) -> None:
        """Destroy everything staged, as a person with a broom would."""
        pytest.skip("this sink's tests don't say how its staged output could be lost")

    # --- helpers for tests

    def opened(self, flow: SinkFlow = FLOW) -> Sink:
        sink = self.make_sink()
        sink.open(flow)
        return sink

    def prepared(self, sink: Sink, epoch: Epoch, *parts: Sequence[Row]) -> list[Receipt]:
        sink.begin(epoch)
        return stored([sink.prepare(self.make_batch(rows), epoch, part) for part, rows in enumerate(parts)])

    def committed(self, sink: Sink, epoch: Epoch, *parts: Sequence[Row]) -> list[Receipt]:
        receipts = self.prepared(sink, epoch, *parts)
        sink.commit(epoch, receipts)
        return receipts

    # --- the contract

    def test_nothing_is_visible_before_the_commit(self) -> None:
        sink = self.opened()

        self.prepared(sink, attempt(1), [(1, "a"), (2, "b")])

        assert self.visible() == []

    def test_a_commit_shows_the_rows(self) -> None:
        sink = self.opened()

        self.committed(sink, attempt(1), [(1, "a"), (2, "b")])

        assert self.visible() == [(1, "a"), (2, "b")]

    def test_a_commit_that_comes_twice_shows_the_rows_once(self) -> None:
        sink, epoch = self.opened(), attempt(1)
        receipts = self.committed(sink, epoch, [(1, "a")])

        sink.commit(epoch, receipts)

        assert self.visible() == [(1, "a")]

    def test_another_process_commits_with_the_receipts_alone(self) -> None:
        epoch = attempt(1)
        receipts = self.prepared(self.opened(), epoch, [(1, "a")], [(2, "b")])

        self.opened().commit(epoch, receipts)

        assert self.visible() == [(1, "a"), (2, "b")]

    def test_a_late_commit_of_an_older_epoch_changes_nothing(self) -> None:
        sink, first = self.opened(), attempt(1)
        receipts = self.committed(sink, first, [(1, "a")])
        self.committed(sink, attempt(2), [(2, "b")])

        self.opened().commit(first, receipts)

        assert self.visible() == [(1, "a"), (2, "b")]

    def test_two_commits_at_once_show_the_rows_once(self) -> None:
        epoch = attempt(1)
        rows = [(number, "x") for number in range(20)]
        receipts = self.prepared(self.opened(), epoch, rows)
        sinks = [self.opened() for _ in range(4)]

        errors = _at_once([lambda sink=sink: sink.commit(epoch, receipts) for sink in sinks])  # type: ignore[misc]

        assert errors == []
        assert self.visible() == rows

    def test_parts_of_one_epoch_are_shown_together(self) -> None:
        sink, epoch = self.opened(), attempt(1)

        receipts = self.prepared(sink, epoch, [(1, "a")], [(2, "b"), (3, "c")], [(4, "d")])
        before = self.visible()
        sink.commit(epoch, receipts)

        assert before == []
        assert self.visible() == [(1, "a"), (2, "b"), (3, "c"), (4, "d")]

    def test_an_epoch_without_rows_is_committed_all_the_same(self) -> None:
        sink, epoch = self.opened(), attempt(1)

        receipts = self.committed(sink, epoch, [])

        assert self.visible() == []
        assert sink.outcome(epoch, receipts) is Outcome.COMMITTED

    def test_epoch_numbers_may_have_gaps(self) -> None:
        sink = self.opened()

        self.committed(sink, attempt(3), [(1, "a")])
        self.committed(sink, attempt(41), [(2, "b")])

        assert self.visible() == [(1, "a"), (2, "b")]

    def test_the_outcome_follows_the_commit(self) -> None:
        sink, epoch = self.opened(), attempt(1)
        receipts = self.prepared(sink, epoch, [(1, "a")])

        before = self.opened().outcome(epoch, receipts)
        sink.commit(epoch, receipts)

        assert before is Outcome.NOT_COMMITTED
        assert self.opened().outcome(epoch, receipts) is Outcome.COMMITTED

    def test_an_aborted_attempt_leaves_the_epoch_to_the_next_one(self) -> None:
        sink, first = self.opened(), attempt(1)
        receipts = self.prepared(sink, first, [(1, "lost")])
        sink.abort(first, receipts)
        sink.abort(first, [])

        self.committed(sink, attempt(1), [(2, "kept")])

        assert self.visible() == [(2, "kept")]

    def test_an_abort_without_receipts_is_enough(self) -> None:
        sink, epoch = self.opened(), attempt(1)
        receipts = self.prepared(sink, epoch, [(1, "a")])

        sink.abort(epoch, [])

        with pytest.raises(StagedOutputGoneError):
            sink.commit(epoch, receipts)

    def test_an_abort_of_one_attempt_does_not_touch_another(self) -> None:
        dead, alive = attempt(1, generation=1), attempt(1, generation=2)
        self.prepared(self.opened(), dead, [(1, "dead")])
        sink = self.opened()
        receipts = self.prepared(sink, alive, [(2, "alive")])

        sink.abort(dead, [])
        sink.commit(alive, receipts)

        assert self.visible() == [(2, "alive")]

    def test_open_changes_nothing_and_knows_no_epoch_at_first(self) -> None:
        before = self.everything()

        newest = self.make_sink().open(FLOW)

        assert newest is None
        assert self.everything() == before

    def test_open_names_the_newest_epoch_if_it_can_tell(self) -> None:
        sink, second = self.opened(), attempt(2)
        self.committed(sink, attempt(1), [(1, "a")])
        self.committed(sink, second, [(2, "b")])
        self.prepared(sink, attempt(3), [(3, "c")])
        before = self.everything()

        newest = self.make_sink().open(FLOW)

        assert newest is None or (newest.number, newest.id) == (2, second.id)
        assert self.everything() == before

    def test_a_sweep_drops_what_older_generations_staged_and_nobody_decided(self) -> None:
        epoch = attempt(1, generation=3)
        receipts = self.prepared(self.opened(), epoch, [(1, "a")])
        sink = self.opened()

        sink.sweep(4, _nothing)

        with pytest.raises(StagedOutputGoneError):
            sink.commit(epoch, receipts)
        assert self.visible() == []

    def test_a_sweep_keeps_what_was_decided(self) -> None:
        epoch = attempt(1, generation=3)
        receipts = self.prepared(self.opened(), epoch, [(1, "a")])
        sink = self.opened()

        sink.sweep(4, lambda number, id: (number, id) == (1, epoch.id))
        sink.commit(epoch, receipts)

        assert self.visible() == [(1, "a")]

    def test_a_sweep_keeps_what_its_own_generation_and_newer_ones_staged(self) -> None:
        mine, newer = attempt(1, generation=4), attempt(2, generation=5)
        sink = self.opened()
        of_mine = self.prepared(sink, mine, [(1, "a")])
        of_newer = self.prepared(sink, newer, [(2, "b")])

        self.opened().sweep(4, _nothing)
        sink.commit(mine, of_mine)
        sink.commit(newer, of_newer)

        assert self.visible() == [(1, "a"), (2, "b")]

    def test_a_sweep_never_touches_another_flow_or_sink(self) -> None:
        others = [SinkFlow("orders/per_hour", "lake"), SinkFlow("orders/per_minute", "lake2")]
        epochs = [attempt(1), attempt(1)]
        sinks = [self.opened(flow) for flow in others]
        receipts = [
            self.prepared(sink, epoch, [(number, "other")])
            for number, (sink, epoch) in enumerate(zip(sinks, epochs, strict=True))
        ]

        self.opened().sweep(9, _nothing)
        for sink, epoch, its in zip(sinks, epochs, receipts, strict=True):
            sink.commit(epoch, its)

        assert self.visible() == [(0, "other"), (1, "other")]

    def test_a_sweep_leaves_shown_epochs_alone(self) -> None:
        sink, epoch = self.opened(), attempt(1)
        receipts = self.committed(sink, epoch, [(1, "a")])

        self.opened().sweep(9, lambda number, id: (number, id) == (1, epoch.id))

        assert self.visible() == [(1, "a")]
        assert self.opened().outcome(epoch, receipts) is Outcome.COMMITTED

    def test_flows_that_share_a_place_commit_the_same_epoch_side_by_side(self) -> None:
        one, other = self.opened(), self.opened(SinkFlow("orders/per_hour", "lake"))

        self.committed(one, attempt(1), [(1, "one")])
        self.committed(other, attempt(1), [(2, "other")])

        assert self.visible() == [(1, "one"), (2, "other")]

    def test_lost_staged_output_is_said_and_can_be_fed_again(self) -> None:
        epoch = attempt(1, generation=1)
        receipts = self.prepared(self.opened(), epoch, [(1, "a"), (2, "b")])
        self.lose_staged()
        sink = self.opened()

        with pytest.raises(StagedOutputGoneError):
            sink.commit(epoch, receipts)
        again = Epoch(epoch.number, epoch.id, generation=2)
        self.committed(sink, again, [(1, "a"), (2, "b")])

        assert self.visible() == [(1, "a"), (2, "b")]
        assert sink.outcome(again, receipts) is Outcome.COMMITTED


def _nothing(number: int, id: CheckpointId) -> bool:
    """Nobody decided anything."""
    del number, id
    return False


def _at_once(calls: Sequence[Callable[[], object]]) -> list[BaseException]:
    """Run ``calls`` in threads that start together; what they raised."""
    together = threading.Barrier(len(calls))
    errors: list[BaseException] = []

    def run(call: Callable[[], object]) -> None:
        together.wait()
        try:
            call()
        except BaseException as error:  # noqa: BLE001  (a thread's error is the test's)
            errors.append(error)

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors
