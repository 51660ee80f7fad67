"""FileBlobs after a power failure at every system call, in every state that POSIX allows the disk to be in.

What a user would check: what returned is there; what was under way is old or new, never a mix; nothing else
changed; nothing half-written shows; and work goes on.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

# Tests are no package, and a helper must be importable by its name.
sys.path.insert(0, str(Path(__file__).parent))

from posix_model import Disk, DiskState, build

from holdfast.blobs.base import TEMPORARY_PREFIX
from holdfast.blobs.files import FileBlobs
from holdfast.errors import ConflictError, KeyExistsError, OutcomeUnknownError, StoreUnavailableError
from holdfast.testing.disk import WatchedDisk, watched_disk

#: How many states are checked of each scenario; which ones, a seed decides. HOLDFAST_CRASH_STATES=0: all.
AT_MOST = int(os.environ.get("HOLDFAST_CRASH_STATES", "2500"))

Value = bytes | None


@dataclass
class Story:
    """What was done, and what a reader may find of each key after the first ``n`` system calls."""

    calls: list[object] = field(default_factory=list)
    #: For each number of calls: the values that each key may have.
    allowed: list[dict[str, set[Value]]] = field(default_factory=list)


class Teller:
    """Does things to a store, and remembers what may be there at each system call."""

    def __init__(self, blobs: FileBlobs, disk: WatchedDisk) -> None:
        self.blobs = blobs
        self.disk = disk
        self.settled: dict[str, set[Value]] = {}
        self.allowed: list[dict[str, set[Value]]] = [{}]

    def create(self, key: str, data: bytes | list[bytes]) -> None:
        before = self._values(key)
        new = b"".join(data) if isinstance(data, list) else data
        # A create may succeed only where the key may have been free.
        during = before | {new} if None in before else before
        self._do(key, during, {new}, lambda: self.blobs.create(key, data))

    def put(self, key: str, data: bytes | list[bytes]) -> None:
        new = b"".join(data) if isinstance(data, list) else data
        self._do(key, self._values(key) | {new}, {new}, lambda: self.blobs.put(key, data))

    def delete(self, key: str) -> None:
        self._do(key, self._values(key) | {None}, {None}, lambda: self.blobs.delete(key))

    def failing(self, name: str, skip: int = 0) -> Teller:
        self.disk.fail(name, errno.EIO, skip=skip)
        return self

    def _values(self, key: str) -> set[Value]:
        return self.settled.get(key, {None})

    def _do(self, key: str, during: set[Value], after: set[Value], action: Callable[[], None]) -> None:
        before = self._values(key)
        self._remember(key, during)
        try:
            action()
        except OutcomeUnknownError:
            after = during
        except (StoreUnavailableError, ConflictError) as error:
            # A delete that failed may have removed the name already.
            after = during if "deleting" in str(error) else before
            if isinstance(error, KeyExistsError):
                after = before - {None}
        self._remember(key, during)
        self.settled[key] = after
        self.allowed[-1] = self._snapshot()

    def _remember(self, key: str, during: set[Value]) -> None:
        """From the last call remembered up to the newest one, ``key`` is in flux."""
        flux = self._snapshot() | {key: during}
        while len(self.allowed) <= len(self.disk.changes()):
            self.allowed.append(flux)
        self.allowed[-1] = flux

    def _snapshot(self) -> dict[str, set[Value]]:
        return dict(self.settled)


def scenario_first_object(tell: Teller) -> None:
    tell.create("a/b/c/key", b"data")


def scenario_ledger(tell: Teller) -> None:
    for number in range(1, 4):
        tell.create(f"ledger/{number:012}.json", [b'{"n":', str(number).encode(), b"}"])


def scenario_pointer(tell: Teller) -> None:
    for version in (b"first", b"second, longer", b"3"):
        tell.put("checkpoints/_latest", version)


def scenario_checkpoint(tell: Teller) -> None:
    tell.create("checkpoints/1/batch.lz4", [b"x" * 100, b"y" * 100])
    tell.create("checkpoints/1/manifest.json", b"{}")
    tell.create("ledger/1.json", b"{}")
    tell.put("checkpoints/_latest", b"1")


def scenario_collision(tell: Teller) -> None:
    tell.create("key", b"first")
    tell.create("key", b"second")
    tell.put("key", b"third")
    tell.create("key", b"fourth")


def scenario_prune(tell: Teller) -> None:
    tell.create("c/1/a", b"1a")
    tell.create("c/1/b", b"1b")
    tell.create("c/2/a", b"2a")
    tell.delete("c/1/a")
    tell.delete("c/1/b")
    tell.create("c/1/a", b"again")
    tell.delete("c/2/a")
    tell.delete("c/1/a")


def scenario_failures_before_the_name(tell: Teller) -> None:
    tell.put("dir/key", b"old")
    tell.failing("write").create("dir/new", b"data")
    tell.failing("fsync").create("dir/new", b"data")
    tell.failing("fsync").put("dir/key", b"data")
    tell.failing("link").create("dir/new", b"data")
    tell.failing("rename").put("dir/key", b"data")
    tell.create("dir/new", b"at last")


def scenario_failures_after_the_name(tell: Teller) -> None:
    tell.put("dir/key", b"old")
    tell.failing("fsync", skip=1).put("dir/key", b"new")
    tell.failing("unlink").create("dir/other", b"data")
    tell.failing("fsync", skip=1).create("dir/third", b"data")
    tell.put("dir/key", b"newest")


def scenario_failures_of_directories(tell: Teller) -> None:
    tell.failing("fsync").create("a/b/key", b"1")
    tell.failing("mkdir", skip=1).create("a/b/key", b"2")
    tell.failing("fsync", skip=1).create("a/b/key", b"3")
    tell.create("a/b/key", b"4")


def random_scenario(seed: int) -> Callable[[Teller], None]:
    def scenario(tell: Teller) -> None:
        dice = random.Random(seed)
        keys = ["a/1", "a/2", "a/b/1", "c", "d/e/f"]
        for number in range(8):
            key = dice.choice(keys)
            data = [
                f"{number}:{part}:".encode() * dice.choice([1, 50]) for part in range(dice.choice([1, 1, 2]))
            ]
            if dice.random() < 0.25:
                tell.failing(
                    dice.choice(["fsync", "link", "rename", "unlink", "write", "open"]), dice.randrange(3)
                )
            match dice.choice(["create", "create", "put", "put", "delete"]):
                case "create":
                    tell.create(key, data)
                case "put":
                    tell.put(key, data)
                case _:
                    tell.delete(key)

    return scenario


SCENARIOS = {
    name.removeprefix("scenario_"): value
    for name, value in list(globals().items())
    if name.startswith("scenario_")
} | {f"random {seed}": random_scenario(seed) for seed in range(8)}

_checked = 0


@pytest.fixture(scope="module", autouse=True)
def say_how_many() -> Iterator[None]:
    yield
    print(f"\ncrash model: {_checked} disk states checked")


@pytest.mark.parametrize("name", SCENARIOS)
def test_after_a_crash_at_any_call_a_reader_finds_old_or_new_and_all_that_returned(
    tmp_path: Path, name: str
) -> None:
    global _checked
    found = told(tmp_path / "told", SCENARIOS[name])
    chosen = sampled(found, name)
    # In memory where there is such a place: these states are many, and not for keeping.
    shm = Path("/dev/shm")
    place = Path(tempfile.mkdtemp(dir=shm if shm.is_dir() else tmp_path))
    try:
        for number, (step, state, allowed) in enumerate(chosen):
            root = place / str(number)
            build(state, root)
            check(root, allowed, f"{name}, after system call {step}: {state}")
            shutil.rmtree(root)
            _checked += 1
    finally:
        shutil.rmtree(place, ignore_errors=True)


def told(
    root: Path, scenario: Callable[[Teller], None]
) -> list[tuple[int, DiskState, dict[str, set[Value]]]]:
    """Every state of every moment of ``scenario``, with what may be in it."""
    root.mkdir()
    with watched_disk(root) as watched:
        tell = Teller(FileBlobs(root), watched)
        scenario(tell)
    disk = Disk()
    states = [(0, state, tell.allowed[0]) for state in disk.states()]
    for step, call in enumerate(watched.changes(), start=1):
        disk.apply(call)
        states += [(step, state, tell.allowed[step]) for state in disk.states()]
    assert step == len(tell.allowed) - 1
    return states


def sampled(
    states: list[tuple[int, DiskState, dict[str, set[Value]]]], name: str
) -> list[tuple[int, DiskState, dict[str, set[Value]]]]:
    if AT_MOST == 0 or len(states) <= AT_MOST:
        return states
    return random.Random(name).sample(states, AT_MOST)


def check(root: Path, allowed: dict[str, set[Value]], moment: str) -> None:
    blobs = FileBlobs(root)
    found = {info.key: blobs.get(info.key) for info in blobs.list("")}

    assert not [key for key in found if TEMPORARY_PREFIX in key], moment
    assert set(found) <= set(allowed), moment
    for key, values in allowed.items():
        assert found.get(key) in values, f"{key!r} is {found.get(key)!r}, not one of {values}; {moment}"

    # Work goes on: leftovers are in nobody's way, and sweeping takes nothing else.
    for key, value in [*found.items(), *((key, None) for key in allowed if key not in found)]:
        if value is None:
            blobs.create(key, b"after")
        else:
            with pytest.raises(KeyExistsError):
                blobs.create(key, b"after")
            blobs.put(key, b"after")
    blobs.sweep_leftovers(min_age_seconds=-1)
    assert {info.key: blobs.get(info.key) for info in blobs.list("")} == dict.fromkeys(allowed, b"after"), (
        moment
    )
    assert not [path for path in root.rglob("*") if path.name.startswith(TEMPORARY_PREFIX)], moment
