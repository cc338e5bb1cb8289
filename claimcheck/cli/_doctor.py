"""``doctor``: what will go wrong with a configuration, its stores and its topics."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from collections.abc import Iterator

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from claimcheck._check import CheckReport, Finding
from claimcheck._doctor._findings import WHY, explained
from claimcheck._doctor._topics import KafkaTarget, PulsarTarget
from claimcheck._texts import printable
from claimcheck._validation import did_you_mean
from claimcheck.cli._brokers import BrokerOptions, broker_options
from claimcheck.cli._configuration import CONFIG, json_option, reported
from claimcheck.cli._exit_codes import report_exit_code
from claimcheck.cli._files import STDIO, check_output, is_terminal
from claimcheck.cli._help import COMMANDS
from claimcheck.cli._setup import summary

_COLORS = {"error": "red", "warning": "yellow", "info": "blue"}


def _known_ids(context: click.Context, parameter: click.Parameter, ids: tuple[str, ...]) -> tuple[str, ...]:
    for each in ids:
        if each not in WHY:
            raise click.BadParameter(f"there is no finding {each!r}{did_you_mean(each, WHY)}")
    return ids


@click.command(short_help=COMMANDS["doctor"])
@click.argument("config", metavar="[FILE]", envvar="CLAIMCHECK_CONFIG", default=CONFIG)
@broker_options
@click.option("--topic", "topics", metavar="TOPIC", multiple=True, help="A topic to examine; repeatable.")
@click.option("--group", "groups", metavar="NAME", multiple=True, help="Only this group or subscription; repeatable.")
@click.option(
    "--dead-letter-topic",
    "dead_letters",
    metavar="TOPIC",
    multiple=True,
    help="In addition to those that are found by their names; repeatable.",
)
@click.option("--ignore", metavar="ID", multiple=True, callback=_known_ids, help="Leave out a finding; repeatable.")
@click.option("--strict", is_flag=True, help="Exit with 1 if there are warnings.")
@json_option
def doctor(
    config: str,
    broker: BrokerOptions,
    topics: tuple[str, ...],
    groups: tuple[str, ...],
    dead_letters: tuple[str, ...],
    ignore: tuple[str, ...],
    strict: bool,
    as_json: bool,
) -> None:
    """Report what will go wrong with a configuration, its stores and its topics, why it matters and how to fix it.

    Does what "check --open" does, and also examines the servers of the stores, the topics named with --topic, and the
    groups that read them. Changes nothing, except that it writes a small payload into each store and deletes it.

    FILE is claimcheck.yaml by default, or CLAIMCHECK_CONFIG. Passwords and tokens come from environment variables, such
    as CLAIMCHECK_KAFKA_SASL_PASSWORD and CLAIMCHECK_PULSAR_TOKEN. Exits with 0 if there is no error; see the exit codes
    of "claimcheck --help".
    """
    from claimcheck._doctor._examination import examine

    check_output(STDIO, force=False)
    _check_usage(broker, topics, groups + dead_letters)
    target = broker.target(topics, groups, dead_letters)
    kafka = target if isinstance(target, KafkaTarget) else None
    pulsar = target if isinstance(target, PulsarTarget) else None
    with _quiet():
        report = reported(config, lambda cc: examine(cc, kafka=kafka, pulsar=pulsar, ignore=ignore))
    _show(CheckReport(tuple(explained(report.findings))), config, as_json=as_json)
    sys.exit(report_exit_code(report, strict=strict))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Print no warnings of the library and its clients, which are findings here."""
    log, handler = logging.getLogger("claimcheck"), logging.NullHandler()
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


def _check_usage(broker: BrokerOptions, topics: tuple[str, ...], more: tuple[str, ...]) -> None:
    named = broker.kafka or broker.pulsar or broker.admin_url
    if named and not topics:
        raise click.UsageError("name the topics to examine with --topic")
    if (topics or more) and not named:
        raise click.UsageError("--topic, --group and --dead-letter-topic need --kafka, --pulsar or --admin-url")


# Output --------------------------------------------------------------------------------------------------------


def _show(report: CheckReport, config: str, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"ok": report.ok, "findings": [_json(each) for each in report.findings]}, indent=2))
        return
    if is_terminal(sys.stdout):
        Console().print(_table(report))
    else:
        for finding in report.findings:
            click.echo("\n".join(_lines(finding)))
    click.echo(summary(report, config))


def _json(finding: Finding) -> dict[str, str]:
    return {name: getattr(finding, name) for name in ("id", "severity", "path", "message", "why", "fix")}


def _lines(finding: Finding) -> list[str]:
    first = f"{finding.severity:<8} {finding.id}  {_what(finding)}"
    return [first, *(f"{'':8} {label}: {text}" for label, text in _advice(finding))]


def _table(report: CheckReport) -> Table:
    table = Table(box=None, padding=(0, 2, 1, 0), show_header=False)
    for finding in report.findings:
        text = Text(_what(finding), style="bold", overflow="fold")
        for label, advice in _advice(finding):
            text.append(f"\n{label}: ", style="not bold dim").append(advice, style="not bold")
        color = _COLORS[finding.severity]
        table.add_row(Text(f"{finding.severity}\n", style=color).append(finding.id, style="dim"), text)
    return table


def _what(finding: Finding) -> str:
    return f"{printable(finding.path)}: {printable(finding.message)}" if finding.path else printable(finding.message)


def _advice(finding: Finding) -> list[tuple[str, str]]:
    return [(label, printable(text)) for label, text in (("Why", finding.why), ("Fix", finding.fix)) if text]
