"""Which checkpoint a start resumes from, what it replays, and when it refuses to guess."""

from __future__ import annotations

import json

import pytest

from holdfast.blobs.memory import MemoryBlobs
from holdfast.errors import StoreUnavailableError, UnsupportedFormatError
from holdfast.ids import CheckpointId
from holdfast.layout import ledger_key
from holdfast.ledger import (
    Author,
    EpochRecord,
    OutcomeRecord,
    PruneRecord,
    RestoreRecord,
    StartRecord,
    StopRecord,
    new_writer,
)
from holdfast.ledger.records import open_bytes, seal_bytes
from holdfast.manifest import CheckpointManifestV2
from holdfast.recovery import plan_recovery, plan_running_again
from holdfast.store import PartitionedCheckpointStore
from holdfast.testing import FaultyBlobs


class Flow:
    """A flow with a sink, one batch an epoch."""

    def __init__(self, blobs=None) -> None:
        self.blobs = blobs or MemoryBlobs()
        self.store = PartitionedCheckpointStore(self.blobs)
        self.author = self.start()

    def start(self) -> Author:
        record = self.store.ledger.append(StartRecord(), author=Author(0, new_writer()))
        self.author = Author(record.n, record.writer)
        return self.author

    def checkpoint(self, batch: int | None = None, *, parent: CheckpointId | None = None, logs=True):
        epoch = self.store.ledger.read().highest_epoch + 1
        batch = epoch - 1 if batch is None else batch
        writer = self.store.writer(epoch, parent, author=self.author)
        writer.add("0", 0, f"state {epoch}".encode() * 50, delta=parent is not None)
        writer.batches = (batch, batch)
        writer.receipts = {"db": [{"rows": epoch}]}
        writer.logs = {f"offsets/{batch}": "v1", f"commits/{batch}": "v1"} if logs else {}
        writer.publish()
        return writer.record

    def light(self, batch: int | None = None, **fields):
        epoch = self.store.ledger.read().highest_epoch + 1
        batch = epoch - 1 if batch is None else batch
        fields = {"logs": {f"offsets/{batch}": "v1"}, "receipts": {"db": [1]}} | fields
        draft = EpochRecord(epoch=epoch, checkpoint_id=CheckpointId.now(), batches=(batch, batch), **fields)
        return self.store.ledger.append(draft, author=self.author)

    def damage(self, key: str) -> None:
        data = bytearray(self.blobs.get(key))
        data[len(data) // 2] ^= 4
        self.blobs.put(key, bytes(data))

    def damage_manifest(self, record) -> None:
        self.damage(self.store.paths.manifest(record.checkpoint_id))

    def damage_state(self, record) -> None:
        (batch,) = [
            info.key
            for info in self.blobs.list(self.store.paths.checkpoint_dir(record.checkpoint_id))
            if "/batch-" in info.key
        ]
        self.damage(batch)

    def plan(self):
        return plan_recovery(PartitionedCheckpointStore(self.blobs))


@pytest.fixture
def flow() -> Flow:
    return Flow()


def test_nothing_was_ever_decided_so_the_start_is_fresh(flow) -> None:
    plan = flow.plan()

    assert (plan.verdict, plan.chosen, plan.replay, plan.examined) == ("fresh", None, (), 0)
    assert plan_recovery(PartitionedCheckpointStore(MemoryBlobs())).verdict == "fresh"


def test_the_newest_sound_checkpoint_is_resumed_from_and_nothing_else_is_looked_at(flow) -> None:
    flow.checkpoint()
    newest = flow.checkpoint()

    plan = flow.plan()

    assert (plan.verdict, plan.chosen, plan.chosen_record) == ("resume", newest.checkpoint_id, newest.n)
    assert (plan.examined, plan.skipped, plan.stepped_back) == (1, (), False)


def test_pending_sinks_are_the_flows_to_resolve_and_no_reason_to_step_back(flow) -> None:
    writer = flow.store.writer(1, author=flow.author)
    writer.add("0", 0, b"state")
    from holdfast.manifest import SinkCommitStatus

    writer.manifest.sink_commit_statuses = {"db": SinkCommitStatus.PENDING}
    writer.receipts = {"db": [1]}
    writer.publish()

    assert flow.plan().verdict == "resume"


@pytest.mark.parametrize("damage", ["damage_manifest", "damage_state"])
def test_a_corrupt_newest_checkpoint_is_rebuilt_by_replaying_its_epoch(flow, damage) -> None:
    good, bad = flow.checkpoint(), flow.checkpoint()
    getattr(flow, damage)(bad)

    plan = flow.plan()

    assert (plan.verdict, plan.chosen, plan.replay) == ("replay", good.checkpoint_id, (bad,))
    assert [skipped.id for skipped in plan.skipped] == [bad.checkpoint_id]
    assert plan.skipped[0].reason
    assert (plan.examined, plan.stepped_back) == (2, True)


def test_a_missing_manifest_that_the_ledger_names_is_corrupt(flow) -> None:
    good, bad = flow.checkpoint(), flow.checkpoint()
    flow.blobs.delete(flow.store.paths.manifest(bad.checkpoint_id))

    plan = flow.plan()

    assert (plan.verdict, plan.chosen, plan.replay) == ("replay", good.checkpoint_id, (bad,))
    assert "missing" in plan.skipped[0].reason


def test_a_delta_is_as_good_as_its_whole_chain(flow) -> None:
    first = flow.checkpoint()
    child = flow.checkpoint(parent=first.checkpoint_id)
    grandchild = flow.checkpoint(parent=child.checkpoint_id)
    flow.damage_state(child)

    plan = flow.plan()

    assert (plan.chosen, plan.replay) == (first.checkpoint_id, (child, grandchild))
    assert [skipped.id for skipped in plan.skipped] == [grandchild.checkpoint_id, child.checkpoint_id]


def test_light_epochs_are_replayed_oldest_first(flow) -> None:
    good = flow.checkpoint()
    lights = (flow.light(), flow.light(), flow.light())

    plan = flow.plan()

    assert (plan.verdict, plan.chosen, plan.replay) == ("replay", good.checkpoint_id, lights)
    assert not plan.stepped_back


def test_the_state_a_stop_took_along_saves_the_replay(flow) -> None:
    flow.checkpoint()
    last = flow.light()
    writer = flow.store.writer(3, author=flow.author)
    writer.add("0", 0, b"state after epoch 2")
    writer.manifest.epoch = last.epoch
    manifest = writer.write()
    flow.store.ledger.append(
        StopRecord(epoch=last.epoch, checkpoint_id=writer.id, seal=manifest.seal), author=flow.author
    )

    plan = flow.plan()
    assert (plan.verdict, plan.chosen, plan.chosen_record) == ("resume", writer.id, last.n)

    flow.damage(flow.store.paths.manifest(writer.id))
    plan = flow.plan()
    assert (plan.verdict, plan.replay) == ("replay", (last,))
    assert plan.skipped[0].id == writer.id


def test_a_store_that_does_not_answer_stops_the_plan_and_proves_nothing() -> None:
    flow = Flow(FaultyBlobs(MemoryBlobs()))
    flow.checkpoint()
    newest = flow.checkpoint()
    flow.blobs.fail("get", key=flow.store.paths.manifest(newest.checkpoint_id), times=None)

    with pytest.raises(StoreUnavailableError):
        flow.plan()


def test_a_manifest_of_a_newer_version_stops_the_plan(flow) -> None:
    flow.checkpoint()
    newest = flow.checkpoint()
    key = flow.store.paths.manifest(newest.checkpoint_id)
    manifest = CheckpointManifestV2.from_json(flow.blobs.get(key)).replaced(version=3).sealed()
    flow.blobs.put(key, manifest.to_json())
    record = open_bytes(flow.blobs.get(ledger_key(newest.n)), "k") | {"seal": manifest.seal}
    flow.blobs.put(ledger_key(newest.n), seal_bytes(record))

    with pytest.raises(UnsupportedFormatError):
        flow.plan()


def test_a_corrupt_newest_record_stops_the_start_and_names_the_way_out(flow) -> None:
    good, lost = flow.checkpoint(), flow.checkpoint()
    flow.damage(ledger_key(lost.n))

    plan = flow.plan()

    assert (plan.verdict, plan.chosen, plan.replay) == ("stuck", good.checkpoint_id, ())
    assert ledger_key(lost.n) in plan.reason
    assert plan.command == f"holdfast restore {good.checkpoint_id} --to DIR"
    assert "not supported yet" in plan.advice
    assert plan.hint == f"{plan.command}; {plan.advice}"


def test_after_the_restore_that_leads_out_a_start_resumes(flow) -> None:
    good, lost = flow.checkpoint(), flow.checkpoint()
    flow.damage(ledger_key(lost.n))
    flow.store = PartitionedCheckpointStore(flow.blobs)
    flow.start()
    flow.store.ledger.append(RestoreRecord(to=good.n, sinks="rewind"), author=flow.author)

    plan = flow.plan()
    assert (plan.verdict, plan.chosen) == ("resume", good.checkpoint_id)

    flow.light(batch=1)
    plan = flow.plan()
    assert (plan.verdict, plan.chosen, [d.epoch for d in plan.replay]) == ("replay", good.checkpoint_id, [3])


def test_a_restore_to_a_decision_that_is_corrupt_by_now_stops_the_start(flow) -> None:
    flow.checkpoint()
    target = flow.checkpoint()
    flow.checkpoint()
    flow.store.ledger.append(RestoreRecord(to=target.n, sinks="rewind"), author=flow.author)
    flow.damage(ledger_key(target.n))

    plan = flow.plan()

    assert plan.verdict == "stuck"
    assert ledger_key(target.n) in plan.reason


def test_any_corrupt_record_newer_than_the_newest_good_checkpoint_stops_the_start(flow) -> None:
    flow.checkpoint()
    flow.light()
    outcome = flow.store.ledger.append(OutcomeRecord(epoch=2), author=flow.author)
    flow.light()
    flow.damage(ledger_key(outcome.n))

    assert flow.plan().verdict == "stuck"


def test_a_corrupt_record_older_than_the_newest_good_checkpoint_stops_nothing(flow) -> None:
    first = flow.checkpoint()
    newest = flow.checkpoint()
    flow.damage(ledger_key(first.n))

    plan = flow.plan()

    assert (plan.verdict, plan.chosen) == ("resume", newest.checkpoint_id)


def test_a_hole_newer_than_the_newest_good_checkpoint_stops_the_start(flow) -> None:
    flow.checkpoint()
    lost = flow.light()
    flow.light()
    flow.blobs.delete(ledger_key(lost.n))

    assert flow.plan().verdict == "stuck"


def test_what_has_no_logs_cannot_be_replayed(flow) -> None:
    flow.checkpoint()
    bad = flow.checkpoint(logs=False)
    flow.damage_manifest(bad)

    plan = flow.plan()

    assert plan.verdict == "stuck"
    assert "no logs" in plan.reason


def test_a_missing_log_object_stops_the_replay(flow) -> None:
    flow.checkpoint()
    from holdfast.ledger import INLINE_BYTES, store_logs

    logs = store_logs(flow.blobs, 2, CheckpointId.now(), {"offsets/1": "x" * (INLINE_BYTES + 1)})
    flow.light(logs=logs)
    assert flow.plan().verdict == "replay"
    flow.blobs.delete(logs["offsets/1"].key)

    plan = flow.plan()

    assert plan.verdict == "stuck"
    assert logs["offsets/1"].key in plan.reason


def test_batches_that_do_not_follow_each_other_are_not_replayed(flow) -> None:
    flow.checkpoint()
    flow.light(batch=3)

    plan = flow.plan()

    assert plan.verdict == "stuck"
    assert "batch" in plan.reason


def test_without_any_sound_checkpoint_a_whole_flow_is_replayed_from_its_beginning(flow) -> None:
    first, second = flow.checkpoint(), flow.light()
    flow.damage_manifest(first)

    plan = flow.plan()

    assert (plan.verdict, plan.chosen, plan.replay) == ("replay", None, (first, second))


def test_an_abandoned_checkpoint_is_never_chosen_or_replayed(flow) -> None:
    good = flow.checkpoint()
    flow.checkpoint()
    flow.light()
    flow.store.ledger.append(RestoreRecord(to=good.n, sinks="rewind"), author=flow.author)

    plan = flow.plan()

    assert (plan.verdict, plan.chosen, plan.replay, plan.examined) == ("resume", good.checkpoint_id, (), 1)


def test_a_pruned_checkpoint_counts_as_deleted_though_it_still_lies_there(flow) -> None:
    good, pruned = flow.checkpoint(), flow.checkpoint()
    flow.store.ledger.append(PruneRecord(ids=[pruned.checkpoint_id]), author=flow.author)

    plan = flow.plan()

    assert (plan.verdict, plan.chosen) == ("replay", good.checkpoint_id)
    assert "prune" in plan.skipped[0].reason


def captured(store: PartitionedCheckpointStore, epoch: int) -> CheckpointId:
    writer = store.writer(epoch)
    writer.add("0", 0, b"state %d" % epoch)
    writer.publish()
    return writer.id


def test_what_is_run_again_begins_before_a_checkpoint_that_is_damaged(flow) -> None:
    good, bad, last = flow.checkpoint(), flow.checkpoint(), flow.checkpoint()
    flow.damage_state(bad)

    plan = plan_running_again(flow.store, flow.store.ledger.read())

    assert flow.plan().verdict == "resume"
    assert (plan.verdict, plan.chosen, plan.replay) == ("replay", good.checkpoint_id, (bad, last))


def test_what_is_run_again_from_the_beginning_has_every_epoch_since(flow) -> None:
    first = flow.checkpoint()

    plan = plan_running_again(flow.store, flow.store.ledger.read())

    assert (plan.verdict, plan.chosen, plan.replay) == ("replay", None, (first,))


def test_what_cannot_be_run_again_says_why(flow) -> None:
    bad = flow.checkpoint(logs=False)
    flow.checkpoint()
    flow.damage_state(bad)

    plan = plan_running_again(flow.store, flow.store.ledger.read())

    assert plan.verdict == "stuck"
    assert "epoch 1" in plan.reason
    assert "holdfast verify --read-data" in plan.hint


def test_a_store_without_sinks_steps_back_over_a_corrupt_checkpoint_and_says_so() -> None:
    blobs = MemoryBlobs()
    store = PartitionedCheckpointStore(blobs)
    good, bad = captured(store, 1), captured(store, 2)
    blobs.put(store.paths.manifest(bad), b"{}")

    plan = plan_recovery(store)

    assert (plan.verdict, plan.chosen, plan.stepped_back) == ("resume", good, True)


def test_when_every_checkpoint_is_corrupt_nothing_starts_afresh_in_silence() -> None:
    blobs = MemoryBlobs()
    store = PartitionedCheckpointStore(blobs)
    for epoch in (1, 2):
        blobs.put(store.paths.manifest(captured(store, epoch)), b"{}")

    plan = plan_recovery(store)

    assert (plan.verdict, plan.chosen, plan.examined) == ("stuck", None, 2)


def test_a_tree_of_somebody_else_without_a_ledger_is_resumed_from_its_newest_sound_manifest() -> None:
    blobs = MemoryBlobs()
    store = PartitionedCheckpointStore(blobs)
    ids = [CheckpointId.now(), CheckpointId.now()]
    for epoch, id in enumerate(ids, 1):
        blobs.put(store.paths.manifest(id), CheckpointManifestV2.new(id, epoch).to_json())
    assert plan_recovery(store).chosen == ids[1]

    blobs.put(store.paths.manifest(ids[1]), b"garbage")

    plan = plan_recovery(store)
    assert (plan.verdict, plan.chosen, plan.examined) == ("resume", ids[0], 2)


def test_a_flow_whose_ledger_is_gone_does_not_start_from_the_beginning(flow) -> None:
    flow.checkpoint()
    for info in list(flow.blobs.list("ledger/")):
        flow.blobs.delete(info.key)

    plan = flow.plan()

    assert plan.verdict == "stuck"
    assert "ledger is gone" in plan.reason


def test_a_plan_is_json(flow) -> None:
    good, bad = flow.checkpoint(), flow.checkpoint()
    flow.damage_manifest(bad)

    printed = json.loads(json.dumps(flow.plan().to_json()))

    assert printed["verdict"] == "replay"
    assert printed["chosen"] == str(good.checkpoint_id)
    assert printed["skipped"][0]["id"] == str(bad.checkpoint_id)
    assert printed["replay"] == [
        {
            "record": bad.n,
            "epoch": 2,
            "checkpoint_id": str(bad.checkpoint_id),
            "batches": [1, 1],
        }
    ]
