"""``recover --sink``: exit code 22 asks, a person answers, and the next start goes by the answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from click.testing import Result

from holdfast.blobs import FileBlobs
from holdfast.coordinator import (
    Coordinator,
    Decided,
    Epoch,
    Identity,
    Outcome,
    SinkFlow,
    SinkOutcomeUnknownError,
    StagedOutputGoneError,
    Started,
)
from holdfast.manifest import Receipt, SinkCommitStatus
from holdfast.store import CheckpointWriter, PartitionedCheckpointStore

Flow: TypeAlias = Any
Ask: TypeAlias = Callable[..., Result]
Document: TypeAlias = Callable[..., Any]


class Forgetful:
    """A sink that never knows what it shows; its output outlives the process that made it."""

    def __init__(self, shown: list[int]) -> None:
        self.shown = shown
        self.staged: dict[int, list[int]] = {}
        self.dies_committing = False

    def open(self, flow: SinkFlow) -> Epoch | None:
        return None

    def begin(self, epoch: Epoch) -> None:
        pass

    def prepare(self, batch: Sequence[int], epoch: Epoch, part: int) -> Receipt:
        self.staged[epoch.number] = list(batch)
        return {"rows": list(batch)}

    def commit(self, epoch: Epoch, receipts: Sequence[Receipt]) -> None:
        if self.dies_committing:
            raise KeyboardInterrupt
        if epoch.number not in self.staged:
            raise StagedOutputGoneError("db", epoch.number, "rows in memory")
        self.shown += self.staged[epoch.number]

    def abort(self, epoch: Epoch, receipts: Sequence[Receipt]) -> None:
        self.staged.pop(epoch.number, None)

    def outcome(self, epoch: Epoch, receipts: Sequence[Receipt]) -> Outcome:
        return Outcome.UNKNOWN

    def sweep(self, generation: int, decided: Decided) -> None:
        pass


class Pipeline:
    """One batch, decided; its sink died in the commit and cannot tell how far it got."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.shown: list[int] = []
        self.sink = Forgetful(self.shown)
        self.sink.dies_committing = True
        with pytest.raises(KeyboardInterrupt):
            self.start().run.run_epoch(0, nullcontext([1, 2]), _capture)
        self.sink.dies_committing = False

    def start(self) -> Started:
        coordinator = Coordinator(
            PartitionedCheckpointStore(FileBlobs(self.root)),
            "orders/total",
            {"db": self.sink},
            identity=Identity(pipeline_hash=7, topology={}),
        )
        return coordinator.start(coordinator.plan())


def _capture(writer: CheckpointWriter) -> None:
    writer.add("0", 0, b"state", delta=False)


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    return Pipeline(tmp_path / "flow")


def test_what_was_found_committed_is_left_alone(pipeline: Pipeline, ask: Ask) -> None:
    with pytest.raises(SinkOutcomeUnknownError) as asked:
        pipeline.start()
    told = asked.value.hint or ""

    result = ask(
        *told.split("holdfast ")[1].replace("committed|not", "committed").split(), "--store", pipeline.root
    )
    run = pipeline.start().run

    assert result.exit_code == 0, result.stderr
    assert "epoch 1 is committed in sink 'db'" in result.stdout
    assert "leaves its output as it is" in result.stdout
    assert pipeline.shown == []
    assert run.next_batch == 1


def test_what_was_found_missing_is_committed_by_the_next_start(pipeline: Pipeline, ask: Ask) -> None:
    result = ask("recover", "--sink", "db", "--outcome", "not", "--store", pipeline.root)
    started = pipeline.start()

    assert result.exit_code == 0, result.stderr
    assert "commits what was prepared" in result.stdout
    assert pipeline.shown == [1, 2]
    assert started.to_feed_again == ()
    # What the start did is on record: it never asks that question again.
    assert pipeline.start().run.next_batch == 1
    assert pipeline.shown == [1, 2]


def test_what_was_found_missing_and_is_staged_no_more_is_fed_again(pipeline: Pipeline, ask: Ask) -> None:
    pipeline.sink.staged.clear()

    ask("recover", "--sink", "db", "--outcome", "not", "--store", pipeline.root)

    assert pipeline.start().to_feed_again == ("db",)


