"""The group of all commands of ``claimcheck``."""

from __future__ import annotations

import importlib

import click

from claimcheck.cli._help import COMMANDS, COMPLETION, EXIT_CODES, SUMMARY, version
from claimcheck.cli._options import CONFIG, exit_code, one_line
from claimcheck.errors import ConfigError

_MODULES = {
    "_setup": ("init", "lifecycle"),
    "_check": ("check",),
    "_deletion": ("sweep", "gc"),
    "_redrive": ("redrive",),
    "_payloads": ("put", "get", "inspect"),
}


class Commands(click.Group):
    """A group that imports a command when it runs, and ends with the documented exit codes."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands in the order of `COMMANDS`."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command."""
        module = next((module for module, names in _MODULES.items() if cmd_name in names), None)
        if module is None:
            return None
        command: click.Command = getattr(importlib.import_module(f"claimcheck.cli.{module}"), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write what each command does, without importing it."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the epilog without rewrapping it."""
        formatter.write(f"\n{EXIT_CODES}\n{COMPLETION}")

    def invoke(self, ctx: click.Context) -> object:
        """Run a command; errors that are not click's own become one line and an exit code."""
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except Exception as error:
            if ctx.params.get("debug"):
                raise
            for problem in error.problems if isinstance(error, ConfigError) else (error,):
                click.echo(f"claimcheck: {one_line(problem)}", err=True)
            ctx.exit(exit_code(error))


@click.group(cls=Commands, help=SUMMARY, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--config",
    metavar="FILE",
    envvar="CLAIMCHECK_CONFIG",
    default=CONFIG,
    show_default=True,
    show_envvar=True,
    help="The configuration.",
)
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.version_option(version(), "--version", prog_name="claimcheck")
def commands(config: str, debug: bool) -> None:
    """Carry the options of all commands."""
