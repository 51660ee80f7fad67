"""The protocol with fakes that crash, forget and lie. No Spark: a batch is a list, the state a sum."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import pytest

from holdfast.blobs import BlobStore, MemoryBlobs
from holdfast.coordinator import (
    Coordinator,
    Decided,
    Epoch,
    Identity,
    Limits,
    Outcome,
    Run,
    SinkFlow,
    SinkOutcomeUnknownError,
    StagedOutputGoneError,
    Step,
    ignore,
)
from holdfast.errors import ConflictError, CorruptError, FencedError, StoreUnavailableError
from holdfast.ids import CheckpointId
from holdfast.manifest import Receipt
from holdfast.store import CheckpointWriter, PartitionedCheckpointStore
from holdfast.store.verifying import verify_store

BATCHES = 4
IDENTITY = Identity(pipeline_hash=7, topology={})


class Crash(BaseException):
    """The process is gone: nothing after it runs, not even an abort."""


class ListSink:
    """Shows epochs in a dict that outlives any process. What it stages is keyed like a real sink's."""

    def __init__(self) -> None:
        self.staged: dict[tuple[int, int, str], list[int]] = {}
        self.shown: dict[int, tuple[str, list[int]]] = {}
        self.dead = False
        self.failing_commits = 0
        self.answer: Outcome | None = None

    def open(self, flow: SinkFlow) -> Epoch | None:
        if not self.shown:
            return None
        number = max(self.shown)
        return Epoch(number, CheckpointId.parse(self.shown[number][0]), 0)

    def begin(self, epoch: Epoch) -> None:
        self._alive()

    def prepare(self, batch: Any, epoch: Epoch, part: int) -> Receipt:
        self._alive()
        self.staged[self._key(epoch)] = list(batch)
        return {"rows": len(batch), "generation": epoch.generation}

    def commit(self, epoch: Epoch, receipts: Sequence[Receipt]) -> None:
        self._alive()
        if self.failing_commits:
            self.failing_commits -= 1
            raise OSError("the disk is having a day")
        if epoch.number in self.shown:
            assert self.shown[epoch.number][0] == str(epoch.id)
            return
        rows = self.staged.get(self._key(epoch))
        if rows is None:
            raise StagedOutputGoneError("list", epoch.number, "rows in memory")
        self.shown[epoch.number] = (str(epoch.id), rows)

    def abort(self, epoch: Epoch, receipts: Sequence[Receipt]) -> None:
        self._alive()
        self.staged.pop(self._key(epoch), None)

    def outcome(self, epoch: Epoch, receipts: Sequence[Receipt]) -> Outcome:
        if self.answer is not None:
            return self.answer
        return Outcome.COMMITTED if epoch.number in self.shown else Outcome.NOT_COMMITTED

    def sweep(self, generation: int, decided: Decided) -> None:
        for key in list(self.staged):
            if key[0] < generation and not decided(key[1], CheckpointId.parse(key[2])):
                del self.staged[key]

    def rows(self) -> list[int]:
        return [row for number in sorted(self.shown) for row in self.shown[number][1]]

    def _key(self, epoch: Epoch) -> tuple[int, int, str]:
        return (epoch.generation, epoch.number, str(epoch.id))

    def _alive(self) -> None:
        if self.dead:
            raise Crash


def rows_of(batch: int) -> list[int]:
    return [batch * 10, batch * 10 + 1]


ALL_ROWS = [row for batch in range(BATCHES) for row in rows_of(batch)]


def capture_of(batch: int) -> Callable[[CheckpointWriter], None]:
    def capture(writer: CheckpointWriter) -> None:
        writer.add("0", 0, str(sum(rows_of(batch))).encode(), delta=False)

    return capture


