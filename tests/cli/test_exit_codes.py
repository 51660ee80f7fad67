"""Which end has which code, and what is said about it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from holdfast.cli.exit_codes import ExitCode, exit_code_of
from holdfast.coordinator.sink import SinkOutcomeUnknownError
from holdfast.errors import (
    ChangedPipelineError,
    CheckpointNotFoundError,
    CorruptError,
    EpochTakenError,
    FencedError,
    HoldfastError,
    InvalidInputError,
    KeyNotFoundError,
    MissingExtraError,
    OutcomeUnknownError,
    StoreUnavailableError,
    UnsupportedFormatError,
)
from holdfast.ledger.records import seal_bytes

Holdfast: TypeAlias = Callable[..., "subprocess.CompletedProcess[str]"]

EXAMPLE = Path(__file__).parents[2] / "examples" / "pipeline.yaml"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (HoldfastError("anything"), ExitCode.ERROR),
        (InvalidInputError("a wrong call"), ExitCode.USAGE),
        (KeyNotFoundError("a"), ExitCode.NOTHING_THERE),
        (CheckpointNotFoundError("a"), ExitCode.NOTHING_THERE),
        (FencedError(1, 2, "w"), ExitCode.CONFLICT),
        (EpochTakenError(1, 2), ExitCode.CONFLICT),
        (UnsupportedFormatError("k", "new"), ExitCode.UNSUPPORTED_FORMAT),
        (CorruptError("k", "bad"), ExitCode.CORRUPT),
        (SinkOutcomeUnknownError("db", 41), ExitCode.UNKNOWN_SINK_OUTCOME),
        (OutcomeUnknownError("a lost reply"), ExitCode.ERROR),
        (ChangedPipelineError("changed"), ExitCode.ERROR),
        (StoreUnavailableError("away"), ExitCode.ERROR),
        (MissingExtraError("spark", "run"), ExitCode.ERROR),
        (KeyboardInterrupt(), ExitCode.INTERRUPTED),
        (ZeroDivisionError("a bug"), ExitCode.ERROR),
    ],
)
def test_every_kind_of_error_has_its_code(
    error: BaseException, code: ExitCode, capsys: pytest.CaptureFixture[str]
) -> None:
    def command() -> None:
        raise error

    assert exit_code_of(command) == code
    said = capsys.readouterr()
    assert said.out == ""
    assert "Traceback" not in said.err


def test_an_error_is_one_line_its_notes_and_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    error = CorruptError("ledger/000000000007.json", "flipped").with_hint("holdfast verify")
    error.add_note("in flow 'per_minute'")

    def command() -> None:
        raise error

    exit_code_of(command)

    assert capsys.readouterr().err.splitlines() == [
        "error: ledger/000000000007.json is corrupt: flipped",
        "note: in flow 'per_minute'",
        "hint: holdfast verify",
    ]


def test_an_error_nobody_expected_says_how_to_see_more(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def command() -> None:
        raise ZeroDivisionError("a bug")

    exit_code_of(command)
    plain = capsys.readouterr().err
    monkeypatch.setenv("HOLDFAST_DEBUG", "1")
    exit_code_of(command)
    traced = capsys.readouterr().err

    assert plain == "error: ZeroDivisionError: a bug\nhint: set HOLDFAST_DEBUG=1 to see where it comes from\n"
    assert "Traceback" in traced
    assert "def command" in traced or "in command" in traced


class TestProcesses:
    def test_0_when_all_is_well(self, holdfast: Holdfast) -> None:
        result = holdfast("run", EXAMPLE, "--check", "--json")

        assert result.returncode == 0
        assert json.loads(result.stdout)["ok"] is True

    def test_1_for_what_has_no_code_of_its_own(self, holdfast: Holdfast, tmp_path: Path) -> None:
        # A place that cannot be looked at: nothing is known of what it holds.
        (tmp_path / "round").symlink_to(tmp_path / "round")

        result = holdfast("list", "--store", tmp_path / "round")

        assert (result.returncode, result.stdout) == (1, "")
        assert result.stderr.startswith("error: looking at ")
        assert "\nhint: try again" in result.stderr

    @pytest.mark.parametrize(
        ("arguments", "message", "hint"),
        [
            (["lst"], "No such command 'lst'. Did you mean 'list'?", "holdfast --help"),
            (["list"], "Missing option '--store' (env var: 'HOLDFAST_STORE').", "holdfast list --help"),
            (
                ["list", "--stor", "x"],
                "No such option '--stor'.",
                "holdfast list --help",
            ),
            (["recover", "--store", "x"], "--dry-run, or an answer with --sink", "holdfast recover --help"),
            (
                ["run", str(EXAMPLE), "--trigger", "once"],
                "allowed are available-now, or an",
                "holdfast run --help",
            ),
        ],
    )
    def test_2_for_a_wrong_call(
        self, holdfast: Holdfast, arguments: list[str], message: str, hint: str
    ) -> None:
        result = holdfast(*arguments)

        assert (result.returncode, result.stdout) == (2, "")
        error, hinted = result.stderr.splitlines()
        assert error.startswith("error: ")
        assert message in error
        assert hinted == f"hint: {hint}"

    def test_2_for_a_wrong_declaration(self, holdfast: Holdfast, tmp_path: Path) -> None:
        (tmp_path / "pipeline.yaml").write_text("pipeline: orders\nstor: x\n")

        result = holdfast("run", tmp_path / "pipeline.yaml", "--check")

        assert (result.returncode, result.stdout) == (2, "")
        assert "pipeline.yaml:2: stor: unknown key; did you mean 'store'?" in result.stderr

    def test_2_and_help_for_no_command(self, holdfast: Holdfast) -> None:
        result = holdfast()

        assert result.returncode == 2
        assert "Commands:" in result.stderr

    def test_10_where_nothing_is_there(self, holdfast: Holdfast, tmp_path: Path) -> None:
        for command in (["list"], ["show"], ["log"], ["verify"], ["recover", "--dry-run"]):
            result = holdfast(*command, "--store", tmp_path / "nowhere")

            assert (result.returncode, result.stdout) == (10, ""), command
            assert result.stderr.startswith("error: there is no checkpoint store at ")
            assert "\nhint: " in result.stderr

    def test_11_where_a_run_owns_the_flow(self, holdfast: Holdfast, flow: Any, query: Any) -> None:
        flow.decide(1)

        result = holdfast("capture", query.root, "--store", flow.root)

        assert (result.returncode, result.stdout) == (11, "")
        assert result.stderr.startswith("error: ")

    def test_12_for_what_a_newer_version_wrote(self, holdfast: Holdfast, tmp_path: Path) -> None:
        common = {"generation": 0, "writer": "0" * 32, "at_ms": 0, "prev": None}
        (tmp_path / "ledger").mkdir()
        (tmp_path / "ledger" / "000000000001.json").write_bytes(
            seal_bytes({"n": 1, "kind": "unheard-of", **common})
        )

        result = holdfast("list", "--store", tmp_path)

        assert (result.returncode, result.stdout) == (12, "")
        assert "hint: upgrade holdfast" in result.stderr

    def test_20_for_a_flipped_bit(self, holdfast: Holdfast, flow: Any) -> None:
        key = flow.damage("batch-*.lz4", flow.decide(1))

        result = holdfast("verify", "--store", flow.root, "--read-data")

        assert result.returncode == 20
        assert key in result.stdout

    def test_21_where_a_start_would_step_back(self, holdfast: Holdfast, flow: Any) -> None:
        flow.decide(1)
        flow.damage("batch-*.lz4", flow.decide(2))

        result = holdfast("recover", "--dry-run", "--store", flow.root)

        assert result.returncode == 21
        assert "replay" in result.stdout

    def test_130_when_interrupted(self, tmp_path: Path) -> None:
        # A declaration that never arrives: the command is busy reading for as long as we like.
        os.mkfifo(tmp_path / "pipeline.yaml")
        process = subprocess.Popen(
            [Path(sys.executable).with_name("holdfast"), "run", tmp_path / "pipeline.yaml", "--check"],
            stderr=subprocess.PIPE,
            text=True,
        )
        # This waits for a reader: from here on the command is reading, and gets nothing.
        with (tmp_path / "pipeline.yaml").open("wb"):
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=30)

        assert process.returncode == 130
        assert said.splitlines()[-1] == "interrupted"
        assert "Traceback" not in said
