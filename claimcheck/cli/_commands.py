"""The group of all commands, and what they share: options, the configuration, brokers and credentials, exit codes.

Passwords and tokens come from files and variables only: other users of the machine can see a command line.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import click

from claimcheck._client import ClaimCheck, load
from claimcheck._operate.findings import CheckReport
from claimcheck._registry import made_by
from claimcheck._texts import printable, size_text
from claimcheck._validation import fail
from claimcheck.config import expand
from claimcheck.errors import (
    UNUSABLE,
    ChunkError,
    ClaimCheckError,
    ConfigError,
    EnvelopeError,
    IntegrityError,
    MissingDependencyError,
    PayloadNotFoundError,
    PointerRejectedError,
    StoreUnavailableError,
    distribution_name,
)
from claimcheck.transports.kafka._queries import KafkaTarget
from claimcheck.transports.pulsar._queries import PulsarTarget

CONFIG = "claimcheck.yaml"
"""The default path of the configuration."""

COMMANDS = {
    "check": ("_check", "Find what is wrong with a configuration, its stores and its topics."),
    "sweep": ("_deletion", "Delete expired payloads, and what interrupted writes left behind."),
    "gc": ("_deletion", "Delete stored payloads that no message points at."),
    "redrive": ("_redrive", "Send dead letters back to their topic."),
    "get": ("_payloads", "Write the payload of an envelope."),
    "inspect": ("_payloads", "Describe an envelope."),
}
"""Every command with its module and its help."""

EXIT_CODES = """Exit codes:
  0    done
  1    any other error, or Ctrl-C; a sweep or gc with failed entries;
       a redrive with letters that cannot be read, or came from another topic
  2    wrong usage
  3    the configuration is wrong, or a package that it needs is missing
  4    the payload is no longer in its store
  5    damaged: not an envelope, a truncated one, or a payload that fails verification
  6    the store cannot be reached; the same command may succeed later
  7    the pointer was rejected: its signature, its store, its size
  143  ended by SIGTERM; an unfinished file of get was deleted
"""

COMPLETION = """Shell completion:
  bash  eval "$(_CLAIMCHECK_COMPLETE=bash_source claimcheck)"   in ~/.bashrc
  zsh   eval "$(_CLAIMCHECK_COMPLETE=zsh_source claimcheck)"    in ~/.zshrc
  fish  _CLAIMCHECK_COMPLETE=fish_source claimcheck | source    in config.fish
"""

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
_SETTING = re.compile(r"[a-z][a-z0-9._]*")
_KAFKA_PREFIXES = ("security.", "sasl.", "ssl.")
_PULSAR_NAMES = ("token", "namespace", "tls_trust_certs_file_path", "listener_name")


# Options -------------------------------------------------------------------------------------------------------


def duration(context: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    """Return the seconds of an option such as 90s, 30m, 12h or 7d; only 0 needs no unit."""
    if value is None:
        return None
    match = _DURATION.fullmatch("0s" if value == "0" else value)
    if match is None:
        raise click.BadParameter(f"{value!r} is not a duration: use a number with s, m, h or d, such as 90s or 12h")
    return float(match[1]) * _UNITS[match[2]]


json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
store_option = click.option(
    "--store", "names", metavar="NAME", multiple=True, help="Only this store; repeatable.  [default: all]"
)
local_option = click.option(
    "--local", metavar="FILE", type=click.Path(exists=True, dir_okay=False), help="The file of the embedded broker."
)
rate_option = click.option(
    "--rate", metavar="N", type=click.FloatRange(0.001, 1_000_000), help="Delete at most N entries per second."
)
with_config = click.pass_obj  # the path of the configuration, an option of all commands, is the first argument


def yes_option(does: str, not_done: str) -> Callable[..., Any]:
    """Return the option without which a command only reports."""
    return click.option("--yes", is_flag=True, help=f"{does}. Without it, nothing is {not_done}, only reported.")


def topic_option(text: str, *, required: bool = False) -> Callable[..., Any]:
    return click.option("--topic", "topics", metavar="TOPIC", multiple=True, required=required, help=text)


def grace_option(default: str, text: str) -> Callable[..., Any]:
    return click.option("--grace", metavar="TIME", callback=duration, default=default, show_default=True, help=text)


# Configuration -------------------------------------------------------------------------------------------------


def loaded(config: str) -> ClaimCheck:
    if not os.path.exists(config):
        text = f"{config} does not exist: name the configuration with --config, or set CLAIMCHECK_CONFIG"
        raise ConfigError(text, path=config)
    return load(config)


def checked_stores(cc: ClaimCheck, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of the chosen stores, or of all, each once; raises the error of an unknown one."""
    for name in names:
        if name not in cc.config.stores:
            cc.store(name)
    if not cc.config.stores:
        raise ConfigError("the configuration has no stores", path="stores")
    return tuple(dict.fromkeys(names or cc.config.stores))