class World:
    """One flow's store and sinks, as they outlive each process that works on them."""

    def __init__(self, blobs: BlobStore | None = None) -> None:
        self.blobs = blobs or MemoryBlobs()
        self.sinks = {"a": ListSink(), "b": ListSink()}

    def coordinator(self, observe: Callable[[Step], None] = ignore) -> Coordinator:
        return Coordinator(
            PartitionedCheckpointStore(self.blobs),
            "orders/per_minute",
            self.sinks,
            identity=IDENTITY,
            limits=Limits(commit_seconds=5.0),
            observe=observe,
        )

    def start(self, observe: Callable[[Step], None] = ignore) -> Run:
        coordinator = self.coordinator(observe)
        return coordinator.start(coordinator.plan()).run

    def work(self, observe: Callable[[Step], None] = ignore, *, until: int = BATCHES) -> None:
        run = self.start(observe)
        while run.next_batch < until:
            batch = run.next_batch
            run.run_epoch(batch, nullcontext(rows_of(batch)), capture_of(batch))
        run.stop()

    def crash_at(self, name: str, when: str, epoch: int | None) -> bool:
        """Work until that step, then die there. False if the step was never met."""

        def observe(step: Step) -> None:
            if (step.name, step.when) == (name, when) and epoch in (None, step.epoch):
                for sink in self.sinks.values():
                    sink.dead = True
                raise Crash

        try:
            self.work(observe)
        except Crash:
            return True
        finally:
            for sink in self.sinks.values():
                sink.dead = False
        return False


EPOCH_STEPS = ["admit", "begin", "prepare", "capture", "manifest", "publish", "commit", "finish"]
RUN_STEPS = ["plan", "start", "sweep", "stop"]


def test_an_undisturbed_run_shows_every_row_once_in_every_sink() -> None:
    world = World()

    world.work()

    assert world.sinks["a"].rows() == ALL_ROWS
    assert world.sinks["b"].rows() == ALL_ROWS


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("name", EPOCH_STEPS)
def test_a_crash_at_any_step_of_an_epoch_loses_and_doubles_nothing(name: str, when: str) -> None:
    world = World()
    assert world.crash_at(name, when, epoch=2)

    world.work()

    assert world.sinks["a"].rows() == ALL_ROWS
    assert world.sinks["b"].rows() == ALL_ROWS


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("name", RUN_STEPS)
def test_a_crash_while_starting_or_stopping_loses_and_doubles_nothing(name: str, when: str) -> None:
    world = World()
    world.work(until=2)
    assert world.crash_at(name, when, epoch=None)

    world.work()

    assert world.sinks["a"].rows() == ALL_ROWS
    assert world.sinks["b"].rows() == ALL_ROWS


def test_nothing_is_visible_before_the_decision() -> None:  # I3
    world = World()

    assert world.crash_at("publish", "before", epoch=1)

    assert world.sinks["a"].rows() == world.sinks["b"].rows() == []
    assert PartitionedCheckpointStore(world.blobs).ledger.read().newest_decision is None


def test_what_an_undecided_attempt_staged_is_swept_by_the_next_start() -> None:
    world = World()
    assert world.crash_at("publish", "before", epoch=1)
    assert len(world.sinks["a"].staged) == 1

    world.start()

    assert world.sinks["a"].staged == {}


def test_a_decided_epoch_keeps_its_staged_output_until_it_is_shown() -> None:
    world = World()
    assert world.crash_at("publish", "after", epoch=1)
    assert world.sinks["a"].rows() == []

    world.start()

    assert world.sinks["a"].rows() == rows_of(0)
    assert world.sinks["b"].rows() == rows_of(0)


def test_the_older_of_two_runs_is_fenced_and_leaves_no_trace() -> None:  # I5
    world = World()
    old = world.start()
    old.run_epoch(0, nullcontext(rows_of(0)), capture_of(0))

    new = world.start()
    with pytest.raises(FencedError) as fenced:
        old.run_epoch(1, nullcontext(rows_of(1)), capture_of(1))
    new.run_epoch(1, nullcontext(rows_of(1)), capture_of(1))

    assert fenced.value.newer == new.author.generation
    assert world.sinks["a"].rows() == rows_of(0) + rows_of(1)
    assert all(key[0] == new.author.generation or key[1] == 1 for key in world.sinks["a"].staged)


