"""Real processes on one store: 32 rivals for each key, writers that are killed, writers that sleep too long.

HOLDFAST_RIVAL_ROUNDS sets how many keys are fought for; SeaweedFS takes seconds for each.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

# Tests are no package, and a helper must be importable by its name.
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "services"))

import blob_workers
from blob_workers import KEYS, rival, speech
from object_servers import SERVERS

from holdfast.blobs import BlobStore, FileBlobs, open_blobs
from holdfast.blobs.base import TEMPORARY_PREFIX

pytestmark = pytest.mark.kills

RIVALS = 32


def race(url: str, options: dict[str, Any], rounds: int, processes: int) -> list[list[int]]:
    """The outcome of each rival in each round."""
    fresh = multiprocessing.get_context("spawn")
    gate = fresh.Barrier(processes)
    outcomes = fresh.Array("b", rounds * RIVALS)
    arguments = (RIVALS // processes, rounds, url, options, gate, outcomes)
    crowd = [fresh.Process(target=rival, args=(number, *arguments)) for number in range(processes)]
    for process in crowd:
        process.start()
    for process in crowd:
        process.join(timeout=240 + 5 * rounds)
        assert process.exitcode == 0
    return [list(outcomes[start : start + RIVALS]) for start in range(0, rounds * RIVALS, RIVALS)]


def rounds(usual: int) -> int:
    return int(os.environ.get("HOLDFAST_RIVAL_ROUNDS", usual))


def check(blobs: BlobStore, rounds: list[list[int]]) -> None:
    for number, outcomes in enumerate(rounds):
        winners = [each for each, outcome in enumerate(outcomes) if outcome == 1]
        assert len(winners) == 1, f"round {number}: {winners} all believe they won"
        assert outcomes.count(2) == RIVALS - 1, f"round {number}: {outcomes}"
        assert blobs.get(f"race/{number:04}") == speech(winners[0])


def test_of_32_processes_exactly_one_creates_each_file(tmp_path: Path) -> None:
    found = race(str(tmp_path / "store"), {}, rounds=rounds(50), processes=RIVALS)

    check(FileBlobs(tmp_path / "store"), found)
    assert not [path for path in tmp_path.rglob("*") if path.name.startswith(TEMPORARY_PREFIX)]


@pytest.mark.services
@pytest.mark.parametrize("name", ["moto", "seaweedfs", "azurite", "gcs"])
def test_of_32_rivals_exactly_one_creates_each_object(name: str) -> None:
    with SERVERS[name]() as server:
        found = race(server.url, server.options, rounds=rounds(3), processes=8)

        check(open_blobs(server.url, **server.options), found)


def test_whatever_moment_a_writer_is_killed_at_its_store_holds_what_it_told(tmp_path: Path) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    dice = random.Random(seed)
    root = tmp_path / "store"
    values: dict[str, set[str | None]] = {key: {None} for key in KEYS}
    told = 0

    for life in range(15):
        command = [sys.executable, blob_workers.__file__, "diary", str(root), str(seed + life)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            lines = [writer.stdout.readline()]  # it has started
            time.sleep(dice.uniform(0, 0.15))
            writer.kill()
            lines += writer.stdout.readlines()
        told += len(lines)

        for line in lines:
            learn(values, line)
        blobs = FileBlobs(root)
        for key, allowed in values.items():
            info = blobs.head(key)
            text = blobs.get(key).decode() if info else None
            found = text.rstrip("x") if text is not None else None
            assert found in allowed, f"life {life}: {key!r} is {found!r}, not one of {allowed}"
            assert text is None or len(text) - len(found or "") in (0, 10, 100_000), "half an object"
            values[key] = {found}
        assert {each.key for each in blobs.list("")} == {
            key for key, found in values.items() if found != {None}
        }

    assert told > 100, "the writers did write"
    FileBlobs(root).sweep_leftovers(min_age_seconds=-1)
    assert not [path for path in root.rglob("*") if path.name.startswith(TEMPORARY_PREFIX)]


def learn(values: dict[str, set[str | None]], line: str) -> None:
    """What a line of the diary says about what may be there now."""
    if not line.endswith("\n"):
        return  # died while telling; what it had begun was told before
    word, action, key, name = line.split()
    new = None if action == "delete" else name
    if word == "begin" and (action != "create" or None in values[key]):
        values[key] = values[key] | {new}
    elif word == "done":
        values[key] = {new}
    elif word == "taken":
        values[key] = values[key] - {None, name}


@pytest.mark.parametrize(
    ("meanwhile", "outcome", "found"),
    [
        ("nothing", "created", b"sleeper"),
        ("a rival creates the key", "taken", b"rival"),
        ("its unfinished file is swept away", "failed", None),
        ("both", "failed", b"rival"),
        ("the directory is emptied", "created", b"sleeper"),
    ],
)
def test_a_writer_that_wakes_up_late_harms_nobody(
    tmp_path: Path, meanwhile: str, outcome: str, found: bytes | None
) -> None:
    blobs = FileBlobs(tmp_path)
    blobs.create("dir/other", b"")
    command = [sys.executable, blob_workers.__file__, "sleeper", str(tmp_path), "dir/key"]
    sleeper = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        _, status = os.waitpid(sleeper.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        assert blobs.head("dir/key") is None

        if meanwhile in ("a rival creates the key", "both"):
            blobs.create("dir/key", b"rival")
        if meanwhile in ("its unfinished file is swept away", "both"):
            assert blobs.sweep_leftovers(min_age_seconds=-1) == 1
        if meanwhile == "the directory is emptied":
            blobs.delete("dir/other")
        sleeper.send_signal(signal.SIGCONT)
        told, _ = sleeper.communicate(timeout=60)
    finally:
        if sleeper.poll() is None:
            sleeper.kill()
            sleeper.wait()

    assert told.strip() == outcome
    assert (blobs.get("dir/key") if blobs.head("dir/key") else None) == found
    assert not [path for path in tmp_path.rglob("*") if path.name.startswith(TEMPORARY_PREFIX)]
