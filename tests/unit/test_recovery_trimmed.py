"""Retention, trimming, recovery: what is kept can be stepped back to, and a hold keeps nothing but itself."""

from __future__ import annotations

import pytest

from holdfast.blobs.memory import MemoryBlobs
from holdfast.errors import ConflictError
from holdfast.ids import CheckpointId
from holdfast.ledger import Author, EpochRecord, HoldRecord, RestoreRecord, StartRecord, new_writer
from holdfast.recovery import plan_recovery
from holdfast.store import PartitionedCheckpointStore


class Flow:
    """Checkpoints with light epochs in between, one batch an epoch."""

    def __init__(self) -> None:
        self.blobs = MemoryBlobs()
        self.store = PartitionedCheckpointStore(self.blobs)
        record = self.store.ledger.append(StartRecord(), author=Author(0, new_writer()))
        self.store.author = Author(record.n, record.writer)

    def run(self, checkpoints: int, *, light: int) -> list[CheckpointId]:
        ids = []
        for _ in range(checkpoints):
            epoch = self.store.ledger.read().highest_epoch + 1
            writer = self.store.writer(epoch, author=self.store.author)
            writer.add("0", 0, b"state %d" % epoch)
            writer.batches = (epoch - 1, epoch - 1)
            writer.receipts = {"db": [epoch]}
            writer.logs = {f"offsets/{epoch - 1}": "v1"}
            writer.publish()
            ids.append(writer.id)
            for _ in range(light):
                self.light()
        return ids

    def light(self) -> None:
        epoch = self.store.ledger.read().highest_epoch + 1
        draft = EpochRecord(
            epoch=epoch,
            checkpoint_id=CheckpointId.now(),
            batches=(epoch - 1, epoch - 1),
            receipts={"db": [epoch]},
            logs={f"offsets/{epoch - 1}": "v1"},
        )
        self.store.ledger.append(draft, author=self.store.author)

    def next_run(self) -> None:
        self.store = PartitionedCheckpointStore(self.blobs)
        record = self.store.ledger.append(StartRecord(), author=Author(0, new_writer()))
        self.store.author = Author(record.n, record.writer)

    def records(self) -> int:
        return len(self.store.ledger.read().records)


@pytest.fixture
def flow() -> Flow:
    return Flow()


def test_after_a_trimming_recovery_still_steps_back_to_the_oldest_kept_checkpoint(flow) -> None:
    ids = flow.run(6, light=30)
    flow.store.prune(3)
    assert flow.records() < 120, "nothing was trimmed"

    for id in ids[:3:-1]:
        flow.blobs.put(flow.store.paths.manifest(id), b"{}")
    plan = plan_recovery(PartitionedCheckpointStore(flow.blobs))

    assert (plan.verdict, plan.chosen) == ("replay", ids[3])
    assert [decision.epoch for decision in plan.replay] == list(range(95, 187))


def test_a_held_checkpoint_of_long_ago_does_not_keep_the_ledger_from_being_trimmed(flow) -> None:
    ids = flow.run(1, light=30)
    flow.store.ledger.append(HoldRecord(checkpoint_id=ids[0], name="audit"), author=flow.store.author)
    ids += flow.run(5, light=30)

    flow.store.prune(2)

    history = PartitionedCheckpointStore(flow.blobs).ledger.read()
    assert len(history.records) < 80
    assert [id for id, _ in flow.store.list()] == [ids[0], ids[4], ids[5]]
    assert history.statuses(1) == {"db": history.statuses(1)["db"]}
    assert history.statuses(1)["db"].is_committed
    assert list(history.holds(now_ms=0)) == [(ids[0], "audit")]


def test_what_lies_between_a_held_checkpoint_and_the_kept_ones_is_not_replayed_in_silence(flow) -> None:
    ids = flow.run(1, light=30)
    flow.store.ledger.append(HoldRecord(checkpoint_id=ids[0], name="audit"), author=flow.store.author)
    ids += flow.run(5, light=30)
    flow.store.prune(2)
    for id in ids[1:]:
        flow.blobs.put(flow.store.paths.manifest(id), b"{}")

    plan = plan_recovery(PartitionedCheckpointStore(flow.blobs))

    assert (plan.verdict, plan.chosen) == ("stuck", ids[0])
    assert plan.command == f"holdfast restore {ids[0]} --to DIR"


def test_a_checkpoint_that_does_not_say_its_batches_is_no_bridge_over_trimmed_ones(flow) -> None:
    writer = flow.store.writer(1, author=flow.store.author)
    writer.add("0", 0, b"state 1")
    writer.receipts = {"db": [1]}
    writer.publish()
    flow.run(1, light=80)
    flow.store.ledger.append(HoldRecord(checkpoint_id=writer.id, name="audit"), author=flow.store.author)
    newer = flow.run(2, light=1)
    flow.store.prune(2)
    for id in newer:
        flow.blobs.put(flow.store.paths.manifest(id), b"{}")

    plan = plan_recovery(PartitionedCheckpointStore(flow.blobs))

    assert (plan.verdict, plan.chosen) == ("stuck", writer.id)
    assert "no more there" in plan.reason


def test_a_held_checkpoint_can_be_restored_after_everything_around_it_was_trimmed(flow) -> None:
    ids = flow.run(1, light=30)
    flow.store.ledger.append(HoldRecord(checkpoint_id=ids[0], name="audit"), author=flow.store.author)
    flow.run(5, light=30)
    flow.store.prune(2)
    flow.next_run()
    target = flow.store.ledger.read().decision_for(ids[0])

    flow.store.ledger.append(RestoreRecord(to=target.n, sinks="rewind"), author=flow.store.author)

    plan = plan_recovery(PartitionedCheckpointStore(flow.blobs))
    assert (plan.verdict, plan.chosen, plan.replay) == ("resume", ids[0], ())
    flow.light()
    history = flow.store.ledger.read()
    assert history.newest_decision.after == target.n
    assert history.highest_epoch == 187


def test_a_pruned_checkpoint_cannot_be_restored_or_held_once_its_record_is_gone(flow) -> None:
    ids = flow.run(6, light=30)
    number = flow.store.ledger.read().decision_for(ids[0]).n
    flow.store.prune(2)
    flow.next_run()

    with pytest.raises(ValueError, match="no decision"):
        flow.store.ledger.append(RestoreRecord(to=number), author=flow.store.author)
    with pytest.raises((LookupError, ConflictError)):
        flow.store.ledger.append(HoldRecord(checkpoint_id=ids[0], name="late"), author=flow.store.author)
