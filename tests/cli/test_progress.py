"""A run as it is told: events for programs, one line an epoch for logs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import IO, Any

import pytest

from holdfast.cli.progress import RunLog, sentence, watching
from holdfast.coordinator.steps import Step, observed


def events_of(*steps: Step) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = []
    log = RunLog(told.append)
    for step in steps:
        log.observe(step)
    return told


def an_epoch(number: int) -> list[Step]:
    return [
        Step("admit", "before", epoch=number),
        Step("admit", "after", epoch=number, facts={"batch": number - 1, "milliseconds": 0.1}),
        Step("prepare", "before", epoch=number, sink="lake"),
        Step("prepare", "after", epoch=number, sink="lake", facts={"milliseconds": 30.0}),
        Step("prepare", "after", epoch=number, sink="db", facts={"milliseconds": 50.0}),
        Step("capture", "after", epoch=number, facts={"milliseconds": 12.0, "objects": 1}),
        Step("publish", "after", epoch=number, facts={"milliseconds": 3.0, "record": 9}),
        Step("commit", "after", epoch=number, sink="db", facts={"milliseconds": 4.0}),
        Step("finish", "after", epoch=number, facts={"milliseconds": 0.2}),
    ]


def test_an_epoch_is_one_event_with_the_time_of_each_step() -> None:
    (event,) = events_of(*an_epoch(41))

    assert event["event"] == "epoch"
    assert (event["epoch"], event["batch"]) == (41, 40)
    # Side by side: the slower sink is how long the epoch waited.
    assert event["milliseconds"] == {"prepare": 50.0, "capture": 12.0, "publish": 3.0, "commit": 4.0}


def test_the_times_of_one_epoch_are_not_added_to_the_next() -> None:
    first, second = events_of(*an_epoch(41), *an_epoch(42))

    assert first["milliseconds"] == second["milliseconds"]


def test_an_epoch_that_is_not_finished_is_not_told() -> None:
    assert events_of(*an_epoch(41)[:-1]) == []


def test_an_epoch_is_one_line_in_a_log() -> None:
    (event,) = events_of(*an_epoch(41))

    line = sentence({**event, "total_milliseconds": 75.4})

    assert line == "epoch 41 committed: batch 40 prepare 50ms capture 12ms publish 3ms commit 4ms total 75ms"


@pytest.mark.parametrize(
    ("step", "line"),
    [
        (Step("start", "after", facts={"generation": 7, "writer": "ab"}), "generation 7 started"),
        (Step("replay", "after", epoch=40, facts={"batch": 39}), "epoch 40 replayed: batch 39, sinks closed"),
        (
            Step("resolve", "after", epoch=40, facts={"sinks": ["db"]}),
            "resolve of epoch 40 done: sinks=['db']",
        ),
        (Step("stop", "after"), "stopped in good order"),
    ],
)
def test_what_happens_around_epochs_is_told_too(step: Step, line: str) -> None:
    (event,) = events_of(step)

    assert sentence(event) == line


def test_without_a_terminal_a_run_writes_dated_lines_to_standard_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with watching(as_json=False) as observe, observed(observe, "start") as facts:
        facts.update(generation=3)

    said = capsys.readouterr()
    assert said.out == ""
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ generation 3 started\n", said.err)


def test_on_a_terminal_the_step_at_work_is_seen_and_each_event_stays() -> None:
    program = (
        "from holdfast.cli.progress import watching\n"
        "from holdfast.coordinator.steps import observed\n"
        "with watching(as_json=False) as observe:\n"
        "    with observed(observe, 'prepare', epoch=41, sink='lake'): input()\n"
        "    with observed(observe, 'start') as facts: facts.update(generation=3)\n"
    )
    ours, theirs = os.openpty()

    with (
        os.fdopen(ours, "rb", buffering=0) as terminal,
        subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stderr=theirs,
            env={**os.environ, "TERM": "xterm"},
            text=True,
        ) as process,
    ):
        os.close(theirs)
        # The step lasts until we have seen it: were it never shown, the test would end by its time limit.
        _read_until(terminal, "epoch 41: prepare lake")
        process.communicate("\n")
        _read_until(terminal, "generation 3 started")


def _read_until(terminal: IO[bytes], text: str) -> None:
    seen = b""
    while text.encode() not in seen:
        seen += terminal.read(4096)


def test_with_json_a_run_writes_one_object_a_line_to_standard_output(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with watching(as_json=True) as observe, observed(observe, "start") as facts:
        facts.update(generation=3)

    said = capsys.readouterr()
    assert said.err == ""
    assert said.out == '{"event": "start", "generation": 3}\n'