# Brokers -------------------------------------------------------------------------------------------------------

_BROKERS = (
    click.option("--kafka", metavar="HOST:PORT", help="Kafka's bootstrap servers."),
    click.option(
        "--kafka-config",
        metavar="FILE",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="Settings of librdkafka as name=value lines, with ${NAME} for variables.",
    ),
    click.option("--pulsar", metavar="URL", help="Pulsar's service URL."),
    click.option("--admin-url", metavar="URL", help="Pulsar's web service."),
    click.option("--client", metavar="MODULE:FUNCTION", help="Returns arguments for the broker's client, as a dict."),
)


@dataclass(frozen=True, slots=True)
class BrokerOptions:
    """The broker that a command line names: Kafka, Pulsar or none."""

    kafka: str | None = field(default=None, repr=False)
    pulsar: str | None = field(default=None, repr=False)
    admin_url: str | None = field(default=None, repr=False)
    settings: Mapping[str, Any] = field(default_factory=dict, repr=False)
    client: str | None = None

    def target(self, topics: Iterable[str], groups: tuple[str, ...] = ()) -> KafkaTarget | PulsarTarget | None:
        """Return topics of this broker, and the groups or subscriptions that matter; ``None`` without a broker."""
        names = tuple(map(self.topic, topics))
        if self.kafka:
            return KafkaTarget(self.kafka, names, groups, self.settings)
        if not (self.pulsar or self.admin_url):
            return None
        token, ca_file, listener = map(self.settings.get, ("token", "tls_trust_certs_file_path", "listener_name"))
        return PulsarTarget(self.pulsar, self.admin_url, names, groups, token, ca_file, listener, self.client)

    def topic(self, name: str) -> str:
        """Return the name of a topic with the namespace of ``CLAIMCHECK_PULSAR_NAMESPACE``, if it has none."""
        namespace = self.settings.get("namespace")
        return name if self.kafka or "/" in name or not namespace else f"{namespace}/{name}"


