"""What a trimmed ledger keeps, for whom, and what those find who were asleep meanwhile."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from holdfast.blobs.memory import MemoryBlobs
from holdfast.errors import ConflictError, CorruptError, EpochTakenError, FencedError
from holdfast.ids import CheckpointId
from holdfast.layout import boundary_key, ledger_key
from holdfast.ledger import (
    Author,
    CheckpointRecord,
    EpochRecord,
    Gap,
    HoldRecord,
    Ledger,
    OutcomeRecord,
    PruneRecord,
    RestoreRecord,
    SavepointRecord,
    StartRecord,
    StopRecord,
    new_writer,
)
from holdfast.ledger.reading import Boundary, encode_boundary
from holdfast.ledger.records import encode_record
from holdfast.manifest import SinkCommitStatus

LIBRARY = Author(0, new_writer())
COMMITTED = {"db": SinkCommitStatus.COMMITTED}


class Flow:
    def __init__(self, blobs: MemoryBlobs) -> None:
        self.blobs = blobs
        self.ledger = Ledger(blobs, now_ms=lambda: 1000)
        self.author = LIBRARY

    def start(self, **fields):
        record = self.ledger.append(StartRecord(**fields), author=Author(0, new_writer()))
        self.author = Author(record.n, record.writer)
        return record

    def append(self, draft, **claim):
        return self.ledger.append(draft, author=self.author, **claim)

    def checkpoint(self, **claim):
        epoch = self.ledger.read().highest_epoch + 1
        draft = CheckpointRecord(
            epoch=epoch, checkpoint_id=CheckpointId.now(), seal="5" * 64, receipts={"db": [epoch]}
        )
        return self.append(draft, **claim)

    def light(self, count: int = 1):
        for _ in range(count):
            epoch = self.ledger.read().highest_epoch + 1
            draft = EpochRecord(epoch=epoch, checkpoint_id=CheckpointId.now(), receipts={"db": [epoch]})
            record = self.append(draft)
        return record

    def prune(self, *records):
        return self.append(PruneRecord(ids=[record.checkpoint_id for record in records]))

    def stop(self):
        return self.append(StopRecord())

    def trim(self, keep_from, is_gone=lambda prune: True) -> int:
        return self.ledger.trim(keep_from.n, is_gone=is_gone)

    def left(self) -> list[int]:
        return list(Ledger(self.blobs).read().records)


@pytest.fixture
def flow() -> Flow:
    return Flow(MemoryBlobs())


def a_finished_run(flow: Flow):
    """A start, a pruned checkpoint, light epochs, a stop: nothing anybody needs once a new run stands."""
    flow.start()
    old = flow.checkpoint()
    flow.light(3)
    flow.prune(old)
    flow.stop()
    return old


def test_what_nobody_needs_goes_and_the_present_stays(flow) -> None:
    a_finished_run(flow)
    start = flow.start()
    newest = flow.checkpoint()

    deleted = flow.trim(newest)

    history = Ledger(flow.blobs).read()
    assert deleted == start.n - 1
    assert flow.left() == [start.n, newest.n]
    assert (history.head, history.generation, history.highest_epoch) == (newest.n, start.n, newest.epoch)
    assert history.timeline == (newest,)
    assert not history.problems
    assert history.boundary == Boundary(newest.n - 1, 4, frozenset({start.n}))


def test_what_the_run_of_the_last_decision_declared_stays_though_newer_runs_decided_nothing(flow) -> None:
    declared = flow.start(pipeline_hash=7)
    flow.light(3)
    newest = flow.checkpoint()
    flow.stop()
    flow.start(pipeline_hash=8)
    flow.stop()

    flow.trim(newest)

    history = Ledger(flow.blobs).read()
    assert history.boundary.n == newest.n - 1
    assert history.record(history.newest_decision.generation) == declared


def test_the_highest_epoch_survives_in_the_boundary_alone(flow) -> None:
    a_finished_run(flow)
    flow.start()
    flow.append(RestoreRecord(to=0))
    flow.append(OutcomeRecord(restore=flow.ledger.read().head))
    flow.stop()
    start = flow.start()

    flow.trim(start)

    assert flow.left()[-1] == start.n
    assert Ledger(flow.blobs).read().highest_epoch == 4
    with pytest.raises(ConflictError):
        flow.append(EpochRecord(epoch=3, checkpoint_id=CheckpointId.now()))


def test_checkpoints_that_are_not_pruned_stay_with_what_is_known_of_their_sinks(flow) -> None:
    flow.start()
    kept = flow.checkpoint()
    outcome = flow.append(OutcomeRecord(epoch=1, receipts={"db": ["again"]}))
    successor = flow.light()
    flow.light(3)
    stop = flow.append(StopRecord(epoch=5, checkpoint_id=CheckpointId.now(), seal="7" * 64))
    savepoint = flow.ledger.append(
        SavepointRecord(epoch=5, checkpoint_id=CheckpointId.now(), key="savepoints/a"), author=LIBRARY
    )
    start = flow.start()
    newest = flow.checkpoint()

    flow.trim(newest)

    history = Ledger(flow.blobs).read()
    assert flow.left() == [kept.n, outcome.n, successor.n, stop.n, savepoint.n, start.n, newest.n]
    assert history.timeline == (kept, successor, newest)
    assert history.naming(stop.checkpoint_id) == stop
    assert history.statuses(1) == COMMITTED
    assert history.receipts(kept) == {"db": ["again"]}


def test_a_prune_that_names_a_kept_record_or_is_not_carried_out_stays(flow) -> None:
    flow.start()
    kept, successor = flow.checkpoint(), flow.checkpoint()
    flow.light()
    needed = flow.prune(successor)
    unfinished = flow.append(PruneRecord(keys=["checkpoints/still-there"]))
    flow.append(PruneRecord(keys=["checkpoints/gone"]))
    flow.stop()
    start = flow.start()
    newest = flow.checkpoint()

    flow.trim(newest, is_gone=lambda prune: "checkpoints/still-there" not in prune.keys)

    history = Ledger(flow.blobs).read()
    assert flow.left() == [kept.n, successor.n, needed.n, unfinished.n, start.n, newest.n]
    assert str(successor.checkpoint_id) in history.pruned()


def test_holds_in_force_stay_and_others_go(flow) -> None:
    flow.start()
    kept = flow.checkpoint()
    flow.light()
    id = kept.checkpoint_id
    live = flow.append(HoldRecord(checkpoint_id=id, name="audit", until_ms=1001))
    flow.append(HoldRecord(checkpoint_id=id, name="over", until_ms=1000))
    flow.append(HoldRecord(checkpoint_id=id, name="taken back"))
    flow.append(HoldRecord(checkpoint_id=id, name="taken back", released=True))
    tag = flow.append(HoldRecord(checkpoint_id=id, name="v1", protects=False))
    flow.stop()
    flow.start()
    newest = flow.checkpoint()

    flow.trim(newest)

    assert {live.n, tag.n} <= set(flow.left())
    assert set(Ledger(flow.blobs).read().holds(now_ms=1000)) == {(id, "audit"), (id, "v1")}
    assert len(flow.left()) == 6


def test_a_decision_whose_sinks_are_not_done_stays(flow) -> None:
    pending = flow.append(
        CheckpointRecord(epoch=1, checkpoint_id=CheckpointId.now(), seal="5" * 64, receipts={"db": []})
    )
    done = flow.append(
        CheckpointRecord(epoch=2, checkpoint_id=CheckpointId.now(), seal="5" * 64, receipts={"db": []})
    )
    flow.append(OutcomeRecord(epoch=2, statuses=COMMITTED))
    flow.prune(pending, done)
    newest = flow.checkpoint()

    flow.trim(newest)

    assert pending.n in flow.left()
    assert done.n not in flow.left()


def test_an_abandoned_checkpoint_stays_abandoned(flow) -> None:
    flow.start()
    first = flow.checkpoint()
    dropped = flow.checkpoint()
    restore = flow.append(RestoreRecord(to=first.n))
    after = flow.light()
    flow.light(2)
    flow.prune(first)
    flow.stop()
    flow.start()
    newest = flow.checkpoint()

    flow.trim(newest)

    history = Ledger(flow.blobs).read()
    assert first.n not in flow.left()
    assert after.n not in flow.left()
    assert {dropped.n, restore.n} <= set(flow.left())
    assert history.timeline == (newest,)
    assert history.abandoned == (dropped,)


def test_nothing_at_or_above_the_timelines_tip_is_trimmed(flow) -> None:
    flow.start()
    target = flow.light()
    flow.light(2)
    flow.append(RestoreRecord(to=target.n))
    newest = flow.append(OutcomeRecord(restore=flow.ledger.read().head))

    flow.trim(newest)

    history = Ledger(flow.blobs).read()
    assert history.newest_decision == target
    assert history.boundary.n < target.n


def test_a_runner_that_slept_through_it_finds_its_number_taken_and_is_fenced(flow) -> None:
    zombie = Flow(flow.blobs)
    zombie.start()
    old = zombie.checkpoint()
    for _ in range(3):
        flow.start()
        pruned = flow.checkpoint()
        flow.light(2)
        flow.prune(pruned, *([old] if _ == 0 else []))
        flow.stop()
    flow.start()
    newest = flow.checkpoint()

    assert flow.trim(newest) > 0

    with pytest.raises(FencedError):
        zombie.ledger.append(
            CheckpointRecord(epoch=2, checkpoint_id=CheckpointId.now(), seal="5" * 64), author=zombie.author
        )
    assert Ledger(flow.blobs).read().head == newest.n


def test_a_run_that_knows_it_is_fenced_still_sees_what_is_new(flow) -> None:
    zombie = Flow(flow.blobs)
    zombie.start()
    start = flow.start()
    assert zombie.ledger.read().head == start.n
    pruned = flow.checkpoint()
    flow.light(2)
    flow.prune(pruned)
    flow.stop()
    flow.start()
    newest = flow.checkpoint()
    flow.trim(newest)
    assert flow.blobs.head(ledger_key(start.n + 1)) is None

    assert zombie.ledger.read().head == newest.n


def test_a_run_that_has_stopped_writes_nothing_that_counts_below_the_boundary(flow) -> None:
    stopped = Flow(flow.blobs)
    stopped.start()
    stopped.prune(stopped.checkpoint())
    stopped.stop()
    flow.start()
    flow.prune(flow.checkpoint())
    flow.stop()
    flow.start()
    newest = flow.checkpoint()
    flow.trim(newest)

    with pytest.raises(FencedError):
        stopped.stop()

    assert Ledger(flow.blobs).read().head == newest.n


def test_a_run_that_has_read_past_its_successor_writes_nothing_that_counts_below_the_boundary(flow) -> None:
    fenced = Flow(flow.blobs)
    fenced.start()
    flow.start()
    flow.prune(flow.checkpoint())
    head = fenced.ledger.read().head
    flow.light()
    flow.stop()
    flow.start()
    newest = flow.checkpoint()
    flow.trim(newest)
    assert flow.blobs.head(ledger_key(head + 1)) is None

    record = fenced.append(OutcomeRecord(epoch=1, statuses=COMMITTED))

    assert record.n == newest.n + 1
    assert Ledger(flow.blobs).read().record(record.n) == record


def test_what_was_begun_before_the_run_and_before_the_boundary_is_not_published(flow) -> None:
    id, since = CheckpointId.now(), flow.ledger.read().head
    flow.append(PruneRecord(ids=[id]))
    flow.start()
    flow.trim(flow.checkpoint())
    flow.start()
    draft = CheckpointRecord(epoch=2, checkpoint_id=id, seal="5" * 64)

    with pytest.raises(ConflictError, match="trimmed"):
        flow.append(draft, since=since)


def test_a_library_writer_that_slept_through_it_writes_nothing_that_counts(flow) -> None:
    sleeper = Ledger(flow.blobs)
    since = sleeper.read().head
    first = flow.checkpoint()
    second = flow.checkpoint()
    flow.append(OutcomeRecord(epoch=2, statuses=COMMITTED))
    flow.append(OutcomeRecord(epoch=1, statuses=COMMITTED))
    flow.prune(first, second)
    newest = flow.checkpoint()
    assert flow.trim(newest) > 0
    assert flow.blobs.head(ledger_key(1)) is None

    # Its number is free again, so the create succeeds. It does not count, and the writer finds out.
    record = sleeper.append(OutcomeRecord(epoch=3, statuses=COMMITTED), author=Author(0, new_writer()))
    assert record.n == newest.n + 1
    with pytest.raises(EpochTakenError):
        Ledger(flow.blobs).append(
            CheckpointRecord(epoch=3, checkpoint_id=CheckpointId.now(), seal="5" * 64), author=LIBRARY
        )
    with pytest.raises(ConflictError, match="trimmed"):
        sleeper.append(
            CheckpointRecord(epoch=9, checkpoint_id=CheckpointId.now(), seal="5" * 64),
            author=LIBRARY,
            since=since,
        )

    history = Ledger(flow.blobs).read()
    assert not history.problems
    assert flow.blobs.head(ledger_key(1)) is None, "it was left lying about"


def test_a_stray_record_below_the_boundary_is_not_taken_for_a_fork(flow) -> None:
    flow.append(OutcomeRecord(epoch=77))
    flow.append(OutcomeRecord(epoch=77))
    newest = flow.checkpoint()
    reader = Ledger(flow.blobs).read()
    stray = Ledger(MemoryBlobs()).append(OutcomeRecord(epoch=7), author=LIBRARY)
    assert flow.trim(newest) == 2
    flow.blobs.create(ledger_key(2), encode_record(replace(stray, n=2)))

    assert reader.newest_decision == newest
    assert not reader.problems
    assert reader.record(2) is None, "what lies below the boundary and is not kept is not there"
    assert flow.ledger.trim(newest.n, is_gone=bool) == 1, "the next trimming takes it away"


def test_a_reader_of_long_ago_is_not_told_of_holes(flow) -> None:
    a_finished_run(flow)
    flow.start()
    newest = flow.checkpoint()
    reader = Ledger(flow.blobs).read()

    flow.trim(newest)

    assert not reader.problems
    assert reader.timeline == (newest,)
    assert reader.highest_epoch == newest.epoch


def test_a_restore_by_a_process_of_long_ago_leads_to_nothing_trimmed(flow) -> None:
    flow.start()
    light = flow.light()
    stale = Ledger(flow.blobs)
    assert stale.read().record(light.n) == light
    flow.light()
    newest = flow.checkpoint()
    other = Ledger(flow.blobs)
    author = Author(flow.author.generation, flow.author.writer)
    stale.append(OutcomeRecord(epoch=1), author=author)
    boundary = Boundary(light.n, light.epoch, frozenset())
    flow.blobs.create(boundary_key(light.n), encode_boundary(boundary))

    with pytest.raises(ValueError, match="no decision"):
        stale.append(RestoreRecord(to=light.n), author=author)
    assert other.read().newest_decision == newest


def test_a_restore_that_a_trimming_overtook_is_a_gap_and_not_another_place(flow) -> None:
    flow.start()
    flow.checkpoint()
    light = flow.light()
    flow.checkpoint()
    restore = flow.append(RestoreRecord(to=light.n))
    kept = frozenset({1, 2})
    flow.blobs.create(boundary_key(light.n), encode_boundary(Boundary(light.n, light.epoch, kept)))

    history = Ledger(flow.blobs).read()

    first = next(history.walk())
    assert isinstance(first, Gap)
    assert first.n == restore.n
    with pytest.raises(CorruptError, match="trimmed"):
        _ = history.newest_decision


def test_two_that_trim_at_once_leave_no_hole(flow) -> None:
    a_finished_run(flow)
    flow.start()
    newest = flow.checkpoint()
    flow.light()
    one = Boundary(3, 2, frozenset({1}))
    flow.blobs.create(boundary_key(3), encode_boundary(one))
    flow.blobs.create(boundary_key(newest.n - 1), encode_boundary(Boundary(newest.n - 1, 4, frozenset({2}))))
    flow.blobs.delete(ledger_key(2))

    history = Ledger(flow.blobs).read()

    assert not history.holes
    assert history.timeline[0] == newest


def test_a_trimming_cut_short_is_finished_by_the_next(flow) -> None:
    a_finished_run(flow)
    start = flow.start()
    newest = flow.checkpoint()
    copies = {n: flow.blobs.get(ledger_key(n)) for n in (1, 2)}
    flow.trim(newest)
    for n, data in copies.items():
        flow.blobs.create(ledger_key(n), data)
    assert flow.left() == [start.n, newest.n]

    assert flow.trim(newest) == 2

    assert [info.key for info in flow.blobs.list("ledger/")] == [
        ledger_key(start.n),
        ledger_key(newest.n),
        boundary_key(newest.n - 1),
    ]


def test_an_older_boundary_goes_with_the_next_trimming(flow) -> None:
    a_finished_run(flow)
    flow.start()
    flow.trim(flow.checkpoint())
    a_finished_run(flow)
    flow.start()
    newest = flow.checkpoint()

    flow.trim(newest)

    boundaries = [info.key for info in flow.blobs.list("ledger/boundary-")]
    assert boundaries == [boundary_key(newest.n - 1)]
    assert not Ledger(flow.blobs).read().problems


def test_nothing_is_trimmed_while_a_record_cannot_be_read(flow) -> None:
    a_finished_run(flow)
    flow.start()
    newest = flow.checkpoint()
    flow.blobs.put(ledger_key(2), b"{}")
    flow.ledger = Ledger(flow.blobs)

    with pytest.raises(CorruptError):
        flow.trim(newest)

    assert len(list(flow.blobs.list("ledger/"))) == newest.n


def test_every_flipped_bit_of_a_boundary_is_named_and_the_present_is_still_known(flow) -> None:
    a_finished_run(flow)
    flow.start()
    newest = flow.checkpoint()
    flow.trim(newest)
    key = boundary_key(newest.n - 1)
    sound = flow.blobs.get(key)

    for bit in range(len(sound) * 8):
        data = bytearray(sound)
        data[bit // 8] ^= 1 << bit % 8
        flow.blobs.put(key, bytes(data))

        history = Ledger(flow.blobs).read()

        assert [error.key for error in history.problems.values()] == [key]
        assert history.newest_decision == newest
        assert history.highest_epoch == newest.epoch


def test_behind_a_corrupt_boundary_nothing_is_guessed(flow) -> None:
    flow.start()
    flow.checkpoint()
    kept = flow.checkpoint()
    restored = flow.light()
    flow.blobs.create(boundary_key(kept.n), b"garbage")

    history = Ledger(flow.blobs).read()

    entries = list(history.walk())
    assert entries[0] == restored
    assert isinstance(entries[1], Gap)
    assert len(entries) == 2
    flow.blobs.create(boundary_key(restored.n), b"garbage")
    with pytest.raises(CorruptError):
        _ = Ledger(flow.blobs).read().highest_epoch
