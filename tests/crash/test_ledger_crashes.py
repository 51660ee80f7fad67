"""The process dies at each call a run makes on its ledger, before and after it takes effect."""

from __future__ import annotations

import pytest

from holdfast.blobs.base import BlobStore
from holdfast.blobs.memory import MemoryBlobs
from holdfast.ids import CheckpointId
from holdfast.ledger import (
    INLINE_BYTES,
    Author,
    CheckpointRecord,
    EpochRecord,
    Ledger,
    OutcomeRecord,
    RestoreRecord,
    StartRecord,
    StopRecord,
    new_writer,
    store_logs,
)
from holdfast.manifest import SinkCommitStatus
from holdfast.testing import Crash, CrashingBlobs

COMMITTED = {"db": SinkCommitStatus.COMMITTED}


def run(blobs: BlobStore, told: list[int]) -> None:
    """One whole run: start, a checkpoint, a light epoch with long logs, a restore, a stop.

    ``told`` collects the epochs that were reported as decided.
    """
    ledger = Ledger(blobs)
    ledger.reassert_head()
    history = ledger.read()
    record = ledger.append_start(StartRecord(), writer=new_writer(), after_head=history.head)
    author = Author(record.n, record.writer)
    epoch = history.highest_epoch + 1

    first = ledger.append(
        CheckpointRecord(epoch=epoch, checkpoint_id=CheckpointId.now(), seal="5" * 64, receipts={"db": [1]}),
        author=author,
    )
    told.append(first.epoch)
    id = CheckpointId.now()
    logs = store_logs(blobs, epoch + 1, id, {"offsets/1": "x" * (INLINE_BYTES + 1)})
    light = ledger.append(EpochRecord(epoch=epoch + 1, checkpoint_id=id, logs=logs), author=author)
    told.append(light.epoch)
    ledger.append(OutcomeRecord(epoch=light.epoch, statuses=COMMITTED), author=author)
    restore = ledger.append(RestoreRecord(to=first.n), author=author)
    ledger.append(OutcomeRecord(restore=restore.n), author=author)
    ledger.append(StopRecord(epoch=first.epoch), author=author)


def crash_points() -> list[tuple[str, int]]:
    blobs = CrashingBlobs(MemoryBlobs())
    run(blobs, [])
    return [(when, call) for call in range(1, blobs.count + 1) for when in ("before", "after")]


@pytest.mark.parametrize(("when", "call"), crash_points())
def test_a_run_that_died_anywhere_left_a_sound_ledger_and_the_next_one_works(when: str, call: int) -> None:
    blobs = MemoryBlobs()
    told: list[int] = []
    with pytest.raises(Crash):
        run(CrashingBlobs(blobs, **{when: call}), told)

    history = Ledger(blobs).read()
    decided = [*history.timeline, *history.abandoned]
    assert not history.problems
    assert set(told) <= {decision.epoch for decision in decided}, "an epoch was reported and is not there"
    for decision in decided:
        Ledger(blobs).read_logs(decision)

    again: list[int] = []
    run(blobs, again)

    after = Ledger(blobs).read()
    assert not after.problems
    assert min(again) > max((decision.epoch for decision in decided), default=0)
    assert after.generation > history.generation
    assert after.open_restore is None


def a_ledger_to_trim(blobs: BlobStore) -> int:
    """Two finished runs of light epochs, and a newer one with a checkpoint, whose number is returned."""
    ledger = Ledger(blobs)
    for epochs in (range(1, 4), range(4, 7)):
        start = ledger.append(StartRecord(), author=Author(0, new_writer()))
        author = Author(start.n, start.writer)
        for epoch in epochs:
            ledger.append(EpochRecord(epoch=epoch, checkpoint_id=CheckpointId.now()), author=author)
        ledger.append(StopRecord(), author=author)
    start = ledger.append(StartRecord(), author=Author(0, new_writer()))
    draft = CheckpointRecord(epoch=7, checkpoint_id=CheckpointId.now(), seal="5" * 64)
    return ledger.append(draft, author=Author(start.n, start.writer)).n


def trimming_calls() -> list[tuple[str, int]]:
    blobs = MemoryBlobs()
    keep_from = a_ledger_to_trim(blobs)
    counted = CrashingBlobs(blobs)
    Ledger(counted).trim(keep_from, is_gone=bool)
    return [(when, call) for call in range(1, counted.count + 1) for when in ("before", "after")]


@pytest.mark.parametrize(("when", "call"), trimming_calls())
def test_a_trimming_that_died_anywhere_changed_nothing_that_counts(when: str, call: int) -> None:
    blobs = MemoryBlobs()
    keep_from = a_ledger_to_trim(blobs)
    before = Ledger(blobs).read()
    newest, generation = before.newest_decision, before.generation
    with pytest.raises(Crash):
        Ledger(CrashingBlobs(blobs, **{when: call})).trim(keep_from, is_gone=bool)

    history = Ledger(blobs).read()
    assert (history.newest_decision, history.generation, history.highest_epoch) == (newest, generation, 7)
    assert not history.problems

    Ledger(blobs).trim(keep_from, is_gone=bool)

    assert [info.key for info in blobs.list("ledger/")] == [
        f"ledger/{keep_from - 1:012}.json",
        f"ledger/{keep_from:012}.json",
        f"ledger/boundary-{keep_from - 1:012}.json",
    ]
    assert not Ledger(blobs).read().problems
