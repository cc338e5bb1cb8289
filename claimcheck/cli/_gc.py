"""``gc``: deletes the stored payloads of topics that no readable message points at."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields
from datetime import UTC, datetime

import click

from claimcheck._doctor._topics import KafkaTarget, PulsarTarget
from claimcheck._envelope import HEADER
from claimcheck._gc._collection import Collection, CollectionReport
from claimcheck._gc._stores import StoreReport
from claimcheck._gc._topics import Topics
from claimcheck._texts import duration as in_words
from claimcheck._texts import printable
from claimcheck.cli._brokers import BrokerOptions, broker_options, check_one_broker, local_broker, local_option
from claimcheck.cli._configuration import config_option, json_option, loaded
from claimcheck.cli._exit_codes import one_line
from claimcheck.cli._files import STDIO, check_output, live_status
from claimcheck.cli._help import COMMANDS
from claimcheck.cli._inspect import human_bytes
from claimcheck.cli._sweep import check_dry_run, checked_stores, duration, rate_option, store_option
from claimcheck.errors import ScanNotSupportedError

_HINTS = 10
_KEPT = {
    "recent": "within the grace period",
    "other": "of other destinations",
    "leftover": "left behind by interrupted writes (see claimcheck sweep)",
    "unknown": "with an unknown age, or written by a task without ttl_seconds",
}


def _time(context: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    """Return a time in seconds since 1970; without an offset it is in UTC."""
    if value is None:
        return None
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a time such as 2026-11-22 or 2026-11-22T11:30") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


@click.command(short_help=COMMANDS["gc"])
@broker_options
@local_option
@click.option("--topic", "topics", metavar="TOPIC", multiple=True, required=True, help="Repeatable.")
@config_option
@store_option
@click.option("--yes", is_flag=True, help="Delete. Without it, nothing is deleted.")
@click.option("--dry-run", is_flag=True, help="Delete nothing; the default.")
@click.option(
    "--grace",
    metavar="TIME",
    callback=duration,
    default="24h",
    show_default=True,
    help="Keep younger payloads: their messages may not have been sent yet.",
)
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
@click.option("--limit", metavar="N", type=click.IntRange(min=1), help="Stop after this many payloads.")
@json_option
def gc(
    broker: BrokerOptions,
    local: str | None,
    topics: tuple[str, ...],
    config: str,
    names: tuple[str, ...],
    yes: bool,
    dry_run: bool,
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
    check_dry_run(yes=yes, dry_run=dry_run)
    if claim and not yes:
        raise click.UsageError("--claim needs --yes: look at the report without both first")
    check_one_broker(broker, local)
    check_output(STDIO, force=False)
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
        target = broker.target(topics)
        if local is not None:
            read = _local(local, topics, consumed, stack)
        elif isinstance(target, KafkaTarget):
            read = _kafka(target, consumed)
        else:
            assert isinstance(target, PulsarTarget)
            read = _pulsar(target, consumed)
        output = _Output(is_chosen=bool(names), as_json=as_json)
        with output.shown():
            options.run(stores, read, on_progress=output.note)
    for error in output.errors.values():
        raise error
    sys.exit(int(any(each.failed for each in output.report.stores)))


def _kafka(target: KafkaTarget, consumed: bool) -> Topics:
    from claimcheck._gc._kafka import KafkaTopics

    return KafkaTopics(target, consumed=consumed)


def _pulsar(target: PulsarTarget, consumed: bool) -> Topics:
    from claimcheck._gc._pulsar import PulsarTopics

    return PulsarTopics(target, consumed=consumed)


def _local(path: str, topics: tuple[str, ...], consumed: bool, stack: contextlib.ExitStack) -> Topics:
    from claimcheck._gc._local import LocalTopics

    return LocalTopics(stack.enter_context(local_broker(path)), topics, consumed=consumed)


class _Output:
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
            not_listed = {each.store: _why(each.error) for each in report.stores if self._is_skipped(each)}
            stores = [_store_facts(each) for each in report.stores if each.store not in not_listed]
            more = {"stores": stores, "not_listed": not_listed, "error": _why(error)}
            click.echo(json.dumps({"ok": ok} | _facts(report) | more, indent=2))
        elif report.phase in ("deleting", "finished"):
            damaged = f", {report.damaged:,} damaged" if report.damaged else ""
            ignored = f", {report.ignored:,} of an unknown version ignored" if report.ignored else ""
            click.echo(f"{report.messages:,} messages read: {report.pointers:,} pointers{damaged}{ignored}")
            click.echo("\n".join(_read_lines(report)))
            if report.candidates and not report.matched:
                click.echo("no message points at any payload in these stores: is this their broker?")
            for each in report.stores:
                skipped = isinstance(each.error, ScanNotSupportedError)
                click.echo(_why(each.error) if skipped else "\n".join(_lines(each, report)))


def _why(error: BaseException | None) -> str | None:
    return None if error is None else one_line(error) if isinstance(error, Exception) else "interrupted"


def _read_lines(report: CollectionReport) -> Iterator[str]:
    """Describe which topics were read and which were not, and the grace period."""
    yield f"  read: {', '.join(f'{printable(name)} ({count:,})' for name, count in sorted(report.topics.items()))}"
    if report.not_read:
        more = f" and {len(report.not_read) - _HINTS:,} more" if len(report.not_read) > _HINTS else ""
        names = ", ".join(map(printable, report.not_read[:_HINTS])) + more
        yield f"  not read: {names}: name them with --topic if they have messages with these payloads"
    yield f"  grace period: {in_words(report.grace_seconds)}; younger payloads are kept"


def _lines(report: StoreReport, collection: CollectionReport) -> Iterator[str]:
    """Describe what became of the payloads of one store."""
    if report.error is not None and not report.listed:
        yield f"{report.store}: not collected: {_why(report.error)}"
        return
    counts = f"{report.orphans:,} of {report.listed:,} entries are orphans"
    yield f"{report.store}: {counts}, {human_bytes(report.orphan_bytes)}"
    yield f"  {_outcome(report, collection)}"
    if unclaimed := collection.unclaimed.get(report.store):
        yield f"  claimed by no cluster: {', '.join(map(printable, unclaimed))}"
    for counted in (report.topics, report.ages):
        if counted:
            yield f"  {', '.join(f'{count:,} {printable(name)}' for name, count in counted.items())}"
    if report.referenced:
        yield f"  {report.referenced:,} kept: a message points at them"
    for reason, count in report.kept.items():
        yield f"  {count:,} kept: {_KEPT[reason]}"
    if report.failed:
        yield f"  {report.failed:,} failed: {'; '.join(one_line(each) for each in report.errors)}"
    if report.error is not None:
        yield f"  not finished: {_why(report.error)}"
    elif not report.finished:
        yield "  the limit was reached: later entries were not listed"


def _outcome(report: StoreReport, collection: CollectionReport) -> str:
    if collection.dry_run or collection.unclaimed:
        claim = " --claim" if collection.unclaimed else ""
        return f"nothing was deleted: use --yes{claim} to delete them" if report.orphans else "nothing to delete"
    skipped = f", {report.skipped:,} no longer there or written again" if report.skipped else ""
    return f"{report.deleted:,} deleted{skipped} in {collection.duration_seconds:,.1f} s"


def _facts(report: CollectionReport) -> dict[str, object]:
    return {each.name: getattr(report, each.name) for each in fields(report)}


def _store_facts(report: StoreReport) -> dict[str, object]:
    facts: dict[str, object] = {each.name: getattr(report, each.name) for each in fields(report)}
    return facts | {"errors": [one_line(each) for each in report.errors], "error": _why(report.error)}
