"""The pages about positions run: the how-to with kills in between, the examples as they stand."""

from __future__ import annotations

import asyncio
import json
import random
import re
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parent.parent.parent / "docs"


def blocks(name: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (DOCS / name).read_text(encoding="utf-8"), re.DOTALL)


def totals(database: Path) -> dict[str, int]:
    connection = sqlite3.connect(database)
    found = dict(connection.execute("SELECT name, total FROM totals").fetchall())
    connection.close()
    return found


def test_the_how_to_counts_each_event_once_however_often_it_is_killed(tmp_path: Path) -> None:
    (code,) = blocks("howto-exactly-once-consumer.md")
    assert len([line for line in code.splitlines() if line.strip()]) <= 20
    program, log, database = tmp_path / "consumer.py", tmp_path / "events.jsonl", tmp_path / "totals.db"
    program.write_text(code)
    chance = random.Random(5)
    events = [{"name": chance.choice("abc"), "n": chance.randrange(10)} for _ in range(1_500)]
    log.write_text("".join(json.dumps(event) + "\n" for event in events))
    command = [sys.executable, str(program), str(log), str(database)]

    kills = 0
    for _ in range(6):
        running = subprocess.Popen(command)
        before = time.monotonic()
        # Into the middle of its work, not of its start.
        while running.poll() is None and time.monotonic() - before < 20 and not moved(database, kills):
            time.sleep(0.01)
        kills += running.poll() is None
        running.kill()
        running.wait()
    subprocess.run(command, check=True)

    expected = {name: sum(event["n"] for event in events if event["name"] == name) for name in "abc"}
    assert kills
    assert totals(database) == expected


def moved(database: Path, kills: int) -> bool:
    """Whether the table holds at least 50 events more for each kill so far."""
    if not database.exists():
        return False
    connection = sqlite3.connect(database)
    try:
        row = connection.execute("SELECT sequence FROM holdfast_positions").fetchone()
    except sqlite3.OperationalError:
        return False
    finally:
        connection.close()
    return row is not None and int.from_bytes(row[0], "big") >= 50 * (kills + 1)


def test_the_examples_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first, starting, loop = blocks("positions.md")
    names: dict[str, object] = {}

    exec(first, names)
    exec(starting, names)
    exec(loop, names)
    asyncio.run(names["note"](42, b"p"))  # type: ignore[operator]

    # Positions without a hash: whose they are is not known.
    assert str(names["plan"].decision) == "fail"  # type: ignore[attr-defined]
    connection = sqlite3.connect(tmp_path / "positions" / "positions.db")
    assert connection.execute(
        "SELECT source_position FROM holdfast_positions ORDER BY source_id"
    ).fetchall() == [
        (b"p",),
        (b"\0\0\0\7",),
    ]
    connection.close()


def test_the_page_names_every_public_name() -> None:
    import holdfast.positions

    page = (DOCS / "positions.md").read_text(encoding="utf-8")
    public = set(holdfast.positions.__all__) - {
        "ResumeDecision",
        "ResumePlan",
        "Session",
        "SourceCheckpointStore",
    }

    assert {name for name in public if name not in page} <= {
        "MAX_SOURCE_POSITION_BYTES",
        "MemorySourceCheckpointStore",
    }
    for name in holdfast.positions.__all__:
        assert getattr(holdfast.positions, name) is not None
