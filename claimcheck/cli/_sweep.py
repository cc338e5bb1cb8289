"""``sweep``: deletes expired payloads and leftovers from the stores of a configuration."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import click

from claimcheck._client import ClaimCheck
from claimcheck._sweep import SweepReport
from claimcheck._validation import MAX_SECONDS
from claimcheck.cli._configuration import config_option, json_option, loaded
from claimcheck.cli._exit_codes import one_line
from claimcheck.cli._files import STDIO, check_output, live_status
from claimcheck.cli._help import COMMANDS
from claimcheck.cli._inspect import human_bytes
from claimcheck.errors import ClaimCheckError, ConfigError, ScanNotSupportedError

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
_RATE = re.compile(r"(\d+(?:\.\d+)?)(?:/s)?")
_KEPT = {
    "alive": "not expired, or within the grace period",
    "unlimited": "no lifetime (written without ttl_seconds)",
    "unknown": "unknown lifetime (written by an earlier release: see --unmarked-lifetime)",
    "recent": "leftovers within the grace period",
}


def duration(context: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    """Return the seconds of an option such as 90s, 30m, 12h or 7d; only 0 needs no unit."""
    if value is None:
        return None
    match = _DURATION.fullmatch("0s" if value == "0" else value)
    if match is None and _DURATION.fullmatch(f"{value}s"):
        raise click.BadParameter(f"{value!r} has no unit: use {value}s, {value}m, {value}h or {value}d")
    if match is None:
        raise click.BadParameter(f"{value!r} is not a duration such as 90s, 30m, 12h or 7d")
    seconds = float(match[1]) * _UNITS[match[2]]
    if seconds > MAX_SECONDS:
        raise click.BadParameter(f"{value!r} is too long: the maximum is {MAX_SECONDS // _UNITS['d']}d")
    return seconds


def _rate(context: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    if value is None:
        return None
    match = _RATE.fullmatch(value)
    if match is None or not 0.001 <= float(match[1]) <= 1_000_000:
        raise click.BadParameter(f"{value!r} is not a rate from 0.001/s to 1000000/s, such as 500/s")
    return float(match[1])


rate_option = click.option("--rate", metavar="N/s", callback=_rate, help="At most this many entries per second.")
store_option = click.option(
    "--store", "names", metavar="NAME", multiple=True, help="Only this store; repeatable.  [default: all]"
)


def check_dry_run(*, yes: bool, dry_run: bool) -> None:
    """Raise `click.UsageError` if both ``--yes`` and ``--dry-run`` are given."""
    if yes and dry_run:
        raise click.UsageError("--yes and --dry-run cannot be combined")


@click.command(short_help=COMMANDS["sweep"])
@config_option
@store_option
@click.option("--yes", is_flag=True, help="Delete. Without it, nothing is deleted.")
@click.option("--dry-run", is_flag=True, help="Delete nothing; the default.")
@click.option(
    "--grace",
    metavar="TIME",
    callback=duration,
    default="1h",
    show_default=True,
    help="Keep expired entries this much longer.",
)
@rate_option
@click.option("--limit", metavar="N", type=click.IntRange(min=1), help="Stop after this many entries.")
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
    dry_run: bool,
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
    check_dry_run(yes=yes, dry_run=dry_run)
    check_output(STDIO, force=False)
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
            show(_state(report))

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
        errors = {name: _why(error) for name, error in self.errors.items()}
        not_swept = [name for name in self._names if name not in self.reports and name not in self.not_listed]
        if as_json:
            stores = [_facts(report) | {"error": errors.get(name)} for name, report in self.reports.items()]
            ok = self._is_complete and not errors and not any(report.failed for report in self.reports.values())
            facts = {"ok": ok, "stores": stores, "not_listed": self.not_listed, "not_swept": not_swept}
            click.echo(json.dumps(facts, indent=2))
            return
        for name, report in self.reports.items():
            click.echo("\n".join(_lines(report, errors.get(name))))
        for text in self.not_listed.values():
            click.echo(text)
        for name in not_swept:
            click.echo(f"{name}: not swept: {'the limit was reached' if self._is_complete else 'interrupted'}")


def checked_stores(cc: ClaimCheck, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of the chosen stores, or of all, each once; raises the error of an unknown one."""
    for name in names:
        if name not in cc.config.stores:
            cc.store(name)
    if not cc.config.stores:
        raise ConfigError("the configuration has no stores", path="stores")
    return tuple(dict.fromkeys(names or cc.config.stores))


def _why(error: BaseException) -> str:
    return one_line(error) if isinstance(error, Exception) else "interrupted"


def _state(report: SweepReport) -> str:
    expired = report.expired + report.leftovers
    return f"{report.store}: {report.scanned:,} listed, {expired:,} expired, {report.deleted:,} deleted"


def _lines(report: SweepReport, error: str | None) -> Iterator[str]:
    """Describe the sweep of one store."""
    if error is not None and not report.scanned:
        yield f"{report.store}: not swept: {error}"
        return
    leftovers = f"{report.leftovers:,} {'leftover' if report.leftovers == 1 else 'leftovers'}"
    counts = f"{report.expired:,} of {report.scanned:,} entries expired, {leftovers}"
    yield f"{report.store}: {counts}, {human_bytes(report.expired_bytes)}"
    yield f"  {_outcome(report, error)}"
    for reason, count in report.kept.items():
        yield f"  {count:,} kept: {_KEPT[reason]}"
    if report.failed:
        yield f"  {report.failed:,} failed: {'; '.join(one_line(each) for each in report.errors)}"
    if error is not None:
        yield f"  not finished: {error}"
    elif not report.finished:
        yield "  the limit was reached: later entries were not listed"


def _outcome(report: SweepReport, error: str | None) -> str:
    if report.dry_run:
        return (
            "nothing was deleted: use --yes to delete them"
            if report.expired + report.leftovers
            else "nothing to delete"
        )
    least = "" if error is None else "at least "
    skipped = f", {report.skipped:,} no longer there or rewritten" if report.skipped else ""
    return f"{least}{report.deleted:,} deleted{skipped} in {report.duration_seconds:,.1f} s"


def _facts(report: SweepReport) -> dict[str, object]:
    names = [name for name in SweepReport.__slots__ if name not in ("errors", "kept")]
    facts = {name: getattr(report, name) for name in names}
    return facts | {"kept": dict(report.kept), "errors": [one_line(error) for error in report.errors]}
