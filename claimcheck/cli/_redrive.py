"""``redrive``: sends dead letters back to their topic."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from contextlib import closing

import click

from claimcheck._client import ClaimCheck
from claimcheck._operate.redrive import KafkaDeadLetters, PulsarDeadLetters, Redrive, RedriveReport
from claimcheck._texts import printable
from claimcheck.cli._commands import (
    BrokerOptions,
    broker_options,
    check_one_broker,
    human_bytes,
    json_option,
    loaded,
    one_line,
    why,
    with_config,
    yes_option,
)
from claimcheck.cli._files import STDIO, check_output, reported
from claimcheck.errors import TransportError
from claimcheck.transports.kafka._queries import KafkaTarget

_GROUP = "claimcheck-redrive"


@click.command()
@with_config
@broker_options
@click.option("--from", "source", metavar="TOPIC", required=True, help="The dead-letter topic.")
@click.option("--to", "target", metavar="TOPIC", required=True, help="The topic to send to.")
@click.option(
    "--group",
    metavar="NAME",
    default=_GROUP,
    show_default=True,
    help="The group or subscription that reads the dead letters.",
)
@yes_option("Send", "sent")
@click.option("--force", is_flag=True, help="Send messages that are not dead letters of --to, too.")
@click.option("--skip-unreadable", is_flag=True, help="Move past letters whose payload is lost, too.")
@click.option("--limit", metavar="N", type=click.IntRange(min=1), help="Stop after sending this many letters.")
@json_option
def redrive(
    config: str,
    broker: BrokerOptions,
    source: str,
    target: str,
    group: str,
    yes: bool,
    force: bool,
    skip_unreadable: bool,
    limit: int | None,
    as_json: bool,
) -> None:
    """Send dead letters back to their topic, whole, and acknowledge them.

    Only reads and verifies them, unless --yes is given. Takes the letters that are in the topic at the start. Payloads
    are stored again with a full lifetime. A letter is acknowledged after the broker has confirmed its message, so that
    an interruption loses nothing, but may send the last letters twice. A letter whose payload is gone, damaged or
    incomplete stays, and is named. So does a message whose headers do not name --to as its topic, unless --force is
    given. A group of Kafka moves past letters that cannot be read; the run ends at one whose payload has not
    expired and whose store has not had any payload in this run: it may be the wrong store. Passwords and tokens
    come from environment variables, such as CLAIMCHECK_KAFKA_SASL_PASSWORD and CLAIMCHECK_PULSAR_TOKEN. Exits with 1
    if a letter could not be read or sent, or did not come from --to.
    """
    check_one_broker(broker)
    if source == target:
        raise click.UsageError("--from and --to are the same topic")
    check_output(STDIO)
    options = Redrive(dry_run=not yes, limit=limit, force=force, skip_unreadable=skip_unreadable)
    report = RedriveReport(dry_run=not yes)
    is_open = False

    def show(error: BaseException | None) -> None:
        if as_json or is_open:
            _show(report, source, target, why(error), as_json=as_json)

    with (
        loaded(config) as cc,
        reported("reading ...", show) as status,
        _as_ours(),
        closing(_opened(cc, broker, (source, target), group)) as topic,
    ):
        is_open = True
        told = "{0.read:,} read, {0.sent:,} sent, {0.unreadable:,} unreadable"
        options.run(topic.letters(), report, lambda: status(told.format(report)))
    sys.exit(int(bool(report.unreadable or report.foreign)))


def _opened(
    cc: ClaimCheck, broker: BrokerOptions, topics: tuple[str, str], group: str
) -> KafkaDeadLetters | PulsarDeadLetters:
    place = broker.target(topics)
    if isinstance(place, KafkaTarget):
        return KafkaDeadLetters(place, cc, group=group)
    assert place is not None
    return PulsarDeadLetters(place, cc, group=group)


@contextlib.contextmanager
def _as_ours() -> Iterator[None]:
    """Raise errors of the brokers' clients as a `TransportError`, whose text is shown."""
    try:
        yield
    except Exception as error:
        if not type(error).__module__.startswith(("cimpl", "confluent_kafka", "_pulsar", "pulsar")):
            raise
        text = f"the broker refused a request, or cannot be reached: {type(error).__name__}: {error}"
        ours = TransportError(text)
        for note in getattr(error, "__notes__", ()):
            ours.add_note(note)
        raise ours from error


# Output --------------------------------------------------------------------------------------------------------


def _show(report: RedriveReport, source: str, target: str, problem: str | None, *, as_json: bool) -> None:
    if as_json:
        facts = {name: getattr(report, name) for name in RedriveReport.__slots__ if name != "named"}
        named = [
            {"position": position, "type": type(error).__name__, "error": one_line(error)}
            for position, error in report.named
        ]
        ok = problem is None and not report.unreadable and not report.foreign
        click.echo(json.dumps({"ok": ok, **facts, "letters": named, "error": problem}, indent=2))
        return
    click.echo("\n".join(_lines(report, printable(source), printable(target), problem)))


def _lines(report: RedriveReport, source: str, target: str, problem: str | None) -> Iterator[str]:
    counts = f"{report.read:,} read, {report.unreadable:,} unreadable, {report.foreign:,} foreign"
    yield f"{source}: {counts}, {human_bytes(report.bytes)}"
    if report.dry_run:
        yield "  nothing was sent: use --yes to send them" if report.read else "  nothing to send"
    else:
        yield f"  {report.sent:,} sent to {target}, {report.failed:,} failed, in {report.duration_seconds:,.1f} s"
    for position, error in report.named:
        yield f"  {printable(position)} stays: {type(error).__name__}: {one_line(error)}"
    if (more := report.unreadable + report.foreign - len(report.named)) > 0:
        yield f"  and {more:,} more stay"
    if report.foreign:
        yield f"  {report.foreign:,} are not dead letters of {target}: check --from and --to; --force sends them, too"
    if problem is not None:
        yield f"  not finished: {problem}"
    elif not report.finished:
        yield "  the limit was reached: later letters were not read"