def test_a_commit_that_fails_is_tried_again_while_the_others_finish() -> None:
    world = World()
    world.sinks["a"].failing_commits = 2

    world.work()

    assert world.sinks["a"].rows() == world.sinks["b"].rows() == ALL_ROWS


def test_a_sink_that_cannot_commit_stops_the_flow_and_the_next_start_finishes_it() -> None:
    world = World()
    world.sinks["a"].failing_commits = 3

    with pytest.raises(StoreUnavailableError, match="sink 'a' did not commit epoch 1"):
        world.work()
    assert world.sinks["b"].rows() == rows_of(0)
    world.work()

    assert world.sinks["a"].rows() == world.sinks["b"].rows() == ALL_ROWS


def test_every_sink_that_fails_is_told_of_though_one_error_is_raised() -> None:
    world = World()
    world.sinks["a"].failing_commits = world.sinks["b"].failing_commits = 3

    with pytest.raises(StoreUnavailableError, match="sink 'a' did not commit epoch 1") as failed:
        world.work()

    assert failed.value.__notes__ == ["sink 'b' failed too: OSError: the disk is having a day"]


def test_an_error_of_ours_in_a_commit_names_the_sink_and_says_what_holds() -> None:
    world = World()
    sink = world.sinks["b"]

    def lose(step: Step) -> None:
        if (step.name, step.when) == ("publish", "after"):
            sink.staged.clear()

    run = world.start(lose)
    with pytest.raises(StagedOutputGoneError) as gone:
        run.run_epoch(0, nullcontext(rows_of(0)), capture_of(0))

    assert gone.value.__notes__ == ["sink 'b' did not commit epoch 1, which is decided and safe"]
    assert gone.value.hint is not None
    assert "start the flow again" in gone.value.hint


def test_a_run_that_stopped_at_an_epoch_begins_no_other() -> None:
    world = World()
    world.sinks["a"].failing_commits = 3
    run = world.start()
    with pytest.raises(StoreUnavailableError):
        run.run_epoch(0, nullcontext(rows_of(0)), capture_of(0))

    with pytest.raises(ConflictError, match="only a new start"):
        run.run_epoch(1, nullcontext(rows_of(1)), capture_of(1))


def test_a_sink_that_cannot_say_stops_the_start_with_the_question() -> None:
    world = World()
    assert world.crash_at("commit", "before", epoch=1)
    world.sinks["b"].answer = Outcome.UNKNOWN

    with pytest.raises(SinkOutcomeUnknownError) as asked:
        world.start()

    assert asked.value.sink == "b"
    assert asked.value.hint is not None
    assert "holdfast recover --sink b" in asked.value.hint


def test_a_sink_that_is_not_declared_any_more_is_asked_about_even_if_its_epoch_came_last_moment() -> (
    None
):  # I3
    world = World()
    old = world.start()
    old.run_epoch(0, nullcontext(rows_of(0)), capture_of(0))
    old.stop()
    old = world.start()
    both = dict(world.sinks)
    del world.sinks["b"]
    coordinator = world.coordinator()
    plan = coordinator.plan()
    both["a"].failing_commits = both["b"].failing_commits = 3
    with pytest.raises(StoreUnavailableError):
        old.run_epoch(1, nullcontext(rows_of(1)), capture_of(1))

    with pytest.raises(SinkOutcomeUnknownError) as asked:
        coordinator.start(plan)

    assert (asked.value.sink, asked.value.epoch) == ("b", 2)
    assert "not declared any more" in asked.value.__notes__[0]


def test_a_sink_whose_staged_output_is_gone_is_named_to_be_fed_again() -> None:
    world = World()
    assert world.crash_at("commit", "before", epoch=1)
    world.sinks["b"].staged.clear()
    coordinator = world.coordinator()

    started = coordinator.start(coordinator.plan())
    assert started.to_feed_again == ("b",)
    assert started.run.last is not None
    feeding = started.run.feed(started.to_feed_again, started.run.last)
    feeding.take(rows_of(0))
    started.run.end_feeding(feeding)
    world.work()

    assert world.sinks["a"].rows() == world.sinks["b"].rows() == ALL_ROWS


