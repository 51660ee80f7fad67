"""The one place that picks an exit code, and the one that prints an error. Commands let errors pass.

0 ok                   10 nothing there              20 corrupt found          130 interrupted
1 error                11 fenced, or conflict        21 stepped back
2 usage                12 unsupported format         22 unknown sink outcome
3 partial
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from enum import IntEnum

import click

from holdfast.errors import (
    ConflictError,
    CorruptError,
    HoldfastError,
    InvalidInputError,
    NotFoundError,
    OutcomeUnknownError,
    UnsupportedFormatError,
)


class ExitCode(IntEnum):
    OK = 0
    ERROR = 1
    USAGE = 2
    PARTIAL = 3
    NOTHING_THERE = 10
    CONFLICT = 11
    UNSUPPORTED_FORMAT = 12
    CORRUPT = 20
    STEPPED_BACK = 21
    UNKNOWN_SINK_OUTCOME = 22
    INTERRUPTED = 130


_BY_ERROR: tuple[tuple[type[BaseException], ExitCode], ...] = (
    (InvalidInputError, ExitCode.USAGE),
    (NotFoundError, ExitCode.NOTHING_THERE),
    (ConflictError, ExitCode.CONFLICT),
    (UnsupportedFormatError, ExitCode.UNSUPPORTED_FORMAT),
    (CorruptError, ExitCode.CORRUPT),
    (KeyboardInterrupt, ExitCode.INTERRUPTED),
    (click.Abort, ExitCode.INTERRUPTED),
)


def code_for(error: BaseException) -> ExitCode:
    """The exit code that says what kind of end ``error`` is."""
    if isinstance(error, OutcomeUnknownError):
        from holdfast.coordinator.sink import SinkOutcomeUnknownError

        is_sinks = isinstance(error, SinkOutcomeUnknownError)
        return ExitCode.UNKNOWN_SINK_OUTCOME if is_sinks else ExitCode.ERROR
    return next((code for kind, code in _BY_ERROR if isinstance(error, kind)), ExitCode.ERROR)


def exit_code_of(command: Callable[[], object]) -> int:
    """Run ``command``; its exit code. What it returns is its code, None is 0. Errors are printed here."""
    try:
        code = command()
        sys.stdout.flush()
        return int(code) if isinstance(code, int) else ExitCode.OK
    except click.ClickException as error:
        print_usage(error)
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        print("interrupted", file=sys.stderr)  # noqa: T201
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        # Whoever read us has seen enough. What is still buffered must not complain at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.ERROR
    except Exception as error:  # noqa: BLE001 - the last line of defence: a person gets a sentence, not a trace
        print_error(error)
        return code_for(error)


def print_usage(error: click.ClickException) -> None:
    """A wrong call, in the same form as every other error; help where help is what was missing."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()
        return
    print(f"error: {error.format_message()}", file=sys.stderr)  # noqa: T201
    context = error.ctx if isinstance(error, click.UsageError) else None
    if context is not None:
        print(f"hint: {context.command_path} --help", file=sys.stderr)  # noqa: T201


def print_error(error: BaseException) -> None:
    """``error: …`` and ``hint: …`` on standard error; the trace as well where HOLDFAST_DEBUG is set."""
    if os.environ.get("HOLDFAST_DEBUG"):
        traceback.print_exception(error)
    expected = isinstance(error, HoldfastError)
    sentence = str(error) if expected else f"{type(error).__name__}: {error}"
    # Spark appends the JVM's trace to its messages.
    lines = [f"error: {sentence.split('JVM stacktrace:')[0].strip()}"]
    lines += [f"note: {note}" for note in getattr(error, "__notes__", ())]
    hint = getattr(error, "hint", None)
    if hint is None and not expected:
        hint = "set HOLDFAST_DEBUG=1 to see where it comes from"
    if hint:
        lines.append(f"hint: {hint}")
    print("\n".join(lines), file=sys.stderr)  # noqa: T201
