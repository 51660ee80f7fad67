"""Who may append what, and what happens to those who were not first."""

from __future__ import annotations

import json

import pytest

from holdfast.blobs.memory import MemoryBlobs
from holdfast.errors import (
    ConflictError,
    CorruptError,
    EpochTakenError,
    FencedError,
    InvalidInputError,
    KeyExistsError,
    OutcomeUnknownError,
)
from holdfast.ids import CheckpointId
from holdfast.layout import ledger_key
from holdfast.ledger import (
    Author,
    CheckpointRecord,
    EpochRecord,
    HoldRecord,
    Ledger,
    OutcomeRecord,
    PruneRecord,
    RestoreRecord,
    StalePlanError,
    StartRecord,
    StopRecord,
    new_writer,
)
from holdfast.manifest import SinkCommitStatus

LIBRARY = Author(0, new_writer())


def checkpoint(epoch: int, id: CheckpointId | None = None) -> CheckpointRecord:
    return CheckpointRecord(epoch=epoch, checkpoint_id=id or CheckpointId.now(), seal="5" * 64)


def start(ledger: Ledger) -> Author:
    record = ledger.append(StartRecord(), author=Author(0, new_writer()))
    return Author(record.n, record.writer)


@pytest.fixture
def blobs() -> MemoryBlobs:
    return MemoryBlobs()


@pytest.fixture
def ledger(blobs: MemoryBlobs) -> Ledger:
    return Ledger(blobs, now_ms=lambda: 1_700_000_000_000)


def test_records_are_numbered_from_one_and_chained_by_the_hash_of_the_bytes(blobs, ledger) -> None:
    import hashlib

    first = ledger.append(checkpoint(1), author=LIBRARY)
    second = ledger.append(checkpoint(2), author=LIBRARY)

    assert (first.n, first.prev, first.after) == (1, None, 0)
    assert (second.n, second.after) == (2, 1)
    assert second.prev == hashlib.sha256(blobs.get(ledger_key(1))).hexdigest()


def test_a_record_ends_in_its_own_digest_and_starts_with_the_common_fields(blobs, ledger) -> None:
    ledger.append(checkpoint(1), author=LIBRARY)

    data = blobs.get("ledger/000000000001.json")

    assert data[-77:-66] == b',"sha256":"'
    assert list(json.loads(data))[:6] == ["n", "kind", "generation", "writer", "at_ms", "prev"]
    assert list(json.loads(data))[-1] == "sha256"


def test_a_generation_is_the_number_of_its_start_record(ledger) -> None:
    ledger.append(checkpoint(1), author=LIBRARY)

    record = ledger.append(StartRecord(), author=Author(0, new_writer()))

    assert (record.n, record.generation) == (2, 2)
    assert ledger.read().generation == 2
    assert ledger.read().writer == record.writer


def test_a_fenced_generation_can_append_no_decision_restore_stop_or_prune(blobs, ledger) -> None:
    old = start(ledger)
    ledger.append(checkpoint(1), author=old)
    new = start(Ledger(blobs))

    for draft in (
        checkpoint(2),
        EpochRecord(epoch=2, checkpoint_id=CheckpointId.now()),
        RestoreRecord(to=2),
        StopRecord(),
        PruneRecord(keys=["checkpoints/x"]),
    ):
        with pytest.raises(FencedError) as raised:
            ledger.append(draft, author=old)
        assert (raised.value.generation, raised.value.newer, raised.value.writer) == (
            old.generation,
            new.generation,
            new.writer,
        )

    assert ledger.read().head == new.generation


def test_a_fenced_generation_may_still_say_how_its_sinks_got_on(blobs, ledger) -> None:
    old = start(ledger)
    ledger.append(checkpoint(1), author=old)
    start(Ledger(blobs))

    ledger.append(OutcomeRecord(epoch=1, statuses={"db": SinkCommitStatus.COMMITTED}), author=old)

    assert ledger.read().statuses(1) == {"db": SinkCommitStatus.COMMITTED}


