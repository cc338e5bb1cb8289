"""``sweep`` and ``gc``: delete expired payloads, and payloads that no message points at."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any, NoReturn

import click

from claimcheck._client import ClaimCheck
from claimcheck._operate.gc import (
    Collection,
    CollectionReport,
    KafkaTopics,
    LocalTopics,
    PulsarTopics,
    StoreReport,
    Topics,
)
from claimcheck._operate.sweep import SweepReport
from claimcheck._texts import duration as in_words
from claimcheck._texts import printable
from claimcheck.cli._commands import (
    BrokerOptions,
    broker_options,
    check_one_broker,
    checked_stores,
    grace_option,
    human_bytes,
    json_option,
    loaded,
    local_option,
    one_line,
    rate_option,
    store_option,
    topic_option,
    why,
    with_config,
    yes_option,
)
from claimcheck.cli._files import STDIO, check_output, reported
from claimcheck.config import HEADER
from claimcheck.errors import ClaimCheckError, ConfigError, ScanNotSupportedError
from claimcheck.transports.kafka._queries import KafkaTarget
from claimcheck.transports.local._broker import LocalBroker, is_broker_file
from claimcheck.transports.pulsar._queries import PulsarTarget

_HINTS = 10
_KEPT_BY_SWEEP = {
    "alive": "not expired, or within the grace period",
    "unlimited": "no lifetime (written without ttl_seconds)",
    "unknown": "unknown lifetime (written by an earlier release)",
    "recent": "leftovers within the grace period",
}
_KEPT_BY_GC = {
    "recent": "within the grace period",
    "other": "of other destinations",
    "leftover": "left behind by interrupted writes (see claimcheck sweep)",
    "unknown": "with an unknown age, or written by a task without ttl_seconds",
}


# sweep ---------------------------------------------------------------------------------------------------------


@click.command()
@with_config
@store_option
@yes_option("Delete", "deleted")
@grace_option("1h", "Keep expired entries this much longer.")
@rate_option
@json_option
def sweep(
    config: str,
    names: tuple[str, ...],
    yes: bool,
    grace: float,
    rate: float | None,
    as_json: bool,
) -> None:
    """Delete payloads whose lifetime has passed, and what interrupted writes left behind.

    Only counts them, unless --yes is given. Lists the stores and opens no payload. Payloads without a known lifetime
    are kept. TIME is a number with the unit s, m, h or d, such as 90s or 12h. A store that fails does not
    stop the others. Exits with 1 if an entry could not be deleted.
    """
    check_output(STDIO)
    with loaded(config) as cc:
        reports = {name: SweepReport(store=name, dry_run=not yes) for name in checked_stores(cc, names)}

        def split() -> _Split:
            return _Split(reports.values(), is_chosen=bool(names))

        with reported("listing ...", lambda _: _show_sweeps(split(), as_json=as_json)) as status:
            _sweep_all(cc, reports, status, dry_run=not yes, grace_seconds=grace, rate=rate)
    _end(split())


class _Split:
    """Reports of stores: those that count, and those of stores that cannot be listed and were not chosen by name."""

    def __init__(self, reports: Iterable[SweepReport], *, is_chosen: bool) -> None:
        self.not_listed, self.reports = dict[str, str](), list[SweepReport]()
        for report in reports:
            if isinstance(report.error, ScanNotSupportedError) and not is_chosen:
                self.not_listed[report.store] = one_line(report.error)
            else:
                self.reports.append(report)

    @property
    def ok(self) -> bool:
        return not any(each.failed or each.error for each in self.reports)

    def facts(self) -> dict[str, object]:
        """Return the reports as JSON values."""
        return {"stores": [_facts(each) for each in self.reports], "not_listed": self.not_listed}


def _facts(report: SweepReport) -> dict[str, object]:
    facts: dict[str, object] = {each.name: getattr(report, each.name) for each in fields(report)}
    return facts | {"errors": [one_line(each) for each in report.errors], "error": why(report.error)}


def _end(split: _Split) -> NoReturn:
    """Raise the error of a store, or exit with 1 if entries could not be deleted."""
    for report in split.reports:
        if report.error is not None:
            raise report.error
    sys.exit(int(not split.ok))


def _sweep_all(cc: ClaimCheck, reports: dict[str, SweepReport], status: Callable[[str], None], **options: Any) -> None:
    """Sweep all stores; one that fails does not stop the others."""

    def on_batch(report: SweepReport) -> None:
        reports[report.store] = report
        expired = report.expired + report.leftovers
        status(f"{report.store}: {report.scanned:,} listed, {expired:,} expired, {report.deleted:,} deleted")

    for name in reports:
        try:
            on_batch(cc.sweep(name, on_batch=on_batch, **options))
        except BaseException as error:
            reports[name].error = error
            if not isinstance(error, ClaimCheckError):
                raise


def _show_sweeps(split: _Split, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"ok": split.ok, **split.facts()}, indent=2))
        return
    for report in split.reports:
        click.echo("\n".join(_sweep_lines(report)))
    for text in split.not_listed.values():
        click.echo(text)


def _size(report: SweepReport) -> str:
    """Return the bytes of what is or would be deleted; Redis, for example, does not list the size of large payloads."""
    return human_bytes(report.expired_bytes) if report.expired_bytes or not report.expired else "of unknown size"


def _sweep_lines(report: SweepReport) -> Iterator[str]:
    if not (report.scanned or report.finished):
        yield f"{report.store}: not swept: {why(report.error) or 'interrupted'}"
        return
    leftovers = f"{report.leftovers:,} {'leftover' if report.leftovers == 1 else 'leftovers'}"
    counts = f"{report.expired:,} of {report.scanned:,} entries expired, {leftovers}"
    yield f"{report.store}: {counts}, {_size(report)}"
    yield _deleted(report, "" if report.error is None else "at least ", report.duration_seconds)
    yield from _rest(report, _KEPT_BY_SWEEP)


def _deleted(report: SweepReport, least: str, seconds: float, *, claim: str = "") -> str:
    if report.dry_run:
        found = report.expired + report.leftovers
        return f"  nothing was deleted: use --yes{claim} to delete them" if found else "  nothing to delete"
    skipped = f", {report.skipped:,} no longer there or rewritten" if report.skipped else ""
    return f"  {least}{report.deleted:,} deleted{skipped} in {seconds:,.1f} s"


def _rest(report: SweepReport, reasons: dict[str, str]) -> Iterator[str]:
    """Describe what was kept, what failed, and why the end of the store was not reached."""
    for reason, text in reasons.items():
        if count := report.kept.get(reason):
            yield f"  {count:,} kept: {text}"
    if report.failed:
        yield f"  {report.failed:,} failed: {'; '.join(one_line(each) for each in report.errors)}"
    if report.error is not None:
        yield f"  not finished: {why(report.error)}"


# gc ------------------------------------------------------------------------------------------------------------


def _time(context: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    """Return a time in seconds since 1970; without an offset it is in UTC."""
    if value is None:
        return None
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a time such as 2026-11-22 or 2026-11-22T11:30") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


@click.command()
@with_config
@broker_options
@local_option
@topic_option("Repeatable.", required=True)
@store_option
@yes_option("Delete", "deleted")
@grace_option("24h", "Keep younger payloads: their messages may not have been sent yet.")
@click.option("--consumed", is_flag=True, help="Also delete what every group or subscription has read.")
@click.option("--claim", is_flag=True, help="Claim topics that no cluster has claimed in a store; needs --yes.")
@click.option("--force", is_flag=True, help="Delete although no message points at any payload in the stores.")
@click.option(
    "--ignore-unknown-before",
    "ignore_before",
    metavar="TIME",
    callback=_time,
    help="Ignore messages of an unknown version that were sent earlier, such as 2026-11-22T11:30 (UTC).",
)
@rate_option
@json_option
def gc(
    config: str,
    broker: BrokerOptions,
    local: str | None,
    topics: tuple[str, ...],
    names: tuple[str, ...],
    yes: bool,
    grace: float,
    consumed: bool,
    claim: bool,
    force: bool,
    ignore_before: float | None,
    rate: float | None,
    as_json: bool,
) -> None:
    """Delete the stored payloads of topics that no readable message points at.

    Only counts them, unless --yes is given. A store remembers which cluster each topic belongs to: the first deletion
    needs --claim, and a collection of another cluster is refused.

    Name every topic that has messages with these payloads. Dead-letter and retry topics with a usual name are also
    read; any other one has to be named: the report names the topics that were read. Reads all messages, joins no group
    and acknowledges nothing. If a topic cannot be read completely, nothing is deleted.

    Passwords and tokens come from environment variables, such as CLAIMCHECK_KAFKA_SASL_PASSWORD and
    CLAIMCHECK_PULSAR_TOKEN. Pulsar also needs --admin-url. TIME is a number with the unit s,
    m, h or d, such as 90m or 24h.

    Exits with 1 if a payload could not be deleted or a topic could not be read completely, 3 if a topic does not exist
    or belongs to another cluster, no cluster has claimed it, or no message points at any payload, 5 if a message was
    written by a newer release, and 6 if a store cannot be reached.
    """
    if claim and not yes:
        raise click.UsageError("--claim needs --yes: look at the report without both first")
    check_one_broker(broker, local)
    check_output(STDIO)
    with loaded(config) as cc, contextlib.ExitStack() as stack:
        stores = [cc.store(name) for name in checked_stores(cc, names)]
        headers = tuple(dict.fromkeys((cc.config.header, HEADER)))
        options = Collection(
            grace_seconds=grace,
            headers=headers,
            dry_run=not yes,
            force=force or (consumed and not claim),  # no message keeps a payload once all are read
            claim=claim,
            ignore_unknown_before=ignore_before,
            rate=rate,
        )
        read = _topics(broker, local, topics, consumed, stack)
        output = _Collected(is_chosen=bool(names))
        with reported("listing ...", lambda error: output.show(error, as_json=as_json)) as status:
            options.run(stores, read, on_progress=lambda report: status(output.state(report)))
    _end(output.split())


def _topics(
    broker: BrokerOptions, local: str | None, topics: tuple[str, ...], consumed: bool, stack: contextlib.ExitStack
) -> Topics:
    if local is not None:
        if not is_broker_file(local):
            raise ConfigError(f"{local} is not the file of an embedded broker: check its name", path="--local")
        return LocalTopics(stack.enter_context(LocalBroker(local)), topics, consumed=consumed)
    target = broker.target(topics)
    if isinstance(target, KafkaTarget):
        return KafkaTopics(target, consumed=consumed)
    assert isinstance(target, PulsarTarget)
    return PulsarTopics(target, consumed=consumed)


class _Collected:
    """Describes the state of a collection, and its result."""

    def __init__(self, *, is_chosen: bool) -> None:
        self._is_chosen = is_chosen
        self.report = CollectionReport(dry_run=True)

    def state(self, report: CollectionReport) -> str:
        """Keep the state, and describe it."""
        self.report = report
        orphans, deleted = (sum(getattr(each, name) for each in report.stores) for name in ("expired", "deleted"))
        read = f"{report.candidates:,} candidates, {report.messages:,} messages read"
        return f"{report.phase}: {read}, {orphans:,} orphans, {deleted:,} deleted"

    def split(self) -> _Split:
        """Return the reports of the stores; that a store cannot be listed counts only if it was chosen."""
        return _Split(self.report.stores, is_chosen=self._is_chosen)

    def show(self, error: BaseException | None, *, as_json: bool) -> None:
        report = self.report
        if as_json:
            facts = {each.name: getattr(report, each.name) for each in fields(report)} | self.split().facts()
            ok = error is None and self.split().ok
            click.echo(json.dumps({"ok": ok} | facts | {"error": why(error)}, indent=2))
        elif report.phase in ("deleting", "finished"):
            damaged = f", {report.damaged:,} damaged" if report.damaged else ""
            ignored = f", {report.ignored:,} of an unknown version ignored" if report.ignored else ""
            click.echo(f"{report.messages:,} messages read: {report.pointers:,} pointers{damaged}{ignored}")
            click.echo("\n".join(_read_lines(report)))
            if report.candidates and not report.matched:
                click.echo("no message points at any payload in these stores: is this their broker?")
            for each in report.stores:
                skipped = isinstance(each.error, ScanNotSupportedError)
                click.echo(why(each.error) if skipped else "\n".join(_gc_lines(each, report)))


def _read_lines(report: CollectionReport) -> Iterator[str]:
    """Describe which topics were read and which were not, and the grace period."""
    yield f"  read: {', '.join(f'{printable(name)} ({count:,})' for name, count in sorted(report.topics.items()))}"
    if report.not_read:
        more = f" and {len(report.not_read) - _HINTS:,} more" if len(report.not_read) > _HINTS else ""
        names = ", ".join(map(printable, report.not_read[:_HINTS])) + more
        yield f"  not read: {names}: name them with --topic if they have messages with these payloads"
    yield f"  grace period: {in_words(report.grace_seconds)}; younger payloads are kept"


def _gc_lines(report: StoreReport, collection: CollectionReport) -> Iterator[str]:
    if report.error is not None and not report.scanned:
        yield f"{report.store}: not collected: {why(report.error)}"
        return
    counts = f"{report.expired:,} of {report.scanned:,} entries are orphans"
    yield f"{report.store}: {counts}, {_size(report)}"
    claim = " --claim" if collection.unclaimed else ""
    yield _deleted(report, "", collection.duration_seconds, claim=claim)
    if unclaimed := collection.unclaimed.get(report.store):
        yield f"  claimed by no cluster: {', '.join(map(printable, unclaimed))}"
    if report.topics:
        yield f"  {', '.join(f'{count:,} {printable(name)}' for name, count in report.topics.items())}"
    if report.referenced:
        yield f"  {report.referenced:,} kept: a message points at them"
    yield from _rest(report, _KEPT_BY_GC)
