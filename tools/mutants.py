"""Seeded bugs, each a small change to our own code, each caught by a test that is named here.

`make mutants` changes a copy of `src`, never the checkout, and runs the named test against it. A mutant that
survives, or whose place in the code can no longer be found, fails the run. `--only NAME` tries a few.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Mutant:
    """``old`` stands once in ``file`` (below src/holdfast) and becomes ``new``; ``test`` must then fail."""

    name: str
    file: str
    old: str
    new: str
    test: str


FILES_CRASH = "tests/crash/test_files_crash_model.py"
FILES_ORDER = "tests/unit/test_files_durability.py"
FILES_SUITE = "tests/conformance/test_blobs_files.py"
BAD_DAYS = "tests/services/test_blobs_bad_days.py"
RETRYING = "tests/unit/test_blobs_retrying.py"

MUTANTS = [
    Mutant(
        "no fsync",
        "blobs/files.py",
        "                written += os.write(descriptor, piece[written:])\n        os.fsync(descriptor)\n",
        "                written += os.write(descriptor, piece[written:])\n",
        f"{FILES_CRASH}::test_after_a_crash_at_any_call_a_reader_finds_old_or_new_and_all_that_returned[pointer]",
    ),
    Mutant(
        "no directory fsync",
        "blobs/files.py",
        "                os.unlink(temporary)\n                os.fsync(directory)\n",
        "                os.unlink(temporary)\n",
        f"{FILES_CRASH}::test_after_a_crash_at_any_call_a_reader_finds_old_or_new_and_all_that_returned[ledger]",
    ),
    Mutant(
        "no fsync of a new parent",
        "blobs/files.py",
        "        _sync_directory(parent)\n",
        "",
        f"{FILES_CRASH}::test_after_a_crash_at_any_call_a_reader_finds_old_or_new_and_all_that_returned[first_object]",
    ),
    Mutant(
        "no fsync after a delete",
        "blobs/files.py",
        "what we call gone must stay gone.\n            os.fsync(directory)\n",
        "\n",
        f"{FILES_CRASH}::test_after_a_crash_at_any_call_a_reader_finds_old_or_new_and_all_that_returned[prune]",
    ),
    Mutant(
        "rename for link",
        "blobs/files.py",
        "os.link(temporary, path)",
        "os.rename(temporary, path); open(temporary, 'w').close()",
        f"{FILES_SUITE}::TestFileBlobs::test_a_taken_key_refuses_a_second_create_and_keeps_its_bytes",
    ),
    Mutant(
        "named before it is written",
        "blobs/files.py",
        "                _write_and_sync(descriptor, pieces)\n",
        "                if doing == 'creating':\n"
        "                    os.link(temporary, path)\n"
        "                _write_and_sync(descriptor, pieces)\n"
        "                if doing == 'creating':\n"
        "                    os.unlink(path)\n",
        f"{FILES_CRASH}::test_after_a_crash_at_any_call_a_reader_finds_old_or_new_and_all_that_returned[ledger]",
    ),
    Mutant(
        "fsync retried",
        "blobs/files.py",
        "                written += os.write(descriptor, piece[written:])\n        os.fsync(descriptor)\n",
        "                written += os.write(descriptor, piece[written:])\n"
        "        try:\n            os.fsync(descriptor)\n"
        "        except OSError:\n            os.fsync(descriptor)\n",
        f"{FILES_ORDER}::test_a_failed_fsync_is_never_repeated_on_the_same_file",
    ),
    Mutant(
        "fixed temporary name",
        "blobs/files.py",
        "{os.getpid()}-{secrets.token_hex(8)}",
        "fixed",
        f"{FILES_ORDER}::test_each_attempt_has_a_temporary_name_of_its_own",
    ),
    Mutant(
        "delete errors swallowed",
        "blobs/files.py",
        '            raise self._translated(error, "deleting", key) from error\n        finally:',
        "            pass\n        finally:",
        f"{FILES_ORDER}::test_a_delete_that_fails_says_so",
    ),
    Mutant(
        "a lost directory read as an empty store",
        "blobs/files.py",
        "            if self._root_seen:\n                raise",
        "            if False:\n                raise",
        "tests/unit/test_files_oddities.py::test_a_root_that_vanished_is_an_unavailable_store_and_not_an_empty_one",
    ),
    Mutant(
        "spelling not looked at",
        "blobs/files.py",
        "        if self._folds_case():\n",
        "        if False:\n",
        "tests/unit/test_files_folding.py"
        "::test_a_key_that_differs_only_by_case_is_a_conflict_in_every_call_and_harms_nothing",
    ),
    Mutant(
        "a race decided by looking first",
        "blobs/files.py",
        "os.link(temporary, path)",
        "os.path.exists(path) and os.link(temporary, path);"
        " os.rename(temporary, path); open(temporary, 'w').close()",
        "tests/crash/test_blobs_processes.py::test_of_32_processes_exactly_one_creates_each_file",
    ),
    Mutant(
        "listing unsorted",
        "blobs/walking.py",
        "return nsmallest(_NAMES_AT_ONCE, _wanted(entries, directory, prefix, start_after, last))",
        "return list(_wanted(entries, directory, prefix, start_after, last))",
        f"{FILES_SUITE}::TestFileBlobs::test_keys_come_in_ascending_order_whatever_order_they_were_written_in",
    ),
    Mutant(
        "directories sorted without their slash",
        "blobs/walking.py",
        "return nsmallest(_NAMES_AT_ONCE, _wanted(entries, directory, prefix, start_after, last))",
        "return sorted(_wanted(entries, directory, prefix, start_after, last),"
        " key=lambda name: name.rstrip('/'))",
        f"{FILES_SUITE}::TestFileBlobs::test_keys_come_in_ascending_order_whatever_order_they_were_written_in",
    ),
    Mutant(
        "412 taken as a failure",
        "blobs/object_errors.py",
        "return self.status in (304, 412) or",
        "return self.status == 304 or",
        f"{BAD_DAYS}::test_412_is_taken_at_once_without_reading_anything",
    ),
    Mutant(
        "409 taken as success",
        "blobs/objects.py",
        "            outcome = settle(self, key, pieces)\n",
        "            return\n",
        f"{BAD_DAYS}::test_409_is_neither_success_nor_taken_when_a_rival_was_faster",
    ),
    Mutant(
        "409 taken for taken",
        "blobs/object_errors.py",
        "return self.status in (304, 412) or",
        "return self.status in (304, 409, 412) or",
        f"{BAD_DAYS}::test_a_create_that_took_effect_without_a_proper_answer_is_found_to_be_ours",
    ),
    Mutant(
        "no read-back",
        "blobs/objects.py",
        "            outcome = settle(self, key, pieces)\n",
        "            outcome = Settled.MISSING\n",
        f"{BAD_DAYS}::test_a_create_that_took_effect_without_a_proper_answer_is_found_to_be_ours",
    ),
    Mutant(
        "412 after our own retry taken for a rival",
        "blobs/retrying.py",
        "                if self._settled(key, pieces, in_doubt) is Settled.OURS:\n",
        "                if False:\n",
        f"{RETRYING}::test_taken_after_our_own_attempt_without_an_answer_is_ours_if_the_bytes_are",
    ),
    Mutant(
        "anything there taken for ours",
        "blobs/settling.py",
        "return Settled.OURS if _equal(found, pieces) else Settled.TAKEN",
        "return Settled.OURS",
        f"{RETRYING}::test_taken_by_a_rival_is_taken_whatever_became_of_our_attempt",
    ),
    Mutant(
        "a prefix taken for the whole",
        "blobs/settling.py",
        "    return position == len(found)\n",
        "    return True\n",
        f"{RETRYING}::test_a_prefix_of_our_bytes_is_not_ours",
    ),
    Mutant(
        "a doubt forgotten",
        "blobs/retrying.py",
        "                failed = in_doubt or error\n",
        "                failed = error\n",
        f"{RETRYING}::test_a_doubt_is_not_forgotten_when_the_store_then_goes_away",
    ),
    Mutant(
        "no fork guard",
        "blobs/objects.py",
        "    _forked_after_use = _forked_after_use or _used\n",
        "    pass\n",
        f"{BAD_DAYS}::test_the_forked_child_of_a_process_that_used_a_store_gets_an_error_and_not_a_hang",
    ),
    Mutant(
        "ids start anew after a fork",
        "ids.py",
        "        if self._ms >= 0:\n            self._next_millisecond()\n",
        "",
        "tests/unit/test_ids.py::test_the_child_of_a_fork_makes_other_ids_than_its_parent",
    ),
    Mutant(
        "a lying size believed",
        "batch.py",
        "    if claimed > _LARGEST_RATIO * len(block):\n",
        "    if False:\n",
        "tests/unit/test_batch.py::test_a_claim_of_4_gib_in_a_small_object_allocates_nothing",
    ),
    Mutant(
        "checksum not compared",
        "batch.py",
        "    if actual != expected:\n",
        "    if False:\n",
        "tests/unit/test_batch.py::test_every_single_bit_flip_is_found",
    ),
    Mutant(
        "a second flush overwrites the first",
        "batch.py",
        "                self._blobs.create(key, encoded)\n",
        "                self._blobs.put(key, encoded)\n",
        "tests/unit/test_batch.py::test_a_second_flush_of_an_epoch_overwrites_nothing",
    ),
]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="part of a mutant's name")
    only = parser.parse_args().only
    chosen = [mutant for mutant in MUTANTS if not only or any(part in mutant.name for part in only)]
    if not chosen or not sound({mutant.test for mutant in chosen}):
        print(
            "mutants: the named tests must be there, and pass as long as nothing is changed", file=sys.stderr
        )
        return 1
    survivors = [mutant.name for mutant in chosen if not caught(mutant)]
    print(f"mutants: {len(chosen) - len(survivors)} of {len(chosen)} caught")
    for name in survivors:
        print(f"mutants: SURVIVED: {name}", file=sys.stderr)
    return 1 if survivors else 0


def sound(tests: set[str]) -> bool:
    """Whether the tests pass on an unchanged copy: one that always fails would catch anything."""
    with tempfile.TemporaryDirectory(prefix="holdfast-mutant-") as name:
        code, told = run(sorted(tests), copied(Path(name)))
    if code != 0:
        print(told, file=sys.stderr)
    return code == 0


def caught(mutant: Mutant) -> bool:
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="holdfast-mutant-") as name:
        source = copied(Path(name))
        path = source / "holdfast" / mutant.file
        text = path.read_text(encoding="utf-8")
        if text.count(mutant.old) != 1:
            print(f"{mutant.name:45} has no place in {mutant.file} any more: bring it up to date")
            return False
        path.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
        code, told = run([mutant.test], source)
    # 1: a test failed. Anything else means that no test ran, which is not the same.
    verdict = {0: "SURVIVED", 1: "caught"}.get(code, f"NOT TRIED (pytest ended with {code})")
    seconds = time.monotonic() - started
    print(f"{mutant.name:45} {verdict} in {seconds:.1f} s by {mutant.test.split('::')[-1]}", flush=True)
    if code not in (0, 1):
        print(told, file=sys.stderr)
    return code == 1


def copied(place: Path) -> Path:
    source = place / "src"
    shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
    return source


def run(tests: list[str], source: Path) -> tuple[int, str]:
    """pytest's exit code and last words, with ``source`` before the installed package."""
    environment = os.environ | {"PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout[-2000:] + done.stderr[-2000:]


if __name__ == "__main__":
    sys.exit(main())
