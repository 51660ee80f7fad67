"""A run as it is told: events for programs, one line an epoch for logs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from typing import IO, Any

import pytest

from holdfast.cli.progress import RunLog, sentence, watching
from holdfast.coordinator.steps import Step, observed, of_flow


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
        Step("compute", "after", epoch=number, facts={"milliseconds": 200.0, "rows": 12}),
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
    assert event["milliseconds"] == {
        "compute": 200.0,
        "prepare": 50.0,
        "capture": 12.0,
        "publish": 3.0,
        "commit": 4.0,
    }
    assert event["rows"] == 12


def test_the_times_of_one_epoch_are_not_added_to_the_next() -> None:
    first, second = events_of(*an_epoch(41), *an_epoch(42))

    assert first["milliseconds"] == second["milliseconds"]


def test_an_epoch_that_is_not_finished_is_not_told() -> None:
    assert events_of(*an_epoch(41)[:-1]) == []


def test_an_epoch_is_one_line_in_a_log() -> None:
    (event,) = events_of(*an_epoch(41))

    line = sentence({**event, "total_milliseconds": 75.4})

    assert line == (
        "epoch 41 committed: batch 40 rows 12 "
        "compute 200ms prepare 50ms capture 12ms publish 3ms commit 4ms total 75ms"
    )


def test_rows_that_nobody_counted_are_not_told() -> None:
    (event,) = events_of(*(step for step in an_epoch(41) if step.name != "compute"))

    assert event["rows"] is None
    assert "rows" not in sentence(event)


def test_an_epoch_of_several_batches_adds_up_their_rows_and_times() -> None:
    def batch(number: int, *, rows: int, prepare: float) -> list[Step]:
        return [
            Step("admit", "before", epoch=41),
            Step("admit", "after", epoch=41, facts={"batch": number}),
            Step("compute", "after", epoch=41, facts={"milliseconds": 10.0, "rows": rows}),
            Step("prepare", "after", epoch=41, sink="db", facts={"milliseconds": prepare}),
            Step("prepare", "after", epoch=41, sink="lake", facts={"milliseconds": 1.0}),
        ]

    (event,) = events_of(
        *batch(40, rows=3, prepare=5.0),
        *batch(41, rows=4, prepare=7.0),
        Step("publish", "after", epoch=41, facts={"milliseconds": 2.0}),
        Step("finish", "after", epoch=41),
    )

    assert (event["first_batch"], event["batch"], event["rows"]) == (40, 41, 7)
    assert event["milliseconds"] == {"compute": 20.0, "prepare": 12.0, "publish": 2.0}
    assert sentence(event).startswith("epoch 41 committed: batches 40 to 41 rows 7 compute 20ms")


def test_flows_side_by_side_keep_their_times_and_say_whose_they_are() -> None:
    slow, fast = (
        an_epoch(7),
        [replace(step, facts={**step.facts, "milliseconds": 1.0}) for step in an_epoch(41)],
    )
    told: list[Step] = []
    for one, other in zip(slow, fast, strict=True):
        of_flow("p/slow", told.append)(one)
        of_flow("p/fast", told.append)(other)

    first, second = events_of(*told)

    assert (first["flow"], first["epoch"], first["batch"], first["rows"]) == ("p/slow", 7, 6, 12)
    assert (second["flow"], second["epoch"], second["batch"], second["rows"]) == ("p/fast", 41, 40, 12)
    assert first["milliseconds"]["compute"] == 200.0
    assert set(second["milliseconds"].values()) == {1.0}
    assert sentence(second).startswith("p/fast: epoch 41 committed: batch 40 rows 12 ")


def test_an_epoch_that_a_new_start_takes_up_again_is_told_once_and_without_the_first_attempt() -> None:
    *_, event = events_of(*an_epoch(41)[:-3], Step("start", "after"), *an_epoch(41))

    assert (event["first_batch"], event["batch"], event["rows"]) == (40, 40, 12)
    assert event["milliseconds"]["compute"] == 200.0


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
