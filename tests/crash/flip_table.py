"""Flip single bits in a store that a real pipeline made, and see whether each one is found and named.

    flip_table.py [--flips N] [--seed N] [--every-bit] [--keep DIRECTORY]

The store has three checkpoints: Spark's state of a windowed aggregation, its logs, manifests, the ledger.
One flip at a time: it is found if ``verify`` with ``read_data`` reports a problem of the very object that
holds it. ``_latest`` is left out, as it is a hint that nobody has to believe. Of each kind of object one
flip is also shown to the installed program, which has to end with exit code 20.

Exit code 0 if every flip is found and named.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.blobs import FileBlobs
from holdfast.pipeline import load_yaml
from holdfast.spark.demo import PIPELINE, write_trades
from holdfast.store import PartitionedCheckpointStore
from holdfast.store.verifying import verify_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Two files of trades are two epochs; a third, without rows, moves the watermark.
FILES = 2
FLIPS = 300
CORRUPT = 20


@dataclass(frozen=True, slots=True)
class Flip:
    """Bit ``bit`` of byte ``position`` of an object."""

    key: str
    position: int
    bit: int

    def __str__(self) -> str:
        return f"bit {self.bit} of byte {self.position} of {self.key}"


@dataclass(slots=True)
class Kind:
    """What came of the flips in one kind of object."""

    objects: set[str] = field(default_factory=set)
    flips: int = 0
    found: int = 0
    codes: Counter[str] = field(default_factory=Counter)
    missed: list[Flip] = field(default_factory=list)


def make_store(home: Path, session: SparkSession) -> Path:
    """Run the pipeline, undisturbed; the root of its store."""
    from holdfast.spark.running import run_pipeline

    home.mkdir(parents=True, exist_ok=True)
    write_trades(home / "in", random.Random(0), files=FILES)
    (home / "pipeline.yaml").write_text(PIPELINE.format(input=home / "in"), encoding="utf-8")
    run_pipeline(load_yaml(home / "pipeline.yaml"), session=session)
    return home / "checkpoints" / "orders" / "per_minute"


def keys_of(root: Path) -> list[str]:
    """Every object but the hint."""
    store = PartitionedCheckpointStore(FileBlobs(root))
    return [info.key for info in store.blobs.list("") if info.key != store.paths.latest_pointer()]


def some_flips(root: Path, count: int, seed: int) -> Iterator[Flip]:
    """``count`` flips, in every object about as many: by size, the small ones would hardly be hit."""
    chance = random.Random(seed)
    keys = keys_of(root)
    for number in range(count):
        key = keys[number % len(keys)]
        yield Flip(key, chance.randrange((root / key).stat().st_size), chance.randrange(8))


def every_flip(root: Path) -> Iterator[Flip]:
    for key in keys_of(root):
        for position in range((root / key).stat().st_size):
            for bit in range(8):
                yield Flip(key, position, bit)


@contextmanager
def flipped(root: Path, flip: Flip) -> Iterator[None]:
    """Damage from below, as a disk does it; mended at the end."""
    path = root / flip.key
    sound = path.read_bytes()
    damaged = bytearray(sound)
    damaged[flip.position] ^= 1 << flip.bit
    path.write_bytes(damaged)
    try:
        yield
    finally:
        path.write_bytes(sound)


def look(root: Path, flips: Iterable[Flip]) -> dict[str, Kind]:
    """Make each flip in turn and verify the whole store; what was found, by kind of object."""
    kinds: dict[str, Kind] = {}
    for flip in flips:
        kind = kinds.setdefault(kind_of(flip.key), Kind())
        kind.objects.add(flip.key)
        kind.flips += 1
        with flipped(root, flip):
            report = verify_store(PartitionedCheckpointStore(FileBlobs(root)), read_data=True)
        codes = {problem.code for problem in report.problems if problem.key == flip.key}
        if codes and not report.ok:
            kind.found += 1
            kind.codes.update(codes)
        else:
            kind.missed.append(flip)
    return kinds


def kind_of(key: str) -> str:
    if key.startswith("ledger/"):
        return "ledger record"
    return "manifest" if key.endswith("/manifest.json") else "batch object"


def ask_the_program(root: Path, flip: Flip) -> list[str]:
    """What ``holdfast verify --read-data`` gets wrong about one flip."""
    program = Path(sys.executable).with_name("holdfast")
    with flipped(root, flip):
        done = subprocess.run(
            [program, "verify", "--read-data", "--json", "--store", str(root)],
            capture_output=True,
            text=True,
            check=False,
        )
    wrong = [] if done.returncode == CORRUPT else [f"exit code {done.returncode}: {done.stderr}"]
    named = {problem["key"] for problem in json.loads(done.stdout)["problems"]} if done.stdout else set()
    return wrong if flip.key in named else [*wrong, f"it named {sorted(named)}"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--flips", type=int, default=FLIPS)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--every-bit", action="store_true", help="every bit of every object: hours")
    parser.add_argument("--keep", type=Path, help="work here, and leave the store behind")
    options = parser.parse_args()
    home = options.keep or Path(tempfile.mkdtemp(prefix="holdfast-flips-"))
    try:
        return _report(_made(home), options)
    finally:
        if options.keep is None:
            shutil.rmtree(home, ignore_errors=True)


def _made(home: Path) -> Path:
    from holdfast.spark.demo_life import SHORT_LIVED
    from holdfast.spark.session import session_for

    session = session_for("flips", {**SHORT_LIVED, "spark.master": "local[2]"})
    try:
        return make_store(home, session)
    finally:
        session.stop()


def _report(root: Path, options: argparse.Namespace) -> int:
    started = time.monotonic()
    store = PartitionedCheckpointStore(FileBlobs(root))
    size = sum(info.size for info in store.blobs.list(""))
    print(f"{len(store.list_ids())} checkpoints, {len(keys_of(root))} objects, {size} bytes")
    print("every bit" if options.every_bit else f"{options.flips} flips, seed {options.seed}")
    flips = every_flip(root) if options.every_bit else some_flips(root, options.flips, options.seed)
    kinds = look(root, flips)
    print(f"\n{'object':<16}{'objects':>8}{'flips':>9}{'found and named':>17}{'missed':>8}  reported as")
    for name, kind in sorted(kinds.items()):
        codes = ", ".join(f"{code} ({count})" for code, count in kind.codes.most_common())
        print(
            f"{name:<16}{len(kind.objects):>8}{kind.flips:>9}{kind.found:>17}{len(kind.missed):>8}  {codes}"
        )
    missed = [flip for kind in kinds.values() for flip in kind.missed]
    for flip in missed:
        print(f"MISSED: {flip}")
    wrong = 0
    for flip in _one_of_each(root, options.seed):
        for complaint in ask_the_program(root, flip):
            wrong += 1
            print(f"FAILED: holdfast verify --read-data, {flip}: {complaint}")
    if not wrong:
        print(f"\nholdfast verify --read-data named one flip of each kind, and ended with {CORRUPT}")
    total = sum(kind.flips for kind in kinds.values())
    print(f"{total} flips, {total - len(missed)} found and named; {time.monotonic() - started:.0f} s")
    return 1 if missed or wrong or not total else 0


def _one_of_each(root: Path, seed: int) -> list[Flip]:
    firsts: dict[str, Flip] = {}
    for flip in some_flips(root, len(keys_of(root)), seed):
        firsts.setdefault(kind_of(flip.key), flip)
    return list(firsts.values())


if __name__ == "__main__":
    sys.exit(main())