def test_where_a_runner_decides_a_library_writer_gets_a_conflict(ledger) -> None:
    start(ledger)

    with pytest.raises(ConflictError, match="a runner decides here"):
        ledger.append(checkpoint(1), author=LIBRARY)


def test_a_writer_that_claims_anothers_generation_is_fenced(ledger) -> None:
    author = start(ledger)

    with pytest.raises(FencedError):
        ledger.append(checkpoint(1), author=Author(author.generation, new_writer()))


def test_an_author_whose_start_is_not_in_the_ledger_gets_a_conflict(ledger) -> None:
    with pytest.raises(ConflictError, match="no start record"):
        ledger.append(checkpoint(1), author=Author(7, new_writer()))


def test_of_two_writers_with_one_epoch_the_slower_loses_it(blobs, ledger) -> None:
    rival = Ledger(blobs)
    ledger.read()
    rival.append(checkpoint(1), author=Author(0, new_writer()))

    with pytest.raises(EpochTakenError) as raised:
        ledger.append(checkpoint(1), author=LIBRARY)

    assert (raised.value.epoch, raised.value.record) == (1, 1)


def test_an_append_that_lost_to_an_unrelated_record_tries_again_at_the_new_head(blobs, ledger) -> None:
    first = ledger.append(checkpoint(1), author=LIBRARY)
    Ledger(blobs).append(HoldRecord(checkpoint_id=first.checkpoint_id, name="audit"), author=LIBRARY)

    record = ledger.append(checkpoint(2), author=LIBRARY)

    assert (record.n, record.after) == (3, 1)
    assert not ledger.read().problems


def test_epoch_numbers_only_grow(ledger) -> None:
    ledger.append(checkpoint(5), author=LIBRARY)

    with pytest.raises(ConflictError, match="only grow"):
        ledger.append(checkpoint(3), author=LIBRARY)


def test_an_abandoned_epoch_number_is_never_used_again(ledger) -> None:
    author = start(ledger)
    first = ledger.append(checkpoint(1), author=author)
    ledger.append(checkpoint(2), author=author)
    ledger.append(RestoreRecord(to=first.n), author=author)

    with pytest.raises(EpochTakenError):
        ledger.append(checkpoint(2), author=author)

    assert ledger.append(checkpoint(3), author=author).after == first.n


def test_a_restore_leads_to_a_decision_and_nowhere_else(ledger) -> None:
    author = start(ledger)
    ledger.append(OutcomeRecord(epoch=1), author=author)

    for to in (1, 2, 9):
        with pytest.raises(InvalidInputError):
            ledger.append(RestoreRecord(to=to), author=author)

    assert ledger.append(RestoreRecord(to=0), author=author).to == 0


def test_a_start_planned_before_another_start_plans_again(blobs, ledger) -> None:
    planned = ledger.read()
    start(Ledger(blobs))

    with pytest.raises(StalePlanError) as raised:
        ledger.append_start(StartRecord(), writer=new_writer(), after_head=planned.head)

    assert (raised.value.record, raised.value.kind) == (1, "start")


@pytest.mark.parametrize("kind", ["restore", "prune", "stop"])
def test_a_start_planned_before_a_restore_prune_or_stop_plans_again(blobs, ledger, kind) -> None:
    other = Ledger(blobs)
    author = start(other)
    planned = ledger.read()
    draft = {"restore": RestoreRecord(to=0), "prune": PruneRecord(keys=["x"]), "stop": StopRecord()}[kind]
    other.append(draft, author=author)

    with pytest.raises(StalePlanError):
        ledger.append_start(StartRecord(), writer=new_writer(), after_head=planned.head)


def test_a_start_takes_in_decisions_and_outcomes_that_came_after_its_plan(blobs, ledger) -> None:
    other = Ledger(blobs)
    author = start(other)
    planned = ledger.read()
    other.append(checkpoint(1), author=author)
    other.append(OutcomeRecord(epoch=1), author=author)

    record = ledger.append_start(StartRecord(), writer=new_writer(), after_head=planned.head)

    assert record.n == 4


