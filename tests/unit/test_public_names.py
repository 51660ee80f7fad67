"""The names on the front page: what type checkers see and what loads are the same."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

import holdfast

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.parametrize("name", holdfast.__all__)
def test_every_public_name_loads_and_is_documented(name: str) -> None:
    value = getattr(holdfast, name)

    assert value.__name__ == name
    assert value.__doc__, f"{name} has no docstring"


def test_type_checkers_are_told_the_names_that_exist_at_run_time() -> None:
    tree = ast.parse(Path(holdfast.__file__).read_text(encoding="utf-8"))
    told = {
        alias.asname: statement.module
        for statement in ast.walk(tree)
        if isinstance(statement, ast.ImportFrom) and (statement.module or "").startswith("holdfast.")
        for alias in statement.names
    }

    homes = {name: f"holdfast.{home}" for name, home in vars(holdfast)["_HOMES"].items()}

    assert told == homes
    assert holdfast.__all__ == sorted(homes)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing_of_ours'"):
        _ = holdfast.nothing_of_ours


def test_the_version_is_the_one_in_pyproject_and_the_newest_in_the_changelog() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]

    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)

    assert holdfast.__version__ == declared
    assert newest is not None
    assert newest[1] == declared
