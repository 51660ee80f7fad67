"""What the processes of test_blobs_processes.py run, each with a fresh interpreter: no fork is involved."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
from multiprocessing.sharedctypes import SynchronizedArray
from multiprocessing.synchronize import Barrier
from typing import Any

from holdfast.blobs import BlobStore, FileBlobs, open_blobs
from holdfast.errors import ConflictError, HoldfastError, KeyExistsError, OutcomeUnknownError

KEYS = ["a", "b/1", "b/2", "c/d/e"]


def rival(
    number: int,
    threads: int,
    rounds: int,
    url: str,
    options: dict[str, Any],
    gate: Barrier,
    outcomes: SynchronizedArray[Any],
) -> None:
    """``threads`` rivals that create one key a round, all at once. 1: won, 2: taken, 3: anything else."""
    blobs = open_blobs(url, **options)
    rivals = threads * gate.parties

    def create(each: int, key: str, slot: int) -> None:
        try:
            blobs.create(key, speech(each))
            outcomes[slot] = 1
        except KeyExistsError:
            outcomes[slot] = 2
        except HoldfastError as error:
            outcomes[slot] = 3
            print(f"rival {each}, {key}: {error!r}", file=sys.stderr)

    for round_number in range(rounds):
        key = f"race/{round_number:04}"
        slots = [round_number * rivals + number * threads + thread for thread in range(threads)]
        crowd = [threading.Thread(target=create, args=(slot % rivals, key, slot)) for slot in slots]
        gate.wait()
        for thread in crowd:
            thread.start()
        for thread in crowd:
            thread.join()


def speech(rival: int) -> bytes:
    return f"rival {rival} was here;".encode() * 50


def diary(root: str, seed: int) -> None:
    """Writes until it is killed, and tells on stdout what it is about to do and what it has done."""
    dice = random.Random(seed)
    blobs: BlobStore = FileBlobs(root)
    number = 0
    while True:
        number += 1
        key, action = dice.choice(KEYS), dice.choice(["create", "put", "put", "delete"])
        value = f"{seed}.{number}." + "x" * dice.choice([0, 10, 100_000])
        name = value.rstrip("x")
        tell("begin", action, key, name)
        try:
            if action == "create":
                blobs.create(key, value.encode())
            elif action == "put":
                blobs.put(key, value.encode())
            else:
                blobs.delete(key)
            tell("done", action, key, name)
        except KeyExistsError:
            tell("taken", action, key, name)


def tell(*words: str) -> None:
    os.write(1, (" ".join(words) + "\n").encode())


def sleeper(root: str, key: str) -> None:
    """Creates ``key``, and is stopped between its bytes being written and their getting the name."""
    real = os.link

    def stopped(source: str, target: str) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)
        real(source, target)

    os.link = stopped  # type: ignore[assignment]
    try:
        FileBlobs(root).create(key, b"sleeper")
        tell("created")
    except OutcomeUnknownError:
        tell("unknown")
    except ConflictError:
        tell("taken")
    except HoldfastError:
        tell("failed")


if __name__ == "__main__":
    {"diary": lambda: diary(sys.argv[2], int(sys.argv[3])), "sleeper": lambda: sleeper(*sys.argv[2:4])}[
        sys.argv[1]
    ]()