def test_a_collector_whose_plan_is_older_than_a_new_child_or_hold_plans_again(blobs, ledger) -> None:
    kept = ledger.append(checkpoint(1), author=LIBRARY)
    planned = ledger.read()
    Ledger(blobs).append(HoldRecord(checkpoint_id=kept.checkpoint_id, name="audit"), author=LIBRARY)

    with pytest.raises(StalePlanError):
        ledger.append(PruneRecord(ids=[kept.checkpoint_id]), author=LIBRARY, planned_at=planned.head)


def test_nothing_refers_to_what_a_prune_record_names(ledger) -> None:
    first = ledger.append(checkpoint(1), author=LIBRARY)
    ledger.append(checkpoint(2), author=LIBRARY)
    mine = CheckpointId.now()
    ledger.append(PruneRecord(ids=[first.checkpoint_id, mine], keys=["checkpoints/x/batch"]), author=LIBRARY)

    with pytest.raises(ConflictError, match="is pruned"):
        ledger.append(HoldRecord(checkpoint_id=first.checkpoint_id, name="audit"), author=LIBRARY)
    with pytest.raises(ConflictError, match="is pruned"):
        ledger.append(RestoreRecord(to=first.n), author=LIBRARY)
    with pytest.raises(ConflictError, match="is pruned"):
        ledger.append(StartRecord(from_id=first.checkpoint_id), author=LIBRARY)
    with pytest.raises(ConflictError, match="is pruned"):
        ledger.append(checkpoint(3), author=LIBRARY, parent=first.checkpoint_id)
    with pytest.raises(ConflictError, match="is pruned"):
        ledger.append(checkpoint(3, mine), author=LIBRARY)
    with pytest.raises(ConflictError, match="is pruned"):
        ledger.append(checkpoint(3), author=LIBRARY, names=["checkpoints/x/batch"])


def test_a_runners_own_artifacts_named_by_a_prune_cannot_be_published(blobs, ledger) -> None:
    author = start(ledger)
    first = ledger.append(checkpoint(1), author=author)
    mine = CheckpointId.now()
    Ledger(blobs).append(PruneRecord(ids=[mine]), author=LIBRARY)

    with pytest.raises(ConflictError, match="is pruned"):
        ledger.append(checkpoint(2, mine), author=author, parent=first.checkpoint_id)


def test_an_abandoned_checkpoint_is_nobodys_parent(ledger) -> None:
    first = ledger.append(checkpoint(1), author=LIBRARY)
    second = ledger.append(checkpoint(2), author=LIBRARY)
    ledger.append(RestoreRecord(to=first.n), author=LIBRARY)

    with pytest.raises(ConflictError, match="abandoned"):
        ledger.append(checkpoint(3), author=LIBRARY, parent=second.checkpoint_id, since=2)

    assert ledger.append(checkpoint(3), author=LIBRARY, parent=first.checkpoint_id, since=2).after == first.n


def test_no_decision_follows_a_record_that_cannot_be_read_until_a_restore_says_so(blobs, ledger) -> None:
    first = ledger.append(checkpoint(1), author=LIBRARY)
    ledger.append(checkpoint(2), author=LIBRARY)
    blobs.put(ledger_key(2), b"\x00" + blobs.get(ledger_key(2))[1:])
    reopened = Ledger(blobs)

    with pytest.raises(CorruptError, match="it may hold a decision"):
        reopened.append(checkpoint(9), author=LIBRARY)
    reopened.append(RestoreRecord(to=first.n), author=LIBRARY)
    record = reopened.append(checkpoint(reopened.read().highest_epoch + 1), author=LIBRARY)

    assert (record.epoch, record.after) == (3, first.n)
    assert list(reopened.read().corrupt) == [2]


