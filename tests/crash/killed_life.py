"""One life of a pipeline that writes down its steps, and dies where it is told to.

    killed_life.py PIPELINE.yaml STEPS.jsonl [POINT]
    killed_life.py                                      one undisturbed life for each line on standard input

``POINT`` is a step of the protocol, ``step:before|after:epoch:sink`` (``*`` for any), or ``inside:`` and one
of the places of ``INSIDE``: in the middle of a step, where no observer is asked. Death is SIGKILL for the
whole process group, JVM and all; with ``sleep:`` before the point it is SIGSTOP, and whoever sends SIGCONT
wakes a zombie. The exit code is the one that ``holdfast run`` would have.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.blobs import FileBlobs
from holdfast.cli.exit_codes import exit_code_of
from holdfast.coordinator import Observer, Step
from holdfast.pipeline import load_yaml
from holdfast.spark.demo_life import SHORT_LIVED
from holdfast.spark.running import run_pipeline
from holdfast.spark.session import session_for
from holdfast.spark.sinks import Database, Files, database, disk, files
from holdfast.spark.sinks.attempts import parse_table
from holdfast.spark.sinks.epoch_index import EpochIndex
from holdfast.spark.sinks.sqlite import SQLite

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: The places of ``INSIDE`` are in this epoch: there is one before it to stand on, and one to come.
EPOCH = 2
STAGED = f"-{EPOCH:012}-"  # in the name of an attempt's directory
SHOWN = f"part-{EPOCH:012}-"
ENTRY = f"{EPOCH:012}.json"
RECORD = f"ledger/{EPOCH + 1:012}.json"  # the first record is the start


fatal = signal.SIGKILL


def die() -> None:
    os.killpg(os.getpgid(0), fatal)


def before(owner: Any, name: str, matches: Callable[..., bool], *, nth: int = 1) -> None:
    """Die instead of the ``nth`` call of ``owner.name`` whose arguments match."""
    _arm(owner, name, matches, nth, in_its_place=True)


def after(owner: Any, name: str, matches: Callable[..., bool], *, nth: int = 1) -> None:
    """Die right after the ``nth`` call of ``owner.name`` whose arguments match has done its work."""
    _arm(owner, name, matches, nth, in_its_place=False)


def _arm(owner: Any, name: str, matches: Callable[..., bool], nth: int, *, in_its_place: bool) -> None:
    real: Callable[..., Any] = getattr(owner, name)
    seen = 0

    @wraps(real)
    def armed(*args: Any, **kwargs: Any) -> Any:
        nonlocal seen
        matched = matches(*args)
        seen += matched
        if matched and seen == nth and in_its_place:
            die()
        result = real(*args, **kwargs)
        if matched and seen == nth:
            die()
        return result

    setattr(owner, name, armed)


# --- in the middle of the Files sink -----------------------------------------------------------------


def one_at_a_time() -> None:
    """Two files are then handled one after the other, and "between them" is a place."""
    disk._AT_ONCE = 1


def files_begin() -> None:
    # In the first epoch: only there does a life ask the file system whether it can link.
    before(disk, "write_new", lambda path, data: "/probe-" in path)


def files_while_spark_writes() -> None:
    """As soon as Spark's own temporary directory appears: its tasks are at work, nothing is renamed."""

    def watch() -> None:
        while not any(Path.cwd().glob(f"out/*/_holdfast/staged/*/*{STAGED}*/*/_temporary")):
            time.sleep(0.001)
        die()

    threading.Thread(target=watch, daemon=True).start()


def files_one_named() -> None:
    before(files, "has_rows", lambda path, *_: STAGED in path, nth=2)


def files_one_sealed() -> None:
    one_at_a_time()
    before(disk, "seal_file", lambda path: STAGED in path, nth=2)


def files_one_shown() -> None:
    one_at_a_time()
    before(os, "link", lambda source, target: os.path.basename(target).startswith(SHOWN), nth=2)


def files_all_shown() -> None:
    before(EpochIndex, "create", lambda index, entry: entry.epoch.number == EPOCH)


def files_entry_half_written() -> None:
    before(os, "link", lambda source, target: "/epochs/" in target and target.endswith(ENTRY))


def files_entry_written() -> None:
    before(Files, "_drop_staged", lambda sink, epoch, receipts: epoch.number == EPOCH)


def files_staged_half_dropped() -> None:
    before(disk, "remove", lambda path: STAGED in path and path.endswith(".parquet"), nth=2)


# --- in the middle of the Database sink --------------------------------------------------------------


def _is_staging(table: str) -> bool:
    attempt = parse_table(table)
    return attempt is not None and attempt.number == EPOCH


def database_between_chunks() -> None:
    database._ROWS_AT_ONCE = 3
    before(SQLite, "load", lambda dialect, connection, table, *_: _is_staging(table), nth=2)