def test_an_epoch_that_cannot_be_run_again_stops_the_start_with_what_there_is_to_do() -> None:
    world = World()
    assert world.crash_at("commit", "before", epoch=1)
    world.sinks["b"].staged.clear()
    coordinator = world.coordinator()
    started = coordinator.start(coordinator.plan())

    with pytest.raises(CorruptError, match=r"'b' lost what was staged.*epoch 1.* holds no logs") as stuck:
        started.plan.to_run_last_again(PartitionedCheckpointStore(world.blobs), started.to_feed_again)

    assert stuck.value.hint is not None
    assert "holdfast recover --sink b --outcome committed" in stuck.value.hint


def test_a_sink_that_shows_an_epoch_nobody_decided_is_a_conflict_and_fences_nobody() -> None:
    world = World()
    world.work(until=2)
    head = PartitionedCheckpointStore(world.blobs).ledger.read().head
    world.sinks["a"].shown[9] = (str(CheckpointId.now()), [1])

    with pytest.raises(ConflictError, match="shows epoch 9"):
        world.start()

    assert PartitionedCheckpointStore(world.blobs).ledger.read().head == head


def test_a_sink_that_shows_another_checkpoint_under_an_epochs_number_is_a_conflict() -> None:
    world = World()
    world.work(until=2)
    world.sinks["a"].shown[2] = (str(CheckpointId.now()), [1])

    with pytest.raises(ConflictError, match="the ledger decided"):
        world.start()


def test_a_batch_out_of_order_is_refused() -> None:
    world = World()
    run = world.start()

    with pytest.raises(ConflictError, match="batch 0 is next"):
        run.run_epoch(3, nullcontext(rows_of(3)), capture_of(3))


def test_an_epoch_number_is_never_used_twice_after_a_failed_attempt_was_decided() -> None:  # I6
    world = World()
    assert world.crash_at("publish", "after", epoch=2)

    world.work()

    decisions = PartitionedCheckpointStore(world.blobs).ledger.read().timeline
    assert [decision.epoch for decision in decisions] == [1, 2, 3, 4]
    assert len({decision.checkpoint_id for decision in decisions}) == BATCHES


def test_a_run_prunes_now_and_then_and_an_epoch_never_fails_for_it() -> None:
    world = World()
    store = PartitionedCheckpointStore(world.blobs)
    limits = Limits(keep_checkpoints=2)
    coordinator = Coordinator(store, "orders/per_minute", world.sinks, identity=IDENTITY, limits=limits)
    run = coordinator.start(coordinator.plan()).run

    for batch in range(2 * BATCHES):
        run.run_epoch(batch, nullcontext(rows_of(batch)), capture_of(batch))
    run.stop()

    kept = PartitionedCheckpointStore(world.blobs).list_ids()
    assert 2 <= len(kept) < 2 * BATCHES
    assert run.last is not None
    assert kept[-1] == run.last.checkpoint_id
    assert verify_store(PartitionedCheckpointStore(world.blobs), read_data=True).ok


def test_a_commit_that_hangs_stops_the_flow_and_the_next_start_finishes_it() -> None:
    world = World()
    let_go = threading.Event()
    sink = world.sinks["a"]
    commit = sink.commit
    sink.commit = lambda *_: let_go.wait(30)  # type: ignore[method-assign, assignment, misc]
    coordinator = Coordinator(
        PartitionedCheckpointStore(world.blobs),
        "orders/per_minute",
        world.sinks,
        identity=IDENTITY,
        limits=Limits(commit_seconds=0.05),
    )
    run = coordinator.start(coordinator.plan()).run

    with pytest.raises(StoreUnavailableError, match=r"sink 'a' did not commit epoch 1: still not back"):
        run.run_epoch(0, nullcontext(rows_of(0)), capture_of(0))
    let_go.set()
    sink.commit = commit  # type: ignore[method-assign]
    world.work()

    assert world.sinks["a"].rows() == world.sinks["b"].rows() == ALL_ROWS