class LostReplies(MemoryBlobs):
    """The next create does, or does not, take effect, and nobody can tell."""

    def __init__(self, *, lands: bool, proven_by_reading: bool) -> None:
        super().__init__()
        self.lands = lands
        self.proven_by_reading = proven_by_reading
        self.armed = False

    def create(self, key, data) -> None:
        if not self.armed:
            return super().create(key, data)
        self.armed = False
        if self.lands:
            super().create(key, data)
        error = OutcomeUnknownError("no answer")
        error.proven_by_reading = self.proven_by_reading
        raise error


@pytest.mark.parametrize("lands", [True, False])
def test_an_unknown_outcome_is_read_back_until_it_is_settled(lands) -> None:
    blobs = LostReplies(lands=lands, proven_by_reading=True)
    ledger = Ledger(blobs)
    blobs.armed = True

    record = ledger.append(checkpoint(1), author=LIBRARY)

    assert Ledger(blobs).read().record(1) == record


def test_a_failed_fsync_ends_the_process_and_the_next_start_makes_sure() -> None:
    blobs = LostReplies(lands=True, proven_by_reading=False)
    ledger = Ledger(blobs)
    blobs.armed = True

    with pytest.raises(OutcomeUnknownError) as raised:
        ledger.append(checkpoint(1), author=LIBRARY)
    assert raised.value.hint is not None
    before = blobs.head(ledger_key(1))
    next_start = Ledger(blobs)
    next_start.reassert_head()

    assert blobs.head(ledger_key(1)).etag != before.etag, "the head was not written again"
    assert next_start.read().newest_decision.epoch == 1


def test_an_own_record_that_an_earlier_try_got_through_is_a_success() -> None:
    class Retried(MemoryBlobs):
        def create(self, key, data) -> None:
            super().create(key, data)
            raise KeyExistsError(key)

    record = Ledger(Retried()).append(checkpoint(1), author=LIBRARY)

    assert record.n == 1


def test_logs_are_inline_up_to_their_limit_and_objects_above_it(blobs, ledger) -> None:
    from holdfast.ledger import INLINE_BYTES, LogObject, store_logs

    id = CheckpointId.now()
    logs = {"offsets/1": "v1\n{}", "sources/0/1": "é" * (INLINE_BYTES // 2), "commits/1": "v1"}

    draft = CheckpointRecord(epoch=1, checkpoint_id=id, seal="5" * 64, logs=store_logs(blobs, 1, id, logs))
    record = ledger.append(draft, author=LIBRARY)
    reread = Ledger(blobs).read().record(1)

    assert isinstance(record.logs["sources/0/1"], LogObject)
    assert record.logs["offsets/1"] == "v1\n{}"
    assert ledger.read_logs(reread) == logs


def test_a_log_object_that_is_missing_or_changed_is_corrupt(blobs, ledger) -> None:
    from holdfast.ledger import INLINE_BYTES, store_logs

    id = CheckpointId.now()
    stored = store_logs(blobs, 1, id, {"offsets/1": "x" * (INLINE_BYTES + 1)})
    record = ledger.append(EpochRecord(epoch=1, checkpoint_id=id, logs=stored), author=LIBRARY)
    key = stored["offsets/1"].key

    blobs.put(key, b"y" + blobs.get(key)[1:])
    with pytest.raises(CorruptError, match="digest"):
        ledger.read_logs(record)
    blobs.delete(key)
    with pytest.raises(CorruptError, match="missing"):
        ledger.read_logs(record)


def test_impossible_drafts_are_refused_before_anything_is_written(blobs, ledger) -> None:
    for draft in (
        checkpoint(0),
        OutcomeRecord(),
        OutcomeRecord(epoch=1, restore=1),
        PruneRecord(),
        EpochRecord(epoch=1, checkpoint_id=CheckpointId.now(), batches=(4, 3)),
        EpochRecord(epoch=1, checkpoint_id=CheckpointId.now(), receipts={"db": [1.5]}),
    ):
        with pytest.raises(InvalidInputError):
            ledger.append(draft, author=LIBRARY)

    assert not list(blobs.list(""))
