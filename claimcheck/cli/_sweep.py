"""``sweep``: deletes expired payloads and leftovers from the stores of a configuration."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from claimcheck._client import ClaimCheck
from claimcheck._sweep import SweepReport
from claimcheck.cli._configuration import config_option, json_option, loaded
from claimcheck.cli._exit_codes import one_line
from claimcheck.cli._files import STDIO, check_output, is_terminal
from claimcheck.cli._help import COMMANDS
from claimcheck.cli._inspect import human_bytes
from claimcheck.errors import ConfigError, ScanNotSupportedError

__all__ = ["duration", "sweep"]

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhd]?)")
_RATE = re.compile(r"(\d+(?:\.\d+)?)(?:/s)?")
_KEPT = {
    "alive": "not expired",
    "unlimited": "without a lifetime (written without ttl_seconds)",
    "unknown": "of unknown lifetime (written by an earlier release: see --unmarked-lifetime)",
    "recent": "leftovers younger than the grace",
}


def duration(context: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    """Return the seconds of an option such as 90s, 30m, 12h or 7d."""
    match = None if value is None else _DURATION.fullmatch(value)
    if match is None:
        if value is not None:
            raise click.BadParameter(f"{value!r} is not a duration such as 90s, 30m, 12h or 7d")
        return None
    return float(match[1]) * _UNITS[match[2]]


def _rate(context: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    match = None if value is None else _RATE.fullmatch(value)
    if value is not None and (match is None or not float(match[1])):
        raise click.BadParameter(f"{value!r} is not a rate such as 500/s")
    return None if match is None else float(match[1])


@click.command(short_help=COMMANDS["sweep"])
@config_option
@click.option("--store", "names", metavar="NAME", multiple=True, help="Only this store; repeatable.  [default: all]")
@click.option("--yes", is_flag=True, help="Delete. Without it, nothing is deleted.")
@click.option("--dry-run", is_flag=True, help="Delete nothing; the default.")
@click.option(
    "--grace", metavar="TIME", callback=duration, default="1h", show_default=True, help="Keep entries this much longer."
)
@click.option("--rate", metavar="N/s", callback=_rate, help="Delete at most this many entries per second.")
@click.option("--limit", metavar="N", type=click.IntRange(min=1), help="Stop after this many entries.")
@click.option(
    "--unmarked-lifetime",
    metavar="TIME",
    callback=duration,
    help="The lifetime of payloads of earlier releases, whose keys have none.  [default: they stay]",
)
@click.option(
    "--state",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Remember the position here, and continue there after an interruption.",
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
    state: Path | None,
    as_json: bool,
) -> None:
    """Delete payloads whose lifetime has passed, and what interrupted writes left behind.

    Counts only, unless --yes is given. Decides from the listing of a store; opens no payload. Payloads without a known
    lifetime stay. TIME is a number with the unit s, m, h or d. Exits with 1 if an entry could not be deleted.
    """
    if yes and dry_run:
        raise click.UsageError("--yes and --dry-run exclude each other")
    check_output(STDIO, force=False)
    with loaded(config) as cc, _counter() as count:
        swept = _Swept(cc, names, _State(state if yes else None), count)
        reports = swept.run(
            limit=limit, grace_seconds=grace, dry_run=not yes, rate=rate, unmarked_lifetime_seconds=unmarked_lifetime
        )
    if as_json:
        click.echo(json.dumps(_json(reports, swept.not_listed), indent=2))
    else:
        click.echo("\n".join(line for report in reports for line in _lines(report)))
        for text in swept.not_listed.values():
            click.echo(text)
    sys.exit(int(any(report.failed for report in reports)))


class _Swept:
    """Sweeps several stores, one after the other."""

    def __init__(
        self, cc: ClaimCheck, names: tuple[str, ...], state: _State, count: Callable[[SweepReport], None]
    ) -> None:
        self._cc = cc
        self._names = names or tuple(cc.config.stores)
        self._state = state
        self._count = count
        self._only = bool(names)
        self.not_listed: dict[str, str] = {}

    def run(self, *, limit: int | None, **options: Any) -> list[SweepReport]:
        """Return the report of each store that can be listed; stops at the limit."""
        if not self._names:
            raise ConfigError("the configuration has no stores", path="stores")
        first, after = self._state.load(self._names)
        reports: list[SweepReport] = []
        for name in self._names[self._names.index(first) if first else 0 :]:
            try:
                report = self._cc.sweep(name, limit=limit, after=after, on_batch=self._on_batch, **options)
            except ScanNotSupportedError as error:
                if self._only:
                    raise
                self.not_listed[name] = one_line(error)
                continue
            reports.append(report)
            after, limit = None, _rest(limit, report)
            if limit == 0:
                return reports
        self._state.clear()
        return reports

    def _on_batch(self, report: SweepReport) -> None:
        self._count(report)
        self._state.save(report)


def _rest(limit: int | None, report: SweepReport) -> int | None:
    return None if limit is None else limit - report.expired - report.leftovers


class _State:
    """The position of an interrupted sweep, in a file that is replaced as a whole."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def load(self, names: tuple[str, ...]) -> tuple[str | None, str | None]:
        """Return the store and the position to continue with."""
        if self._path is None or not self._path.exists():
            return None, None
        try:
            saved = json.loads(self._path.read_text())
            store, position = saved["store"], saved["position"]
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{self._path} is not the state of a sweep: delete it, or name another file") from error
        return (store, position) if store in names else (None, None)

    def save(self, report: SweepReport) -> None:
        """Replace the position."""
        if self._path is None or report.finished:
            return
        partial = self._path.with_name(f".{self._path.name}.partial")
        partial.write_text(json.dumps({"store": report.store, "position": report.position}))
        os.replace(partial, self._path)

    def clear(self) -> None:
        """Delete the file after a complete sweep."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)


@contextlib.contextmanager
def _counter() -> Iterator[Callable[[SweepReport], None]]:
    """Yield a function that shows the state so far on a terminal."""
    if not is_terminal(sys.stderr):
        yield lambda report: None
        return
    with Console(stderr=True).status("listing ...") as status:
        yield lambda report: status.update(
            f"{report.store}: {report.scanned:,} listed, {report.expired + report.leftovers:,} expired, "
            f"{report.deleted:,} deleted"
        )


def _lines(report: SweepReport) -> Iterator[str]:
    """Describe the sweep of one store."""
    counts = f"{report.expired:,} of {report.scanned:,} entries expired, {report.leftovers:,} leftovers"
    yield f"{report.store}: {counts}, {human_bytes(report.expired_bytes)}"
    if report.dry_run:
        yield (
            "  nothing was deleted: --yes deletes them" if report.expired + report.leftovers else "  nothing to delete"
        )
    else:
        changed = f", {report.skipped:,} were gone or written again" if report.skipped else ""
        yield f"  {report.deleted:,} deleted{changed} in {report.duration_seconds:,.1f} s"
    for reason, count in report.kept.items():
        yield f"  {count:,} stay: {_KEPT[reason]}"
    if not report.finished:
        yield "  the limit was reached: run it again for the rest"
    if report.failed:
        yield f"  {report.failed:,} could not be deleted: {'; '.join(one_line(error) for error in report.errors)}"


def _json(reports: list[SweepReport], not_listed: dict[str, str]) -> dict[str, object]:
    names = [name for name in SweepReport.__slots__ if name not in ("errors", "kept")]
    stores = [
        {name: getattr(report, name) for name in names}
        | {"kept": dict(report.kept), "errors": [one_line(error) for error in report.errors]}
        for report in reports
    ]
    return {"ok": not any(report.failed for report in reports), "stores": stores, "not_listed": not_listed}
