"""``rewrap``: encrypts the data keys of stored payloads again, with the current key."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

import click

from claimcheck._rewrap import RewrapReport, rewrap
from claimcheck.cli._configuration import config_option, json_option, loaded
from claimcheck.cli._exit_codes import one_line
from claimcheck.cli._files import STDIO, check_output, live_status, printable
from claimcheck.cli._help import COMMANDS
from claimcheck.cli._sweep import check_dry_run, checked_stores, store_option
from claimcheck.errors import ScanNotSupportedError

__all__ = ["rewrap_command"]


@click.command("rewrap", short_help=COMMANDS["rewrap"])
@config_option
@store_option
@click.option("--yes", is_flag=True, help="Write. Without it, nothing is changed.")
@click.option("--dry-run", is_flag=True, help="Change nothing; the default.")
@json_option
def rewrap_command(config: str, names: tuple[str, ...], yes: bool, dry_run: bool, as_json: bool) -> None:
    """Encrypt the data keys of stored payloads with the current key, encryption.key_id.

    Only counts them, unless --yes is given. Afterwards no payload needs an older key, so that it can be deleted.
    Payloads stay encrypted as they are, and every pointer stays valid. Can be repeated after an interruption. Exits
    with 1 if a payload could not be changed.
    """
    check_dry_run(yes=yes, dry_run=dry_run)
    check_output(STDIO, force=False)
    reports, not_listed = list[RewrapReport](), dict[str, str]()
    with loaded(config) as cc, live_status("listing ...") as show:
        for name in checked_stores(cc, names):
            try:
                reports.append(rewrap(cc.store(name), dry_run=not yes, on_batch=lambda report: show(_state(report))))
            except ScanNotSupportedError as error:
                if names:
                    raise
                not_listed[name] = one_line(error)
    for reason in not_listed.values():
        click.echo(f"{reason}: payloads in this store may still need the old key", err=True)
    if as_json:
        ok = not any(report.failed for report in reports)
        facts = {"ok": ok, "stores": [_facts(report) for report in reports], "not_listed": not_listed}
        click.echo(json.dumps(facts, indent=2))
    else:
        click.echo("\n".join(line for report in reports for line in _lines(report)))
    sys.exit(int(any(report.failed for report in reports)))


def _state(report: RewrapReport) -> str:
    return f"{report.store}: {report.scanned:,} payloads, {report.rewrapped:,} rewrapped"


def _lines(report: RewrapReport) -> Iterator[str]:
    what = "to rewrap" if report.dry_run else "rewrapped"
    yield f"{report.store}: {report.rewrapped:,} of {report.scanned:,} payloads {what} with the key {report.key_id!r}"
    if report.dry_run and report.rewrapped:
        yield "  nothing was changed: use --yes to rewrap them"
    for key_id, count in sorted(report.by_key.items()):
        yield f"  {count:,} {'are' if report.dry_run else 'were'} encrypted with {printable(key_id)}"
    if report.not_encrypted:
        yield f"  {report.not_encrypted:,} are not encrypted"
    if report.gone:
        yield f"  {report.gone:,} no longer there"
    if report.failed:
        yield f"  {report.failed:,} failed: {'; '.join(one_line(error) for error in report.errors)}"


def _facts(report: RewrapReport) -> dict[str, object]:
    facts = {name: getattr(report, name) for name in RewrapReport.__slots__}
    return facts | {"errors": [one_line(error) for error in report.errors]}
