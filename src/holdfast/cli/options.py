"""Options that several commands share, so that they are spelled, documented and set the same everywhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def store_option(command: F) -> F:
    return click.option(
        "--store",
        "store_url",
        metavar="URL",
        required=True,
        envvar="HOLDFAST_STORE",
        show_envvar=True,
        help="A flow's root: a path, file://, memory://name, or a bucket's URL.",
    )(command)


def json_option(command: F) -> F:
    return click.option(
        "--json",
        "as_json",
        is_flag=True,
        envvar="HOLDFAST_JSON",
        show_envvar=True,
        help="Print JSON: a stable contract for programs.",
    )(command)


def span(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """A callback for options that take a span of time, such as ``7 days``: in seconds."""
    from holdfast.errors import InvalidInputError
    from holdfast.pipeline.durations import parse_duration_ms

    if value is None:
        return None
    try:
        return parse_duration_ms(value) / 1000
    except InvalidInputError as error:
        raise click.BadParameter(str(error), ctx, param) from error
