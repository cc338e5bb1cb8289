"""The commands: ``demo``, ``put``, ``get``, ``inspect``."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from claimcheck._client import ClaimCheck, load
from claimcheck._envelope import Plain, decode
from claimcheck._payload import remaining_bytes
from claimcheck._pointer import Pointer
from claimcheck._registry import UNUSABLE
from claimcheck._store import Store
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
from claimcheck.cli._inspect import Facts, describe, human_bytes, lines
from claimcheck.errors import (
    ChunkError,
    ClaimCheckError,
    ConfigError,
    EnvelopeError,
    IntegrityError,
    MissingDependencyError,
    PayloadNotFoundError,
    PointerRejectedError,
    StoreError,
    StoreUnavailableError,
)

__all__ = [
    "Commands",
    "commands",
    "exit_code",
    "EXIT_CODES",
    "one_line",
]

EXIT_CODES = """\b
Exit codes:
  0  done
  1  any other error; a demo whose payloads came back wrong
  2  wrong usage
  3  the configuration is wrong, or a package that it needs is missing
  4  the payload is gone from its store
  5  damaged: no envelope, one that is cut, or a payload that is not what was written
  6  the store cannot be reached; the same command may succeed later
  7  the pointer was rejected: its signature, its store, its size
  143  ended by SIGTERM; nothing half written is left
"""

_CODES: tuple[tuple[tuple[type[ClaimCheckError], ...], int], ...] = (
    ((ConfigError, MissingDependencyError), 3),
    ((PayloadNotFoundError,), 4),
    ((EnvelopeError, IntegrityError, ChunkError), 5),
    ((StoreUnavailableError,), 6),
    ((PointerRejectedError,), 7),
)


class Commands(click.Group):
    """A group whose commands end with our exit codes, and without tracebacks unless ``--debug`` is given."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Name the commands in the order in which one needs them."""
        return list(self.commands)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; everything but click's own errors becomes a line and a code."""
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except Exception as error:
            if ctx.params.get("debug"):
                raise
            click.echo(f"claimcheck: {one_line(error)}", err=True)
            ctx.exit(exit_code(error))


def exit_code(error: Exception) -> int:
    """Return the number that `EXIT_CODES` gives an error; what this machine lacks to follow a pointer is its cause."""
    lacking = isinstance(error, PointerRejectedError) and isinstance(error.__cause__, UNUSABLE)
    reason = error.__cause__ if lacking else error
    return next((code for kinds, code in _CODES if isinstance(reason, kinds)), 1)


def one_line(error: Exception) -> str:
    """Say what happened, its notes included, in one line; errors that are not ours say their type, too."""
    line = "; ".join([_text(error), *getattr(error, "__notes__", ())])
    return "".join(ch if ch.isprintable() else " " for ch in " ".join(line.split()))


def _text(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, (ClaimCheckError, OSError)):
        return str(error)
    return f"unexpected {type(error).__name__}: {error} (--debug shows where)"


F = TypeVar("F", bound=Callable[..., Any])

_CONFIG = "claimcheck.yaml"
_PIECE_BYTES = 1 << 20
_FILE = click.Path(exists=True, dir_okay=False, allow_dash=True)
_OUTPUT = click.Path(dir_okay=False, allow_dash=True)


def _config_option(function: F) -> F:
    return click.option(
        "--config",
        metavar="FILE",
        envvar="CLAIMCHECK_CONFIG",
        default=_CONFIG,
        show_default=True,
        show_envvar=True,
        help="What is configured.",
    )(function)


def _loaded(config: str) -> ClaimCheck:
    if not os.path.exists(config):
        raise ConfigError(
            f"there is no {config}: name the configuration with --config or CLAIMCHECK_CONFIG", path=config
        )
    return load(config)


def _version() -> str:
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version("claimcheck")
    return "not installed"


