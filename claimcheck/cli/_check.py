"""``check``: what is wrong with a configuration, and what will go wrong with its stores and topics."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import time
from collections import Counter
from collections.abc import Callable, Container, Iterator

import click

from claimcheck._client import ClaimCheck
from claimcheck._operate.findings import WHY, CheckReport, Finding, redacted
from claimcheck._texts import printable
from claimcheck._validation import did_you_mean
from claimcheck.cli._commands import (
    BrokerOptions,
    broker_options,
    json_option,
    loaded,
    report_exit_code,
    topic_option,
    with_config,
)
from claimcheck.cli._files import STDIO, check_output
from claimcheck.errors import ConfigError, StoreUnavailableError
from claimcheck.transports.kafka._queries import KafkaTarget
from claimcheck.transports.pulsar._queries import PulsarTarget

_COLORS = {"error": "red", "warning": "yellow", "info": "blue"}


def _known_ids(context: click.Context, parameter: click.Parameter, ids: tuple[str, ...]) -> tuple[str, ...]:
    for each in ids:
        if each not in WHY:
            raise click.BadParameter(f"there is no finding {each!r}{did_you_mean(each, WHY)}")
    return ids


@click.command()
@with_config
@click.option("--servers", is_flag=True, help="Try the keys, write to every store, and look at its server.")
@broker_options
@topic_option("Look at this topic and its groups; repeatable. Needs a broker.")
@click.option("--group", "groups", metavar="NAME", multiple=True, help="Only this group or subscription; repeatable.")
@click.option("--ignore", metavar="ID", multiple=True, callback=_known_ids, help="Leave out a finding; repeatable.")
@click.option("--strict", is_flag=True, help="Exit with 1 if there are warnings.")
@json_option
def check(
    config: str,
    servers: bool,
    broker: BrokerOptions,
    topics: tuple[str, ...],
    groups: tuple[str, ...],
    ignore: tuple[str, ...],
    strict: bool,
    as_json: bool,
) -> None:
    """Report what is wrong, insecure or unwise, why it matters and how to fix it.

    Looks at the configuration only, and is quick. With --servers it also resolves the keys, writes a small payload
    into each store and deletes it, and examines the servers of the stores. With --topic it compares topics, and the
    groups that read them, with the configuration. Changes nothing else.

    Passwords and tokens come from environment variables, such as CLAIMCHECK_KAFKA_SASL_PASSWORD and
    CLAIMCHECK_PULSAR_TOKEN. Exits with 0 if there is no error, so that it suits CI and, with --servers, readiness
    probes; see the exit codes of "claimcheck --help".
    """
    check_output(STDIO)
    _check_usage(broker, topics, groups)
    target = broker.target(topics, groups)
    try:
        with _quiet(), loaded(config) as cc:
            report = examine(cc, servers=servers, target=target, ignore=ignore)
    except ConfigError as error:
        report = CheckReport.of_error(error)
    _show(report, config, as_json=as_json)
    sys.exit(report_exit_code(report, strict=strict))


def _check_usage(broker: BrokerOptions, topics: tuple[str, ...], groups: tuple[str, ...]) -> None:
    named = broker.kafka or broker.pulsar or broker.admin_url
    if named and not topics:
        raise click.UsageError("name the topics to examine with --topic")
    if (topics or groups) and not named:
        raise click.UsageError("--topic and --group need --kafka, --pulsar or --admin-url")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Print no warnings of the library and its clients, which are findings here."""
    log, handler = logging.getLogger("claimcheck"), logging.NullHandler()
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


def examine(
    cc: ClaimCheck,
    *,
    servers: bool = False,
    target: KafkaTarget | PulsarTarget | None = None,
    ignore: Container[str] = (),
    clock: Callable[[], float] = time.time,
) -> CheckReport:
    """Return what is wrong, or will go wrong, with a configuration, its stores and the topics it is used for."""
    findings = list(cc.check(open=servers).findings)
    if servers:
        from claimcheck._operate.check_stores import examine_stores

        findings = [each for each in findings if not _is_superseded(cc, each)]
        findings += examine_stores(cc, clock, {each.path for each in findings if _is_out_of_reach(each)})
    if isinstance(target, KafkaTarget):
        from claimcheck._operate.check_topics import examine_kafka

        findings += redacted(examine_kafka(cc, target, clock), target.secrets)
    elif target is not None:
        from claimcheck._operate.check_topics import examine_pulsar

        findings += redacted(examine_pulsar(cc, target, clock), target.secrets)
    return CheckReport.of(each for each in findings if each.id not in ignore)


def _is_out_of_reach(finding: Finding) -> bool:
    """Whether everything else about a store would fail for the same reason."""
    unreached = isinstance(finding.error, (StoreUnavailableError, ConfigError)) or "NoSuchBucket" in finding.message
    return finding.id == "store-invalid" or (finding.id == "store-failed" and unreached)


def _is_superseded(cc: ClaimCheck, finding: Finding) -> bool:
    """Whether the lifecycle rules of the bucket tell more than this finding of `claimcheck.ClaimCheck.check`."""
    types = {f"stores.{name}": store.type for name, store in cc.config.stores.items()}
    return finding.id == "store-no-expiry" and types[finding.path] == "s3"


def _show(report: CheckReport, config: str, *, as_json: bool) -> None:
    if as_json:
        names = ("id", "severity", "path", "message", "why", "fix")
        findings = [{name: getattr(each, name) for name in names} for each in report.findings]
        click.echo(json.dumps({"ok": report.ok, "findings": findings}, indent=2))
        return
    for finding in report.findings:
        click.echo("\n".join(_lines(finding)))
    counts = Counter(finding.severity for finding in report.findings)
    parts = [f"{counts[each]} {each}{'s' if counts[each] > 1 else ''}" for each in ("error", "warning") if counts[each]]
    click.echo(f"{config}: {', '.join(parts) or 'no problems found'}")


def _lines(finding: Finding) -> Iterator[str]:
    is_named = not finding.path or finding.message.startswith(finding.path)
    what = finding.message if is_named else f"{finding.path}: {finding.message}"
    severity = click.style(f"{finding.severity:<8}", fg=_COLORS[finding.severity])  # only a terminal gets the color
    yield f"{severity} {finding.id}  {click.style(printable(what), bold=True)}"
    for label, text in (("Why", finding.why), ("Fix", finding.fix)):
        if text:
            yield f"{'':8} {label}: {printable(text)}"
