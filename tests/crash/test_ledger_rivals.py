"""Threads and processes that append to one ledger on real files: one record a number, nothing lost."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

from holdfast.blobs.files import FileBlobs
from holdfast.errors import ConflictError, FencedError
from holdfast.ids import CheckpointId
from holdfast.ledger import Author, CheckpointRecord, Ledger, StartRecord, new_writer


def decide(ledger: Ledger, author: Author, wanted: int) -> list[str]:
    """Decide ``wanted`` epochs beside rivals, each the next free one. The ids, in order."""
    ids: list[str] = []
    while len(ids) < wanted:
        epoch = ledger.read().highest_epoch + 1
        id = CheckpointId.now()
        try:
            ledger.append(CheckpointRecord(epoch=epoch, checkpoint_id=id, seal="5" * 64), author=author)
        except ConflictError:
            continue
        ids.append(str(id))
    return ids


def run_until_fenced(root: str, go: threading.Barrier, outcomes: list[tuple[int, list[int], str]]) -> None:
    """Start a generation, then decide until a newer one takes over, or 30 epochs are done."""
    ledger = Ledger(FileBlobs(root))
    go.wait()
    while True:
        try:
            planned = ledger.read()
            record = ledger.append_start(StartRecord(), writer=new_writer(), after_head=planned.head)
            break
        except ConflictError:
            continue
    author, epochs, end = Author(record.n, record.writer), [], "done"
    for _ in range(30):
        try:
            epochs.append(ledger.append(next_epoch(ledger), author=author).epoch)
        except FencedError:
            end = "fenced"
            break
    outcomes.append((record.n, epochs, end))


def next_epoch(ledger: Ledger) -> CheckpointRecord:
    epoch = ledger.read().highest_epoch + 1
    return CheckpointRecord(epoch=epoch, checkpoint_id=CheckpointId.now(), seal="5" * 64)


def test_processes_that_race_for_epochs_each_get_their_own(tmp_path: Path) -> None:
    command = [sys.executable, __file__, str(tmp_path), "15"]
    rivals = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    printed = [rival.communicate(timeout=120)[0].split() for rival in rivals]

    timeline = Ledger(FileBlobs(tmp_path)).read().timeline
    assert [decision.epoch for decision in timeline] == list(range(1, 46))
    assert sorted(str(d.checkpoint_id) for d in timeline) == sorted(id for ids in printed for id in ids)


def test_threads_that_share_one_ledger_each_get_their_own_epochs(tmp_path: Path) -> None:
    ledger = Ledger(FileBlobs(tmp_path))
    ids: list[str] = []
    threads = [
        threading.Thread(target=lambda: ids.extend(decide(ledger, Author(0, new_writer()), 10)))
        for _ in range(4)
    ]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    history = Ledger(FileBlobs(tmp_path)).read()
    assert [decision.epoch for decision in history.timeline] == list(range(1, 41))
    assert len(set(ids)) == 40
    assert not history.problems


def test_of_runs_that_start_at_once_all_but_the_newest_are_fenced(tmp_path: Path) -> None:
    outcomes: list[tuple[int, list[int], str]] = []
    go = threading.Barrier(4)
    threads = [
        threading.Thread(target=run_until_fenced, args=(str(tmp_path), go, outcomes)) for _ in range(4)
    ]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    outcomes.sort()
    history = Ledger(FileBlobs(tmp_path)).read()
    assert [end for _, _, end in outcomes] == ["fenced"] * 3 + ["done"]
    assert history.generation == outcomes[-1][0]
    assert [d.epoch for d in history.timeline] == [epoch for _, epochs, _ in outcomes for epoch in epochs]
    assert not history.problems


if __name__ == "__main__":
    print(*decide(Ledger(FileBlobs(sys.argv[1])), Author(0, new_writer()), int(sys.argv[2])))