@click.group(cls=Commands, epilog=EXIT_CODES, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--debug", is_flag=True, help="Show where an error comes from, with a traceback.")
@click.version_option(_version(), "--version", prog_name="claimcheck")
def commands(debug: bool) -> None:
    """Payloads of any size through brokers that refuse them.

    A payload rests in a store; an envelope of some hundred bytes, which points to it, travels. FILE and ENVELOPE may be
    "-", for standard input or output.
    """


@commands.command(short_help="Send files through a small broker, read them with Spark.")
@click.option(
    "--dir",
    "directory",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Send these files.  [default: pyspark's own jars]",
)
def demo(directory: Path | None) -> None:
    """Send every file of a folder through a small broker and back through Spark.

    Nothing has to be running or configured. Ends with a table, and with an error if one byte came back wrong.
    """
    from claimcheck._demo import FolderError, run

    try:
        code = run(directory, console=Console())
    except FolderError as error:
        raise click.BadParameter(str(error), param_hint="--dir") from error
    sys.exit(code)


@commands.command(short_help="Store a payload, write its envelope.")
@click.argument("file", type=_FILE)
@_config_option
@click.option("--store", "store_name", metavar="NAME", help="Which store.  [default: the one that writers use]")
@click.option("--destination", metavar="TOPIC", default="cli", show_default=True, help="Goes into the payload's key.")
@click.option(
    "-o", "--output", "target", metavar="ENVELOPE", type=_OUTPUT, default="-", help="[default: standard output]"
)
@click.option("--force", is_flag=True, help="Replace ENVELOPE if it is there.")
def put(file: str, config: str, store_name: str | None, destination: str, target: str, force: bool) -> None:
    """Store FILE, whatever its size, and write the envelope that finds it again.

    When the envelope cannot be written, the payload is removed again.
    """
    check_output(target, force=force)
    with _loaded(config) as cc, opened(file) as payload:
        store = _writable_store(cc, store_name, destination)
        with progress("storing", remaining_bytes(payload)) as count:
            pointer = store.write(watched(payload, count), destination=destination)
        with _undone_by_errors(store, pointer), output(target, force=force) as out:
            out.write(cc.seal(pointer))
    note(f"Stored {human_bytes(pointer.size or 0)} in {store.name} as {pointer.key}.")


def _writable_store(cc: ClaimCheck, name: str | None, destination: str) -> Store:
    name = name or cc.config.for_destination(destination).store
    if name is None:
        raise ConfigError("the configuration names no store for writers: choose one with --store", path="store")
    store = cc.store(name)
    if cc.config.stores[name].type == "memory":
        text = f"store {name!r} is this process's memory, and gone when it ends: choose another one with --store"
        raise ConfigError(text, path=f"stores.{name}.type", found="memory")
    return store


@contextlib.contextmanager
def _undone_by_errors(store: Store, pointer: Pointer) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        try:
            store.rollback(pointer)
        except StoreError as second:
            error.add_note(f"and the payload could not be removed again: {second}")
        raise


@commands.command()
@click.argument("envelope", type=_FILE)
@_config_option
@click.option(
    "-o", "--output", "target", metavar="FILE", type=_OUTPUT, help="[default: standard output, if no terminal]"
)
@click.option("--force", is_flag=True, help="Replace FILE if it is there.")
@click.option("--plain", is_flag=True, help="Take a message that is no envelope for its own payload.")
def get(envelope: str, config: str, target: str | None, force: bool, plain: bool) -> None:
    """Write the payload that ENVELOPE stands for, verified.

    FILE gets its name when it is complete. Standard output may have had all but the last piece of a payload before it
    turns out to be damaged: look at the exit code.
    """
    target = target or _standard_output()
    check_output(target, force=force)
    message = read_message(envelope)
    with _loaded(config) as cc:
        _refuse_plain(message, cc, allowed=plain)
        pointer = cc.pointer(message)
        with cc.open(message) as payload, output(target, force=force) as out:
            copied = _copy(payload, out, pointer.size if pointer else len(message))
    whence = f" from {pointer.store or 'a store'} ({pointer.key})" if pointer else ""
    note(f"Wrote {human_bytes(copied)}{whence}.")


def _standard_output() -> str:
    if is_terminal(sys.stdout):
        raise click.UsageError("the payload would go to the terminal: say -o FILE, or -o - if you mean it")
    return STDIO


def _refuse_plain(message: bytes, cc: ClaimCheck, *, allowed: bool) -> None:
    if not allowed and isinstance(decode(message, header=cc.config.header), Plain):
        raise EnvelopeError(
            f"these {len(message)} bytes are no envelope, or a part of one, as they do not begin with"
            f" {cc.config.envelope.header!r}; a plain message is its own payload: --plain copies it"
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


@commands.command(short_help="Say what an envelope is.")
@click.argument("envelope", type=_FILE)
@_config_option
@click.option("--read", is_flag=True, help="Read the payload, too, and verify it.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def inspect(envelope: str, config: str, read: bool, as_json: bool) -> None:
    """Say what ENVELOPE is. Asks no store, unless with --read.

    Works without a configuration, but for --read; with one, it says whether readers would accept the signature.
    """
    check_output(STDIO, force=False)
    message, now = read_message(envelope), time.time()
    with contextlib.ExitStack() as stack:
        cc = stack.enter_context(_loaded(config)) if read or _is_wanted(config) else None
        facts, problem = describe(message, cc, now=now)
        if cc is not None and read and problem is None:
            _show_when_done(facts, now, lambda: _read(cc, message, facts), as_json=as_json)
        else:
            _show(facts, now, as_json=as_json)
    if problem is not None:
        raise problem


def _is_wanted(config: str) -> bool:
    """Whether somebody asked for this configuration, or it lies where it is looked for."""
    return config != _CONFIG or os.path.exists(config)


def _show_when_done(facts: Facts, now: float, read: Callable[[], None], *, as_json: bool) -> None:
    """Show the facts whatever reading has shown: they help to understand the error."""
    try:
        read()
    finally:
        _show(facts, now, as_json=as_json)


def _read(cc: ClaimCheck, message: bytes, facts: Facts) -> None:
    facts["payload"] = "not readable"
    with cc.open(message) as payload:
        facts["payload_bytes"] = _copy(payload, None, facts.get("size"))
    facts["payload"] = "complete" if facts.get("checksum") is None else "verified"


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
