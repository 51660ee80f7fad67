"""Every command and option is documented, has an example, and costs nothing before it is called."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from holdfast.cli import COMMANDS, main
from holdfast.cli.exit_codes import ExitCode

CLI_MD = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")


def command(name: str) -> click.Command:
    found = main.get_command(click.Context(main), name)
    assert found is not None
    return found


def section(name: str) -> str:
    found = re.search(rf"^### {name}\n(.*?)(?=^##|\Z)", CLI_MD, re.MULTILINE | re.DOTALL)
    assert found is not None, f"docs/cli.md has no section {name!r}"
    return found[1]


@pytest.mark.parametrize("name", COMMANDS)
def test_help_says_what_a_command_does_and_shows_an_example(name: str) -> None:
    result = CliRunner().invoke(main, [name, "--help"])

    assert result.exit_code == 0
    assert COMMANDS[name][1] in " ".join(result.stdout.split())
    assert re.search(rf"Examples?:\n +holdfast {name}\b", result.stdout)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_page_about_the_command_line_knows_every_command_and_option(name: str) -> None:
    told = section(name)

    assert f"`holdfast {name}" in told
    for parameter in command(name).params:
        if isinstance(parameter, click.Option):
            for spelling in (one for one in parameter.opts if one.startswith("--")):
                assert f"| `{spelling}` |" in told


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_set_by_the_variable_that_the_page_promises(name: str) -> None:
    for option in command(name).params:
        if isinstance(option, click.Option):
            typed = option.opts[0].removeprefix("--").replace("-", "_").upper()
            for_all = typed in ("JSON", "STORE")

            assert option.envvar == (f"HOLDFAST_{typed}" if for_all else f"HOLDFAST_{name.upper()}_{typed}")


@pytest.mark.parametrize("name", COMMANDS)
def test_the_page_names_no_option_that_does_not_exist(name: str) -> None:
    known = {spelling for parameter in command(name).params for spelling in parameter.opts}

    named = set(re.findall(r"^\| `(--[a-z-]+)`", section(name), re.MULTILINE))

    assert named <= known


def test_the_page_documents_no_command_that_does_not_exist() -> None:
    commands = CLI_MD.split("## Commands")[1]

    assert set(re.findall(r"^### (\S+)$", commands, re.MULTILINE)) == set(COMMANDS)


def test_the_page_lists_every_exit_code() -> None:
    table = re.findall(r"^\| (\d+) \| (.+?) \|", CLI_MD, re.MULTILINE)

    assert [int(code) for code, _ in table] == sorted(ExitCode)


def test_the_list_of_commands_tells_what_each_commands_own_help_opens_with() -> None:
    for name, (_, line) in COMMANDS.items():
        opening = (command(name).help or "").split("\n")[0]

        assert opening == line, name


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "demo"])
def test_every_command_speaks_json_when_asked(name: str) -> None:
    assert "--json" in {spelling for parameter in command(name).params for spelling in parameter.opts}


@pytest.mark.parametrize("arguments", [["--help"], ["list", "--help"], ["run", "--help"], ["--version"]])
def test_help_loads_nothing_that_it_does_not_show(arguments: list[str]) -> None:
    program = (
        "import sys\nfrom holdfast.cli import main\n"
        f"try: main({arguments!r})\n"
        "finally: print(*sorted({name.split('.')[0] for name in sys.modules}), file=sys.stderr)"
    )

    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    loaded = set(result.stderr.split())
    assert "click" in loaded
    assert not loaded & {
        "rich",
        "msgspec",
        "cramjam",
        "pyspark",
        "py4j",
        "yaml",
        "pyarrow",
        "pandas",
        "numpy",
    }


def test_commands_complete_in_a_shell() -> None:
    result = subprocess.run(
        [Path(sys.executable).with_name("holdfast")],
        env={"_HOLDFAST_COMPLETE": "bash_complete", "COMP_WORDS": "holdfast re", "COMP_CWORD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert result.stdout.split() == ["plain,recover", "plain,restore"]
