"""``claimcheck compare``: measure strategies on the user's own broker."""

from __future__ import annotations

import contextlib
import json
import logging
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING

import click
from rich.console import Console

from claimcheck import config as configuration
from claimcheck.cli._brokers import BrokerOptions, broker_options
from claimcheck.cli._files import STDIO, check_output, is_terminal
from claimcheck.cli._help import COMMANDS

if TYPE_CHECKING:
    from claimcheck._compare._broker import BrokerAddress
    from claimcheck._compare._model import Comparison
    from claimcheck._compare._runner import Options, Progress

__all__ = ["compare"]

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(|B|KB|MB|GB|KiB|MiB|GiB)", re.IGNORECASE)
_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}


def _sizes(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[int, ...] | None:
    """Parse sizes that are separated by commas."""
    if value is None:
        return None
    from claimcheck._compare._payloads import MAX_BYTES, MIN_BYTES, SIZE_RANGE

    sizes = []
    for text in value.split(","):
        match = _SIZE.fullmatch(text.strip())
        size = float(match[1]) * _UNITS[match[2].lower()] if match else 0.0
        if not MIN_BYTES <= size <= MAX_BYTES:
            problem = f"found {text.strip()!r}, expected sizes of {SIZE_RANGE}, for example 64KiB,1MiB"
            raise click.BadParameter(problem, ctx, param)
        sizes.append(int(size))
    return tuple(sizes)


def _names(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[str, ...] | None:
    """Parse names of experiments that are separated by commas."""
    if value is None:
        return None
    from claimcheck._compare._model import CompareError
    from claimcheck._compare._schedule import selected

    names = tuple(name.strip() for name in value.split(",") if name.strip())
    try:
        selected(names)
    except CompareError as error:
        raise click.BadParameter(str(error), ctx, param) from error
    return names


_FILE = click.Path(exists=True, dir_okay=False)


@click.command(short_help=COMMANDS["compare"])
@broker_options
@click.option("--config", metavar="FILE", type=_FILE, help="The configuration.  [default: files in a temporary folder]")
@click.option("--sizes", metavar="SIZES", callback=_sizes, help="Payload sizes, for example 64KiB,1MiB,10MiB.")
@click.option(
    "--payloads",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False),
    help="Use the sizes and contents of these files.",
)
@click.option("--sample-topic", metavar="TOPIC", help="Use the payload sizes of an existing topic.")
@click.option("--only", metavar="NAMES", callback=_names, help="Run some experiments only, for example speed,seek.")
@click.option("--rounds", type=click.IntRange(1, 1000), help="How often measurements are repeated.  [default: 5]")
@click.option("--quick", is_flag=True, help="A short test run; its figures are not reliable.")
@click.option("--prices", metavar="FILE", type=_FILE, help="Prices for the cost per month.  [default: an example]")
@click.option("--html", metavar="FILE", type=click.Path(dir_okay=False), help="Write a report with plots.")
@click.option("--force", is_flag=True, help="Replace an existing report.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--resume", is_flag=True, help="Continue an interrupted run.")
def compare(
    broker: BrokerOptions,
    config: str | None,
    sizes: tuple[int, ...] | None,
    payloads: str | None,
    sample_topic: str | None,
    only: tuple[str, ...] | None,
    rounds: int | None,
    quick: bool,
    prices: str | None,
    html: str | None,
    force: bool,
    as_json: bool,
    resume: bool,
) -> None:
    """Measure which strategy, store and threshold fit, with your broker and store.

    Sends the same payloads as pointers, as chunks and without claimcheck. Needs no server without --kafka and --pulsar.
    Creates topics named claimcheck-compare-..., and payloads below that name in the store, and removes both. Without
    --admin-url, some rows cannot be measured on Pulsar. Passwords and tokens come from environment variables, such as
    CLAIMCHECK_KAFKA_SASL_PASSWORD and CLAIMCHECK_PULSAR_TOKEN.
    """
    from claimcheck._compare._model import as_json as as_values
    from claimcheck._compare._report import check_report, write_html
    from claimcheck._compare._runner import Options
    from claimcheck._compare._terminal import show

    check_output(STDIO, force=False)
    if html is not None:
        check_output(html, force=force)
        check_report(html)
    options = Options(
        address=_address(broker),
        config=configuration.load(config) if config else None,
        sizes=sizes,
        payloads=payloads,
        sample_topic=sample_topic,
        only=only,
        rounds=rounds,
        quick=quick,
        resume=resume,
        prices=prices,
    )
    comparison = _measured(options)
    if html is not None:
        write_html(comparison, html)
    if as_json:
        click.echo(json.dumps(as_values(comparison), indent=2))
    else:
        show(comparison, Console(width=None if is_terminal(sys.stdout) else 100))


def _measured(options: Options) -> Comparison:
    """Run the comparison; after an interruption the notes of the error describe how to continue."""
    from claimcheck._compare._runner import compare as run

    # Experiments make stores fail and consumers die: what the library logs about that is expected.
    logging.getLogger("claimcheck").addHandler(logging.NullHandler())
    try:
        with _one_interrupt(), _progress() as progress:
            return run(options, show=progress, note=_note)
    except (KeyboardInterrupt, SystemExit) as error:
        for text in getattr(error, "__notes__", ()):
            _note(text)
        raise


def _address(broker: BrokerOptions) -> BrokerAddress | None:
    from claimcheck._compare._broker import BrokerAddress

    if broker.admin_url and not broker.pulsar:
        raise click.UsageError("--admin-url needs --pulsar")
    options = tuple(broker.settings.items())
    if broker.kafka:
        return BrokerAddress("kafka", broker.kafka, options=options)
    return BrokerAddress("pulsar", broker.pulsar, broker.admin_url, options) if broker.pulsar else None


def _note(text: str) -> None:
    click.echo(f"claimcheck: {text}", err=True)


@contextlib.contextmanager
def _one_interrupt() -> Iterator[None]:
    """Make the first Ctrl-C end the block, and ignore further ones: they must not interrupt the clean-up."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, _interrupt)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is _interrupt:  # else the process is about to end
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _interrupt(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


# Progress ------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[Progress], None]]:
    """Show a bar on a terminal, else a line for each experiment; both on standard error."""
    if not is_terminal(sys.stderr):
        yield _line
        return
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(20), TextColumn("{task.fields[text]}"), TimeElapsedColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting", total=None, text="")

        def show(progress: Progress) -> None:
            done = progress.number - (progress.seconds is None)
            text = f"{progress.text}, {_left(progress.seconds_left)}" if progress.text else _left(progress.seconds_left)
            name = f"{progress.number}/{progress.count} {progress.name}"
            bar.update(task, description=name, completed=done, total=progress.count, text=text)

        yield show


def _line(progress: Progress) -> None:
    if progress.seconds is not None:
        left = "" if progress.number == progress.count else f", {_left(progress.seconds_left)}"
        name = f"{progress.number}/{progress.count} {progress.name}"
        click.echo(f"{name:<16} done in {progress.seconds:.1f} s{left}", err=True)


def _left(seconds: float) -> str:
    if seconds < 10:
        return "a few seconds left"
    return f"about {seconds / 60:.0f} min left" if seconds >= 90 else f"about {round(seconds, -1):.0f} s left"