def test_the_answer_is_on_record_with_who_gave_it(flow: Flow, ask: Ask, document: Document) -> None:
    id = flow.decide(1)

    told = document("recover", "--sink", "db", "--outcome", "not", "--store", flow.root)

    assert {
        key: told[key] for key in ("sink", "epoch", "checkpoint_id", "outcome", "record", "open_sinks")
    } == {
        "sink": "db",
        "epoch": 1,
        "checkpoint_id": str(id),
        "outcome": "not",
        "record": 3,
        "open_sinks": [],
    }
    record = document("log", "--last", "1", "--store", flow.root)[0]
    assert (record["kind"], record["n"]) == ("outcome", 3)
    assert "a person looked" in record["statuses"]["db"]["Failed"]
    assert "epoch 1: db " in ask("log", "--last", "1", "--store", flow.root).stdout


def test_the_other_sinks_stay_a_question_for_the_next_start(
    flow_at: Callable[..., Flow], tmp_path: Path, ask: Ask
) -> None:
    flow = flow_at(tmp_path / "two", sinks=("db", "lake"))
    flow.decide(1)

    result = ask("recover", "--sink", "db", "--outcome", "committed", "--store", flow.root)

    assert result.stdout.splitlines()[-1] == "still to be asked by the next start: lake"


def test_a_second_answer_is_refused_even_the_same(flow: Flow, ask: Ask) -> None:
    flow.decide(1)
    ask("recover", "--sink", "db", "--outcome", "not", "--store", flow.root)

    again = ask("recover", "--sink", "db", "--outcome", "committed", "--store", flow.root)

    assert again.exit_code == 11
    assert "on record already" in again.stderr
    assert flow.store.ledger.read().head == 3


def test_an_epoch_that_a_run_went_on_from_needs_no_answer(flow: Flow, ask: Ask) -> None:
    flow.decide(2, parent=flow.decide(1))

    result = ask("recover", "--sink", "db", "--outcome", "not", "--epoch", "1", "--store", flow.root)

    assert result.exit_code == 11
    assert "epoch 1 in sink 'db' is on record already: COMMITTED" in result.stderr


def test_an_abandoned_epoch_may_be_answered_and_nobody_takes_notice(flow: Flow, ask: Ask) -> None:
    flow.decide(1)
    flow.settle(1)
    flow.decide(2)
    flow.go_back_to(1)

    result = ask("recover", "--sink", "db", "--outcome", "not", "--epoch", "2", "--store", flow.root)

    assert result.exit_code == 0, result.stderr
    assert "takes no notice" in result.stdout


def test_a_sink_without_output_in_the_epoch_is_refused_with_those_that_have(flow: Flow, ask: Ask) -> None:
    flow.decide(1)

    result = ask("recover", "--sink", "bd", "--outcome", "not", "--store", flow.root)

    assert result.exit_code == 2
    assert "no output for a sink 'bd'" in result.stderr
    assert "hint: its sinks: db" in result.stderr


@pytest.mark.parametrize("more", [[], ["--epoch", "7"]])
def test_where_nothing_is_decided_there_is_nothing_to_answer(flow: Flow, ask: Ask, more: list[str]) -> None:
    result = ask("recover", "--sink", "db", "--outcome", "not", "--store", flow.root, *more)

    assert result.exit_code == 10
    assert flow.store.ledger.read().head == 1


def test_while_a_newer_decision_may_hide_the_epoch_has_to_be_named(flow: Flow, ask: Ask) -> None:
    flow.decide(1)
    flow.decide(2)
    flow.flip("ledger/000000000003.json")

    result = ask("recover", "--sink", "db", "--outcome", "not", "--store", flow.root)
    named = ask("recover", "--sink", "db", "--outcome", "not", "--epoch", "1", "--store", flow.root)

    assert result.exit_code == 20
    assert "--epoch N" in result.stderr
    assert named.exit_code == 0, named.stderr
    assert flow.store.ledger.read().statuses(1)["db"] == SinkCommitStatus.failed(
        "a person looked: the epoch is not shown"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sink", "db"], "takes both"),
        (["--outcome", "not"], "takes both"),
        (["--epoch", "1"], "takes --sink and --outcome"),
        (["--epoch", "1", "--dry-run"], "takes --sink and --outcome"),
        (["--dry-run", "--sink", "db", "--outcome", "not"], "one of them"),
        (["--sink", "db", "--outcome", "maybe"], "'maybe' is not one of 'committed', 'not'"),
    ],
)
def test_half_an_answer_is_a_wrong_call(flow: Flow, ask: Ask, arguments: list[str], message: str) -> None:
    flow.decide(1)

    result = ask("recover", *arguments, "--store", flow.root)

    assert result.exit_code == 2
    assert message in result.stderr
    assert flow.store.ledger.read().head == 2
