"""Which end has which code, and what is said about it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

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

HOLDFAST = Path(sys.executable).with_name("holdfast")
EXAMPLE = Path(__file__).parents[2] / "examples" / "pipeline.yaml"


def holdfast(*arguments: object, **environ: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    return subprocess.run(
        [HOLDFAST, *map(str, arguments)],
        env={**clean, **environ},
        capture_output=True,
        text=True,
        check=False,
    )


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
    def test_0_when_all_is_well(self) -> None:
        result = holdfast("run", EXAMPLE, "--check", "--json")

        assert result.returncode == 0
        assert json.loads(result.stdout)["ok"] is True

    def test_1_for_what_has_no_code_of_its_own(self, tmp_path: Path) -> None:
        result = holdfast("list", "--store", "s3://bucket/flow")

        assert (result.returncode, result.stdout) == (1, "")
        assert result.stderr == (
            "error: s3:// needs the extra 'cloud'\nhint: pip install 'holdfast[cloud]'\n"
        )

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
            (["recover", "--store", "x"], "only --dry-run is supported yet", "holdfast recover --help"),
            (
                ["run", str(EXAMPLE), "--trigger", "once"],
                "allowed are available-now, or an",
                "holdfast run --help",
            ),
        ],
    )
    def test_2_for_a_wrong_call(self, arguments: list[str], message: str, hint: str) -> None:
        result = holdfast(*arguments)

        assert (result.returncode, result.stdout) == (2, "")
        error, hinted = result.stderr.splitlines()
        assert error.startswith("error: ")
        assert message in error
        assert hinted == f"hint: {hint}"

    def test_2_for_a_wrong_declaration(self, tmp_path: Path) -> None:
        (tmp_path / "pipeline.yaml").write_text("pipeline: orders\nstor: x\n")

        result = holdfast("run", tmp_path / "pipeline.yaml", "--check")

        assert (result.returncode, result.stdout) == (2, "")
        assert "pipeline.yaml:2: stor: unknown key; did you mean 'store'?" in result.stderr

    def test_2_and_help_for_no_command(self) -> None:
        result = holdfast()

        assert result.returncode == 2
        assert "Commands:" in result.stderr

    def test_130_when_interrupted(self, tmp_path: Path) -> None:
        # A declaration that never arrives: the command is busy reading for as long as we like.
        os.mkfifo(tmp_path / "pipeline.yaml")
        process = subprocess.Popen(
            [HOLDFAST, "run", tmp_path / "pipeline.yaml", "--check"], stderr=subprocess.PIPE, text=True
        )
        # This waits for a reader: from here on the command is reading, and gets nothing.
        with (tmp_path / "pipeline.yaml").open("wb"):
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=30)

        assert process.returncode == 130
        assert said.splitlines()[-1] == "interrupted"
        assert "Traceback" not in said
