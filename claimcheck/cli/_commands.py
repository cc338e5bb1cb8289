"""The group of all commands of ``claimcheck``."""

from __future__ import annotations

import click

from claimcheck.cli._check import check
from claimcheck.cli._deletion import gc, sweep
from claimcheck.cli._help import COMMANDS, COMPLETION, EXIT_CODES, SUMMARY, version
from claimcheck.cli._options import exit_code, one_line
from claimcheck.cli._payloads import get, inspect, put
from claimcheck.cli._redrive import redrive
from claimcheck.cli._setup import init, lifecycle
from claimcheck.errors import ConfigError


class Commands(click.Group):
    """A group whose commands end with the documented exit codes, and with a traceback only after ``--debug``."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands in the order of `COMMANDS`."""
        return list(COMMANDS)

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
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.version_option(version(), "--version", prog_name="claimcheck")
def commands(debug: bool) -> None:
    """Carry the options of all commands."""


for command in (init, check, sweep, gc, redrive, lifecycle, put, get, inspect):
    commands.add_command(command)