def broker_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of brokers to a command, which receives them as one argument, ``broker``."""

    @functools.wraps(command)
    def called(
        *config: str,
        kafka: str | None,
        kafka_config: Path | None,
        pulsar: str | None,
        admin_url: str | None,
        client: str | None,
        **arguments: Any,
    ) -> Any:
        if kafka and (pulsar or admin_url):
            raise click.UsageError("--kafka cannot be combined with options of Pulsar: run the command for one broker")
        if kafka_config and not kafka:
            raise click.UsageError("--kafka-config needs --kafka")
        settings = _from_environment(os.environ, "kafka" if kafka else "pulsar")
        if kafka_config:
            settings |= _from_file(kafka_config)
        if kafka:
            if not isinstance(made := made_by(client, path="--client"), Mapping):
                fail("--client", found=f"a {type(made).__name__}", expected="a function that returns a dict")
            settings |= made
        return command(*config, broker=BrokerOptions(kafka, pulsar, admin_url, settings, client), **arguments)

    for option in reversed(_BROKERS):
        called = option(called)
    return called


def check_one_broker(broker: BrokerOptions, *local: str | None) -> None:
    """Raise `click.UsageError` unless exactly one broker is named; ``local`` is the value of ``--local``, if any."""
    if sum(each is not None for each in (broker.kafka, broker.pulsar, *local)) != 1:
        raise click.UsageError(f"name one broker: --kafka{', --pulsar or --local' if local else ' or --pulsar'}")


def _from_environment(environ: Mapping[str, str], kind: str) -> dict[str, Any]:
    """Return the settings that variables set; empty values and other variables of the same prefix are ignored."""
    prefix = f"CLAIMCHECK_{kind.upper()}_"
    found = {
        name.removeprefix(prefix).lower(): text for name, text in environ.items() if name.startswith(prefix) and text
    }
    if kind == "pulsar":
        return {name: found[name] for name in _PULSAR_NAMES if name in found}
    dotted = {name.replace("_", "."): text for name, text in found.items()}
    return {name: text for name, text in dotted.items() if name.startswith(_KAFKA_PREFIXES)}


def _from_file(path: Path) -> dict[str, str]:
    """Read settings of the Kafka client."""
    settings = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, equals, value = (part.strip() for part in line.partition("="))
        if not equals or not _SETTING.fullmatch(name):
            fail(f"{path}, line {number}", found="a line that is not a setting", expected="name=value or a comment (#)")
        settings[name] = expand(value, path=f"{path}, line {number}: {name}")
    return settings


# Results -------------------------------------------------------------------------------------------------------

_CODES: tuple[tuple[tuple[type[ClaimCheckError], ...], int], ...] = (
    ((ConfigError, MissingDependencyError), 3),
    ((PayloadNotFoundError,), 4),
    ((EnvelopeError, IntegrityError, ChunkError), 5),
    ((StoreUnavailableError,), 6),
    ((PointerRejectedError,), 7),
)


def exit_code(error: Exception) -> int:
    """Return the exit code of an error; if this machine lacks what a pointer's store needs, that of the cause."""
    unusable = isinstance(error, PointerRejectedError) and isinstance(error.__cause__, UNUSABLE)
    reason = error.__cause__ if unusable else error
    return next((code for kinds, code in _CODES if isinstance(reason, kinds)), 1)


def report_exit_code(report: CheckReport, *, strict: bool) -> int:
    """Return the exit code of the first error; without errors 0, or 1 if warnings count."""
    if not report.ok:
        first = report.findings[0]
        return exit_code(first.error or ClaimCheckError(first.message))
    return int(strict and any(finding.severity == "warning" for finding in report.findings))


def one_line(error: Exception) -> str:
    """Return an error's text and its notes as one line; it names the type of an unexpected error."""
    line = "; ".join([_text(error), *getattr(error, "__notes__", ())])
    return printable(" ".join(line.split()))


def _text(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, (ClaimCheckError, OSError)):
        return str(error)
    return f"unexpected {type(error).__name__}: {error} (--debug shows the traceback)"


def why(error: BaseException | None) -> str | None:
    """Return an error as one line, for a report."""
    return None if error is None else one_line(error) if isinstance(error, Exception) else "interrupted"


def human_bytes(count: int) -> str:
    """Return a number of bytes in a readable unit, with the exact number."""
    exact = f"{count:,} byte{'' if count == 1 else 's'}"
    return exact if count < 1024 else f"{size_text(count, digits=2)} ({exact})"


# The group -----------------------------------------------------------------------------------------------------


class Commands(click.Group):
    """A group that imports a command when it runs, and ends with the documented exit codes."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands in the order of `COMMANDS`."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"claimcheck.cli.{COMMANDS[cmd_name][0]}")
        command: click.Command = getattr(module, cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write what each command does, without importing it."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
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


def _version() -> str:
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version(distribution_name())
    return "unknown (not installed)"


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
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
@click.version_option(_version(), "--version", prog_name="claimcheck")
@click.pass_context
def commands(ctx: click.Context, config: str, debug: bool) -> None:
    """Send payloads of any size through Kafka and Pulsar."""
    ctx.obj = config
