"""The command line: thin shells. A command opens a store, calls the library, hands a value to Output.

Nothing is imported before it is needed: ``holdfast --help`` knows the commands by name and loads none.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

import click

# Name -> where it lives, and its line in the list of commands. In the order in which a newcomer meets them.
COMMANDS = {
    "demo": ("demo", "Kill a pipeline, damage its checkpoints, recover, and prove that nothing was lost."),
    "run": ("run", "Run the pipeline declared in a YAML file."),
    "list": ("listing", "List the checkpoints of a store."),
    "show": ("listing", "Show one checkpoint: positions, state, sinks, sizes."),
    "log": ("log", "Print the ledger: every fact about a flow, in order."),
    "verify": ("verify", "Check every record, manifest and object of a store."),
    "recover": ("recover", "Say what a start would resume from, what it would skip, and why."),
    "restore": ("restore", "Write a checkpoint out as a Spark checkpoint directory."),
    "offsets": ("offsets", "Show the source positions that a query has stored."),
    "capture": ("capture", "Take a checkpoint of a Spark checkpoint directory."),
    "copy": ("copying", "Copy checkpoints into another store."),
    "tag": ("marking", "Give a checkpoint a name, or take it off."),
    "hold": ("marking", "Keep a checkpoint, whatever the rules of prune say, or end that."),
    "prune": ("deleting", "Delete old checkpoints, keeping those that a rule or a need names."),
    "gc": ("deleting", "Delete what no checkpoint and no record names: leftovers of attempts that died."),
}


class CommandsByName(click.Group):
    """The group of all commands: loads one when it is called, and turns errors into exit codes."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name not in COMMANDS:
            return None
        command = getattr(import_module(f"holdfast.cli.{COMMANDS[cmd_name][0]}"), f"{cmd_name}_command")
        assert isinstance(command, click.Command)
        for option in command.params:
            if isinstance(option, click.Option) and option.envvar is None:
                # As it is typed. Click would go by the name of the Python parameter.
                typed = option.opts[0].removeprefix("--").replace("-", "_")
                option.envvar = f"HOLDFAST_{cmd_name}_{typed}".upper()
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            from difflib import get_close_matches

            close = get_close_matches(args[0], COMMANDS, n=1)
            meant = f" Did you mean {close[0]!r}?" if close else ""
            ctx.fail(f"No such command {args[0]!r}.{meant}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])

    def main(self, args: Sequence[str] | None = None, **settings: Any) -> NoReturn:  # type: ignore[override]
        from holdfast.cli.exit_codes import exit_code_of

        settings.pop("standalone_mode", None)
        settings["prog_name"] = "holdfast"  # errors and hints are to be typed, whatever the file is called
        sys.exit(
            exit_code_of(lambda: super(CommandsByName, self).main(args, standalone_mode=False, **settings))
        )


@click.group(
    cls=CommandsByName,
    context_settings={"auto_envvar_prefix": "HOLDFAST", "help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="holdfast", message="%(package)s %(version)s")
def main() -> None:
    """Checkpoints you can trust for PySpark streaming.

    Data goes to standard output, everything else to standard error; --json is a stable contract. Every
    option can be set by an environment variable, such as HOLDFAST_STORE. Exit codes: 0 ok, 1 error,
    2 usage, 3 partial, 10 nothing there, 11 fenced or conflict, 12 unsupported format, 20 corrupt found,
    21 stepped back, 22 unknown sink outcome, 130 interrupted.

    \b
    Examples:
      holdfast demo
      holdfast run pipeline.yaml --trigger available-now
      holdfast list --store ./checkpoints/orders/per_minute
    """