def database_chunk_uncommitted() -> None:
    database._ROWS_AT_ONCE = 3
    after(SQLite, "load", lambda dialect, connection, table, *_: _is_staging(table), nth=2)


def database_keys_unchecked() -> None:
    before(Database, "_check_keys_given", lambda sink, staging, fields: _is_staging(staging))


def database_only_epoch_row() -> None:
    before(Database, "_move_in", lambda sink, connection, epoch, receipt: epoch.number == EPOCH)


def database_uncommitted() -> None:
    after(Database, "_move_in", lambda sink, connection, epoch, receipt: epoch.number == EPOCH)


def database_hot_journal() -> None:
    """The same, with half of it already in the database file, and a journal that takes it back."""
    connect = SQLite._connect

    def spilling(dialect: SQLite, mode: str) -> Any:
        connection = connect(dialect, mode)
        connection.execute("PRAGMA cache_size = 1")
        return connection

    SQLite._connect = spilling  # type: ignore[method-assign]
    database_uncommitted()


# --- in the middle of the store's steps --------------------------------------------------------------


def store_no_manifest() -> None:
    before(FileBlobs, "create", lambda blobs, key, data: key.endswith("/manifest.json"), nth=EPOCH)


def store_record_unlinked() -> None:
    before(os, "link", lambda source, target: str(target).endswith(RECORD))


def store_record_linked() -> None:
    after(os, "link", lambda source, target: str(target).endswith(RECORD))


#: place → what has to be armed for it. ``kill_table`` prints the place as it is written here.
INSIDE: dict[str, Callable[[], None]] = {
    "begin lake: its directory made, nothing in it": files_begin,
    "prepare lake: Spark is writing": files_while_spark_writes,
    "prepare lake: one of two files has its name": files_one_named,
    "prepare lake: one of two files synced": files_one_sealed,
    "prepare db: between two chunks of rows": database_between_chunks,
    "prepare db: a chunk loaded, not committed": database_chunk_uncommitted,
    "prepare db: staged, keys not checked": database_keys_unchecked,
    "manifest: not there, the rest may be": store_no_manifest,
    "publish: record written, without its name": store_record_unlinked,
    "publish: record there, nobody told": store_record_linked,
    "commit lake: one of two files shown": files_one_shown,
    "commit lake: both shown, no index entry": files_all_shown,
    "commit lake: index entry without its name": files_entry_half_written,
    "commit lake: index entry there, all staged": files_entry_written,
    "commit lake: one of two staged files dropped": files_staged_half_dropped,
    "commit db: epoch's row in, its rows not": database_only_epoch_row,
    "commit db: all rows in, no COMMIT": database_uncommitted,
    "commit db: the same, pages on disk already": database_hot_journal,
}


@contextmanager
def recording(path: Path) -> Iterator[Observer]:
    """Write every step down before anything else happens. A write survives the death of who wrote."""
    lock = threading.Lock()  # sinks prepare and commit side by side

    def observe(step: Step) -> None:
        line = {
            "name": step.name,
            "when": step.when,
            "epoch": step.epoch,
            "sink": step.sink,
            "facts": dict(step.facts),
        }
        with lock:
            journal.write(json.dumps(line, default=str) + "\n")
            journal.flush()

    with path.open("a", encoding="utf-8") as journal:
        yield observe


def one_life(yaml: str, steps: str, point: str, session: SparkSession) -> None:
    wanted = None
    if point.startswith("inside:"):
        INSIDE[point.removeprefix("inside:")]()
    elif point:
        wanted = point.split(":")

    with recording(Path(steps)) as record:

        def observe(step: Step) -> None:
            record(step)
            here = (step.name, step.when, str(step.epoch), step.sink or "")
            if wanted and all(one in ("*", other) for one, other in zip(wanted, here, strict=True)):
                die()

        run_pipeline(load_yaml(Path(yaml)), session=session, observe=observe)


def serve(session: SparkSession) -> None:
    """One life after the other in a process that has a Spark already: half of a life is spent on starting it.

    What it hears is ``[pipeline, steps]``; what it says is ``life:`` and the error, if there was one.
    """
    for line in sys.stdin:
        yaml, steps = json.loads(line)
        error = ""
        try:
            one_life(yaml, steps, "", session)
        except Exception:
            error = traceback.format_exc()
        print("life:" + json.dumps(error), flush=True)


def main(yaml: str = "", steps: str = "", point: str = "") -> None:
    settings = {**SHORT_LIVED, "spark.master": "local[2]", "spark.sql.shuffle.partitions": "2"}
    session = session_for("killed-life", settings)
    if point.startswith("sleep:"):
        global fatal
        fatal = signal.SIGSTOP
    try:
        if yaml:
            one_life(yaml, steps, point.removeprefix("sleep:"), session)
        else:
            serve(session)
    finally:
        session.stop()


if __name__ == "__main__":
    sys.exit(exit_code_of(lambda: main(*sys.argv[1:])))
