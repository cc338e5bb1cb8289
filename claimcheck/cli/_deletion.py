"""``sweep`` and ``gc``: delete expired payloads, and payloads that no message points at."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any

import click

from claimcheck._client import ClaimCheck
from claimcheck._operate.garbage import AGES
from claimcheck._operate.gc_collection import Collection, CollectionReport, StoreReport
from claimcheck._operate.gc_topics import KafkaTopics, LocalTopics, PulsarTopics, Topics
from claimcheck._operate.sweep import SweepReport
from claimcheck._texts import duration as in_words
from claimcheck._texts import printable
from claimcheck.cli._files import STDIO, check_output, live_status
from claimcheck.cli._options import (
    BrokerOptions,
    broker_options,
    check_one_broker,
    checked_stores,
    duration,
    grace_option,
    human_bytes,
    json_option,
    limit_option,
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
from claimcheck.config import HEADER
from claimcheck.errors import ClaimCheckError, ConfigError, ScanNotSupportedError
from claimcheck.transports.kafka._queries import KafkaTarget
from claimcheck.transports.local._broker import LocalBroker
from claimcheck.transports.local._database import is_broker_file
from claimcheck.transports.pulsar._queries import PulsarTarget

_HINTS = 10
_KEPT_BY_SWEEP = {
    "alive": "not expired, or within the grace period",
    "unlimited": "no lifetime (written without ttl_seconds)",
    "unknown": "unknown lifetime (written by an earlier release: see --unmarked-lifetime)",
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
@limit_option("this many entries")
@click.option(
    "--unmarked-lifetime",
    metavar="TIME",
    callback=duration,
    help="Lifetime of payloads of earlier releases, whose keys have none.  [default: they are kept]",
)
@json_option
def sweep(
    config: str,
    names: tuple[str, ...],
    yes: bool,
    grace: float,
    rate: float | None,
    limit: int | None,
    unmarked_lifetime: float | None,
    as_json: bool,
) -> None:
    """Delete payloads whose lifetime has passed, and what interrupted writes left behind.

    Only counts them, unless --yes is given. Lists the stores and opens no payload. Payloads without a known lifetime
    are kept. TIME is a number with the unit s, m, h or d, such as 90s or 12h. A store that fails does not
    stop the others. Exits with 1 if an entry could not be deleted.
    """
    check_output(STDIO)
    with loaded(config) as cc:
        swept = _Swept(cc, names)
        try:
            swept.run(
                limit=limit,
                dry_run=not yes,
                grace_seconds=grace,
                rate=rate,
                unmarked_lifetime_seconds=unmarked_lifetime,
            )
        finally:  # also after Ctrl-C: it has deleted something
            swept.show(as_json=as_json)
    for error in swept.errors.values():
        raise error
    sys.exit(int(any(report.failed for report in swept.reports.values())))


class _Swept:
    """Sweeps several stores, one after the other, and keeps what became of each."""

    def __init__(self, cc: ClaimCheck, names: tuple[str, ...]) -> None:
        self._cc = cc
        self._is_chosen = bool(names)
        self._names = checked_stores(cc, names)
        self._is_complete = False
        self.reports: dict[str, SweepReport] = {}
        self.errors: dict[str, BaseException] = {}
        self.not_listed: dict[str, str] = {}

    def run(self, *, limit: int | None, **options: Any) -> None:
        """Sweep until the limit is reached; a store that fails does not stop the others."""
        with live_status("listing ...") as show:
            for name in self._names:
                self._sweep(name, show, limit=limit, **options)
                if limit is not None:
                    limit -= self._used(name)
                    if limit <= 0:
                        break
        self._is_complete = True

    def _sweep(self, name: str, show: Callable[[str], None], **options: Any) -> None:
        def on_batch(report: SweepReport) -> None:
            self.reports[name] = report
            expired = report.expired + report.leftovers
            show(f"{name}: {report.scanned:,} listed, {expired:,} expired, {report.deleted:,} deleted")

        try:
            self.reports[name] = self._cc.sweep(name, on_batch=on_batch, **options)
        except ClaimCheckError as error:
            if isinstance(error, ScanNotSupportedError) and not self._is_chosen:
                self.reports.pop(name, None)
                self.not_listed[name] = one_line(error)
                return
            self.reports.setdefault(name, SweepReport(store=name, dry_run=options["dry_run"]))
            self.errors[name] = error
        except BaseException as error:
            self.errors[name] = error
            raise

    def _used(self, name: str) -> int:
        report = self.reports.get(name)
        return report.expired + report.leftovers if report else 0

    def show(self, *, as_json: bool) -> None:
        """Print the reports."""
        errors = {name: why(error) for name, error in self.errors.items()}
        not_swept = [name for name in self._names if name not in self.reports and name not in self.not_listed]
        if as_json:
            stores = [_sweep_facts(report) | {"error": errors.get(name)} for name, report in self.reports.items()]
            ok = self._is_complete and not errors and not any(report.failed for report in self.reports.values())
            facts = {"ok": ok, "stores": stores, "not_listed": self.not_listed, "not_swept": not_swept}
            click.echo(json.dumps(facts, indent=2))
            return
        for name, report in self.reports.items():
            click.echo("\n".join(_sweep_lines(report, errors.get(name))))
        for text in self.not_listed.values():
            click.echo(text)
        for name in not_swept:
            click.echo(f"{name}: not swept: {'the limit was reached' if self._is_complete else 'interrupted'}")


def _sweep_lines(report: SweepReport, error: str | None) -> Iterator[str]:
    """Describe the sweep of one store."""
    if error is not None and not report.scanned:
        yield f"{report.store}: not swept: {error}"
        return
    leftovers = f"{report.leftovers:,} {'leftover' if report.leftovers == 1 else 'leftovers'}"
    counts = f"{report.expired:,} of {report.scanned:,} entries expired, {leftovers}"
    yield f"{report.store}: {counts}, {human_bytes(report.expired_bytes)}"
    yield f"  {_swept_text(report, error)}"
    yield from _rest(report, error, _KEPT_BY_SWEEP)


def _swept_text(report: SweepReport, error: str | None) -> str:
    if report.dry_run:
        found = report.expired + report.leftovers
        return "nothing was deleted: use --yes to delete them" if found else "nothing to delete"
    least = "" if error is None else "at least "
    skipped = f", {report.skipped:,} no longer there or rewritten" if report.skipped else ""
    return f"{least}{report.deleted:,} deleted{skipped} in {report.duration_seconds:,.1f} s"


def _rest(report: SweepReport | StoreReport, error: str | None, reasons: dict[str, str]) -> Iterator[str]:
    """Describe what was kept, what failed, and why the end of the store was not reached."""
    for reason, text in reasons.items():
        if count := report.kept.get(reason):
            yield f"  {count:,} kept: {text}"
    if report.failed:
        yield f"  {report.failed:,} failed: {'; '.join(one_line(each) for each in report.errors)}"
    if error is not None:
        yield f"  not finished: {error}"
    elif not report.finished:
        yield "  the limit was reached: later entries were not listed"


def _sweep_facts(report: SweepReport) -> dict[str, object]:
    names = [name for name in SweepReport.__slots__ if name not in ("errors", "kept")]
    facts = {name: getattr(report, name) for name in names}
    return facts | {"kept": dict(report.kept), "errors": [one_line(error) for error in report.errors]}


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
@broker_options
@local_option
@topic_option("Repeatable.", required=True)
@with_config
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
@limit_option("this many payloads")
@json_option
def gc(
    broker: BrokerOptions,
    local: str | None,
    topics: tuple[str, ...],
    config: str,
    names: tuple[str, ...],
    yes: bool,
    grace: float,
    consumed: bool,
    claim: bool,
    force: bool,
    ignore_before: float | None,
    rate: float | None,
    limit: int | None,
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
            limit=limit,
        )
        read = _topics(broker, local, topics, consumed, stack)
        output = _Collected(is_chosen=bool(names), as_json=as_json)
        with output.shown():
            options.run(stores, read, on_progress=output.note)
    for error in output.errors.values():
        raise error
    sys.exit(int(any(each.failed for each in output.report.stores)))


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
    """Shows the state on a terminal, and the result at the end, also after an error."""

    def __init__(self, *, is_chosen: bool, as_json: bool) -> None:
        self._is_chosen, self._as_json = is_chosen, as_json
        self._count: Callable[[str], None] = lambda text: None
        self.report = CollectionReport(dry_run=True)

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """Show the state until the block ends, then the result."""
        error: BaseException | None = None
        try:
            with contextlib.ExitStack() as stack:
                self._count = stack.enter_context(live_status("listing ..."))
                yield
        except BaseException as raised:
            error = raised
            raise
        finally:
            self._show(error)

    def note(self, report: CollectionReport) -> None:
        """Keep the state, and show it."""
        self.report = report
        orphans, deleted = (sum(getattr(each, name) for each in report.stores) for name in ("orphans", "deleted"))
        self._count(
            f"{report.phase}: {report.candidates:,} candidates, {report.messages:,} messages read, "
            f"{orphans:,} orphans, {deleted:,} deleted"
        )

    @property
    def errors(self) -> dict[str, BaseException]:
        """The errors of the stores; that a store cannot be listed counts only if it was chosen."""
        return {each.store: each.error for each in self.report.stores if each.error and not self._is_skipped(each)}

    def _is_skipped(self, report: StoreReport) -> bool:
        return isinstance(report.error, ScanNotSupportedError) and not self._is_chosen

    def _show(self, error: BaseException | None) -> None:
        report = self.report
        if self._as_json:
            ok = error is None and not self.errors and not any(each.failed for each in report.stores)
            not_listed = {each.store: why(each.error) for each in report.stores if self._is_skipped(each)}
            stores = [_store_facts(each) for each in report.stores if each.store not in not_listed]
            more = {"stores": stores, "not_listed": not_listed, "error": why(error)}
            click.echo(json.dumps({"ok": ok} | _gc_facts(report) | more, indent=2))
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
    """Describe what became of the payloads of one store."""
    if report.error is not None and not report.listed:
        yield f"{report.store}: not collected: {why(report.error)}"
        return
    counts = f"{report.orphans:,} of {report.listed:,} entries are orphans"
    yield f"{report.store}: {counts}, {human_bytes(report.orphan_bytes)}"
    yield f"  {_collected_text(report, collection)}"
    if unclaimed := collection.unclaimed.get(report.store):
        yield f"  claimed by no cluster: {', '.join(map(printable, unclaimed))}"
    ages = {name: report.ages[name] for name, _ in AGES if name in report.ages}
    for counted in (report.topics, ages):
        if counted:
            yield f"  {', '.join(f'{count:,} {printable(name)}' for name, count in counted.items())}"
    if report.referenced:
        yield f"  {report.referenced:,} kept: a message points at them"
    yield from _rest(report, why(report.error), _KEPT_BY_GC)


def _collected_text(report: StoreReport, collection: CollectionReport) -> str:
    if collection.dry_run or collection.unclaimed:
        claim = " --claim" if collection.unclaimed else ""
        return f"nothing was deleted: use --yes{claim} to delete them" if report.orphans else "nothing to delete"
    skipped = f", {report.skipped:,} no longer there or written again" if report.skipped else ""
    return f"{report.deleted:,} deleted{skipped} in {collection.duration_seconds:,.1f} s"


def _gc_facts(report: CollectionReport) -> dict[str, object]:
    return {each.name: getattr(report, each.name) for each in fields(report)}


def _store_facts(report: StoreReport) -> dict[str, object]:
    facts: dict[str, object] = {each.name: getattr(report, each.name) for each in fields(report)}
    return facts | {"errors": [one_line(each) for each in report.errors], "error": why(report.error)}
