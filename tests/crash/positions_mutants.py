"""Breaks a promise of the positions stores, one at a time, in a copy, and sees whether the tests notice.

    .venv/bin/python tests/crash/positions_mutants.py

Prints a line a mutant, and ends with 1 if one survived. Redis mutants need a server, and say so without one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent.parent


class Mutant(NamedTuple):
    name: str
    module: str
    old: str
    new: str
    tests: str


SQLITE = "tests/conformance/test_positions_sqlite.py"
CORNERS = "tests/conformance/test_positions_sqlite_corners.py"
ROCKSDB = "tests/conformance/test_positions_rocksdb.py"
REDIS = "tests/services/test_positions_redis.py"

MUTANTS = [
    Mutant(
        "guard ignored",
        "persistent",
        "if stands_at is not None and sequence < stands_at:",
        "if stands_at is not None and sequence < stands_at and False:",
        SQLITE,
    ),
    Mutant("guard ignored in memory", "memory", 'and guard != "allow":', 'and guard == "ignore":', "MEMORY"),
    Mutant(
        "guard ignored by the write itself",
        "sql",
        "' WHERE holdfast_positions.sequence <= excluded.sequence' if guarded else ''",
        "''",
        SQLITE,
    ),
    Mutant(
        "commit on leaving the block",
        "session",
        "            return\n        try:\n            self._control.rollback()",
        "            return\n        try:\n            self._control.commit()",
        SQLITE,
    ),
    Mutant(
        "clear not atomic",
        "sql",
        "            driver.execute(connection, _CLEAR_FACTS, [query])",
        "            driver.commit(connection)\n            driver.begin(connection)\n"
        "            driver.execute(connection, _CLEAR_FACTS, [query])",
        CORNERS,
    ),
    Mutant(
        "position kept after delete",
        "sql",
        "groups.setdefault((entry.position is KEEP, entry.guarded), [])",
        "groups.setdefault((entry.position in (KEEP, None), entry.guarded), [])",
        SQLITE,
    ),
    Mutant(
        "position kept after delete in RocksDB",
        "rocksdb",
        "if entry.position is not KEEP:",
        "if isinstance(entry.position, bytes):",
        ROCKSDB,
    ),
    Mutant(
        "position kept after delete on Redis",
        "redis",
        "elif entry.position is None or watch.sequences[source_id] is None:",
        "elif watch.sequences[source_id] is None:",
        REDIS,
    ),
    Mutant(
        "foreign session allowed",
        "session",
        "if self.depth and not self.is_mine():",
        "if self.depth and not self.is_mine() and False:",
        SQLITE,
    ),
    Mutant(
        "strangers read what is staged",
        "persistent",
        "return self._staged if self._depth.is_mine() else Staged()",
        "return self._staged",
        SQLITE,
    ),
    Mutant(
        "an inner commit writes",
        "persistent",
        "if self._depth.depth > 1:\n                self._depth.depth -= 1\n                return",
        "if False:\n                return",
        SQLITE,
    ),
    Mutant(
        "hash over unsorted input",
        "config_hash",
        'sorted(set(_texts(one, "nodes")), key=_order)',
        '_texts(one, "nodes")',
        "tests/unit/test_positions_config_hash.py",
    ),
    Mutant(
        "watch forgotten on Redis",
        "redis",
        '("WATCH", self._key("generation"), *keys)',
        '("WATCH", self._key("generation"))',
        REDIS,
    ),
    Mutant(
        "a cancelled task leaves its session open",
        "aio",
        "                await self._give_up()\n            raise",
        "                pass\n            raise",
        "tests/unit/test_positions_aio.py",
    ),
]


def survives(mutant: Mutant, place: Path) -> tuple[bool, str]:
    """Whether the tests pass all the same, and what they printed last."""
    source = ROOT / "src" / "holdfast"
    copy = place / "holdfast"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__"))
    module = copy / "positions" / f"{mutant.module}.py"
    text = module.read_text(encoding="utf-8")
    assert text.count(mutant.old) == 1, f"{mutant.name}: {text.count(mutant.old)} places to change"
    module.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
    tests = "tests/conformance/test_positions_memory.py" if mutant.tests == "MEMORY" else mutant.tests
    told = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--timeout=60", tests],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(place), "HOLDFAST_REQUIRE_ALL": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    failed = [line for line in told.stdout.splitlines() if line.startswith("FAILED")]
    if told.returncode == 0:
        return True, ""
    assert failed, told.stdout[-2000:] + told.stderr
    return False, failed[0].partition("::")[2].partition(" - ")[0]


def main() -> int:
    survivors = 0
    with tempfile.TemporaryDirectory(prefix="holdfast-mutants-") as name:
        for mutant in MUTANTS:
            survived, by = survives(mutant, Path(name))
            survivors += survived
            print(f"{'SURVIVED' if survived else 'caught':9} {mutant.name:42} {by}", flush=True)
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
