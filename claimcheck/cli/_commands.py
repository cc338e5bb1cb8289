"""The commands of ``claimcheck``."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator
from typing import BinaryIO

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from claimcheck._client import ClaimCheck
from claimcheck._envelope import Plain, decode
from claimcheck._payload import remaining_bytes
from claimcheck._pointer import Pointer
from claimcheck._store import Store
from claimcheck.cli._configuration import CONFIG, config_option, json_option, loaded, reported
from claimcheck.cli._doctor import doctor
from claimcheck.cli._exit_codes import exit_code, one_line, report_exit_code
from claimcheck.cli._files import (
    STDIO,
    check_output,
    is_terminal,
    note,
    opened,
    output,
    progress,
    read_message,
    watched,
)
from claimcheck.cli._gc import gc
from claimcheck.cli._help import COMMANDS, COMPLETION, EXIT_CODES, SUMMARY, version
from claimcheck.cli._inspect import Facts, accepted, describe, human_bytes, lines, pointer_facts
from claimcheck.cli._lifecycle import lifecycle
from claimcheck.cli._redrive import redrive
from claimcheck.cli._schema import installed_schema
from claimcheck.cli._setup import (
    BROKERS,
    STORES,
    STRATEGIES,
    as_yaml,
    ask,
    next_steps,
    report_json,
    report_lines,
)
from claimcheck.cli._sweep import sweep
from claimcheck.errors import (
    ConfigError,
    EnvelopeError,
    StoreError,
)


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


_PIECE_BYTES = 1 << 20
_FILE = click.Path(exists=True, dir_okay=False, allow_dash=True)
_OUTPUT = click.Path(dir_okay=False, allow_dash=True)
_force_option = click.option("--force", is_flag=True, help="Replace an existing file.")
_read_from_option = click.option(
    "--destination",
    metavar="TOPIC",
    help="Also check that a signed pointer was sent to TOPIC.  [default: accept it whatever its topic and its age]",
)
_facts_option = click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Describe the payload as JSON: on standard output with -o, else on standard error.",
)


@click.group(cls=Commands, help=SUMMARY, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.version_option(version(), "--version", prog_name="claimcheck")
def commands(debug: bool) -> None:
    """Carry the options of all commands."""


# Setting up ----------------------------------------------------------------------------------------------------


@commands.command(short_help=COMMANDS["init"])
@click.option("--strategy", type=click.Choice(list(STRATEGIES)), help="How large payloads travel.")
@click.option("--store", type=click.Choice(list(STORES)), help="Where payloads are stored.")
@click.option("--broker", type=click.Choice(list(BROKERS)), help="Which broker carries the messages.")
@click.option("-o", "--output", "target", metavar="FILE", type=_OUTPUT, default=CONFIG, show_default=True)
@_force_option
def init(strategy: str | None, store: str | None, broker: str | None, target: str, force: bool) -> None:
    """Write a commented configuration file.

    Asks for each choice that no option makes; without a terminal it uses external, redis and kafka.
    """
    check_output(target, force=force)
    answers = ask(strategy, store, broker)
    with output(target, force=force) as out:
        out.write(as_yaml(answers).encode())
    if target != STDIO:
        click.echo(next_steps(answers, target), err=True)


@commands.command(short_help=COMMANDS["check"])
@click.argument("config", metavar="[FILE]", envvar="CLAIMCHECK_CONFIG", default=CONFIG)
@click.option("--open", "open_stores", is_flag=True, help="Try the encryption key and every store.")
@click.option("--strict", is_flag=True, help="Exit with 1 if there are warnings.")
@json_option
def check(config: str, open_stores: bool, strict: bool, as_json: bool) -> None:
    """Report every error in a configuration file, and what is insecure or unwise.

    FILE is claimcheck.yaml by default, or CLAIMCHECK_CONFIG. Exits with 0 if there is no error, so that it suits CI
    and, with --open, readiness probes; see the exit codes of "claimcheck --help".
    """
    check_output(STDIO, force=False)
    report = reported(config, lambda cc: cc.check(open=open_stores))
    if as_json:
        click.echo(json.dumps(report_json(report), indent=2))
    else:
        click.echo("\n".join(report_lines(report, config)))
    sys.exit(report_exit_code(report, strict=strict))


commands.add_command(doctor)
commands.add_command(sweep)
commands.add_command(gc)
commands.add_command(redrive)
commands.add_command(lifecycle)


@commands.command(short_help=COMMANDS["schema"])
def schema() -> None:
    """Print the JSON Schema of the configuration, for editors and CI.

    It includes the stores and strategies of installed packages.
    """
    check_output(STDIO, force=False)
    click.echo(json.dumps(installed_schema(), indent=2))


# Payloads ------------------------------------------------------------------------------------------------------


@commands.command(short_help=COMMANDS["put"])
@click.argument("file", type=_FILE)
@config_option
@click.option("--store", "store_name", metavar="NAME", help="The store.  [default: the one that writers use]")
@click.option("--destination", metavar="TOPIC", default="cli", show_default=True, help="Part of the payload's key.")
@click.option(
    "-o", "--output", "target", metavar="ENVELOPE", type=_OUTPUT, default="-", help="[default: standard output]"
)
@_force_option
@_facts_option
def put(
    file: str, config: str, store_name: str | None, destination: str, target: str, force: bool, as_json: bool
) -> None:
    """Store FILE, whatever its size, and write its envelope.

    "-" is standard input or output. If the envelope cannot be written, the payload is deleted.
    """
    check_output(target, force=force)
    with loaded(config) as cc, opened(file) as payload:
        store = _writable_store(cc, store_name, destination)
        with progress("storing", remaining_bytes(payload)) as count:
            pointer = store.write(watched(payload, count), destination=destination)
        with _rollback_on_error(store, pointer), output(target, force=force) as out:
            out.write(envelope := cc.seal(pointer))
        if as_json:
            facts = {"envelope": _path(target), "envelope_bytes": len(envelope)}
            _show_facts(facts | pointer_facts(pointer, cc, time.time()), target)
    if not as_json:
        note(f"Stored {human_bytes(pointer.size or 0)} in {store.name} as {pointer.key}.")


def _path(target: str) -> str | None:
    return None if target == STDIO else target


def _show_facts(facts: Facts, target: str) -> None:
    """Print facts where they do not mix with the output."""
    click.echo(json.dumps(facts, indent=2), err=target == STDIO)


def _writable_store(cc: ClaimCheck, name: str | None, destination: str) -> Store:
    name = name or cc.config.for_destination(destination).store
    if name is None:
        raise ConfigError("the configuration has no store for writers: choose one with --store", path="store")
    store = cc.store(name)
    if cc.config.stores[name].type == "memory":
        text = f"store {name!r} is in this process's memory and is lost when it ends: choose another one with --store"
        raise ConfigError(text, path=f"stores.{name}.type", found="memory")
    return store


@contextlib.contextmanager
def _rollback_on_error(store: Store, pointer: Pointer) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        try:
            store.rollback(pointer)
        except StoreError as second:
            error.add_note(f"the stored payload could not be deleted: {second}")
        raise


@commands.command(short_help=COMMANDS["get"])
@click.argument("envelope", type=_FILE)
@config_option
@click.option(
    "-o",
    "--output",
    "target",
    metavar="FILE",
    type=_OUTPUT,
    help="[default: standard output, unless it is a terminal]",
)
@_force_option
@click.option("--plain", is_flag=True, help="Accept a message that is not an envelope as its own payload.")
@_read_from_option
@_facts_option
def get(
    envelope: str, config: str, target: str | None, force: bool, plain: bool, destination: str | None, as_json: bool
) -> None:
    """Write the payload of ENVELOPE, verified.

    "-" is standard input or output. FILE appears when it is complete. Standard output may receive all but the last
    piece of a damaged payload before the error: check the exit code.
    """
    target = target or _standard_output()
    check_output(target, force=force)
    message = read_message(envelope)
    with loaded(config) as cc:
        _refuse_plain(message, cc, allowed=plain)
        pointer = accepted(message, cc, destination)
        with _opened(message, pointer, cc, destination) as payload, output(target, force=force) as out:
            copied = _copy(payload, out, pointer.size if pointer else len(message))
        if as_json:
            known = pointer_facts(pointer, cc, time.time()) if pointer else {}
            _show_facts({"output": _path(target), "payload_bytes": copied} | known, target)
    if not as_json:
        source = f" from {pointer.store or 'a store'} ({pointer.key})" if pointer else ""
        note(f"Wrote {human_bytes(copied)}{source}.")


def _opened(message: bytes, pointer: Pointer | None, cc: ClaimCheck, destination: str | None) -> BinaryIO:
    return cc._messages.open(pointer) if pointer is not None else cc.open(message, destination=destination)


def _standard_output() -> str:
    if is_terminal(sys.stdout):
        raise click.UsageError("standard output is a terminal: use -o FILE, or -o - to write to it anyway")
    return STDIO


def _refuse_plain(message: bytes, cc: ClaimCheck, *, allowed: bool) -> None:
    if not allowed and isinstance(decode(message, header=cc.config.header), Plain):
        raise EnvelopeError(
            f"these {len(message)} bytes are not an envelope, because they do not begin with"
            f" {cc.config.envelope.header!r}; use --plain to accept a plain message as its own payload"
        )


def _copy(payload: BinaryIO, out: BinaryIO | None, total: int | None) -> int:
    copied = 0
    with progress("reading", total) as count:
        while piece := payload.read(_PIECE_BYTES):
            if out is not None:
                out.write(piece)
            copied += len(piece)
            count(len(piece))
    return copied


@commands.command(short_help=COMMANDS["inspect"])
@click.argument("envelope", type=_FILE)
@config_option
@click.option("--read", is_flag=True, help="Read and verify the payload.")
@_read_from_option
@json_option
def inspect(envelope: str, config: str, read: bool, destination: str | None, as_json: bool) -> None:
    """Describe ENVELOPE. Uses no store unless --read is given.

    Works without a configuration, except with --read. With one it also checks the signature. "-" is standard input.
    """
    check_output(STDIO, force=False)
    message, now = read_message(envelope), time.time()
    with contextlib.ExitStack() as stack:
        cc = stack.enter_context(loaded(config)) if read or _is_present(config) else None
        facts, problem = describe(message, cc, now=now, destination=destination)
        try:
            if cc is not None and read and problem is None:
                _read(cc, message, facts, destination)
        finally:  # the facts help to understand an error
            _show(facts, now, as_json=as_json)
    if problem is not None:
        raise problem


def _is_present(config: str) -> bool:
    """Whether the caller named a configuration, or the default one exists."""
    return config != CONFIG or os.path.exists(config)


def _read(cc: ClaimCheck, message: bytes, facts: Facts, destination: str | None) -> None:
    facts["payload"] = "not readable"
    with _opened(message, accepted(message, cc, destination), cc, destination) as payload:
        facts["payload_bytes"] = _copy(payload, None, facts.get("size"))
    verified = facts.get("checksum") is not None or facts.get("encryption") is not None
    facts["payload"] = "verified" if verified else "complete"


def _show(facts: Facts, now: float, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(facts, indent=2))
    elif is_terminal(sys.stdout):
        _show_table(facts, now)
    else:
        for label, text, _ in lines(facts, now=now):
            click.echo(f"{label:<10} {text}")


def _show_table(facts: Facts, now: float) -> None:
    table = Table.grid(padding=(0, 2))
    for label, text, style in lines(facts, now=now):
        table.add_row(Text(label, style="dim"), Text(text, style=style, overflow="fold"))
    Console().print(table)
