"""What it came to: both strategies side by side, and every payload that is not what was sent."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from claimcheck.demo.job import Found, Reading
from claimcheck.demo.produce import BROKER_LIMIT_BYTES, Sent
from claimcheck.demo.progress import count, mega

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

__all__ = ["Run", "mismatches", "show"]

_SHOWN = 10
_NOTHING = "-"


@dataclass(frozen=True, slots=True)
class Run:
    """One strategy, there and back.

    Attributes:
        strategy: Its name.
        sent: What the producer did.
        readings: What Spark found; each one read everything.
    """

    strategy: str
    sent: Sent
    readings: tuple[Reading, ...]

    @property
    def payload_bytes(self) -> int:
        """Bytes of the files that were sent."""
        return sum(self.sent.sizes.values())

    def reading(self, name: str) -> Reading | None:
        """Return one of the readings, where this strategy has it."""
        return next((reading for reading in self.readings if reading.name == name), None)

    @property
    def wrong(self) -> dict[str, str]:
        """Why, by name and reading, for everything that did not come back as it was sent."""
        return {
            f"{name} ({self.strategy}, {reading.name})": why
            for reading in self.readings
            for name, why in mismatches(self.sent, reading.found)
        }


def mismatches(sent: Sent, found: Sequence[Found]) -> Iterator[tuple[str, str]]:
    """Compare what came back with what was sent: lost, changed, doubled or never sent."""
    seen: set[bytes] = set()
    for each in found:
        name = os.fsdecode(each.key)
        if each.key not in sent.digests:
            yield name, "was never sent"
        elif each.key in seen:
            yield name, "came twice"
        elif each.digest != sent.digests[each.key]:
            yield name, f"changed: {count(sent.sizes[each.key])} bytes went out, {count(each.size)} came back"
        seen.add(each.key)
    for key in sent.digests.keys() - seen:
        yield os.fsdecode(key), "did not come back"


def show(console: Console, runs: Sequence[Run], skipped: Mapping[str, str]) -> None:
    """Print the table, what was left out, and what went wrong."""
    console.print()
    console.print(_table(runs))
    _list(console, "Left out", skipped)
    wrong = {name: why for run in runs for name, why in run.wrong.items()}
    _list(console, "Mismatches", wrong)
    if not wrong:
        times = sum(len(run.readings) for run in runs)
        files = count(len(runs[0].sent.sizes))
        console.print(f"[green]Every one of the {files} files came back as it was sent, {_times(times)}.[/green]")


def _table(runs: Sequence[Run]) -> Table:
    from rich import box
    from rich.table import Table

    limit = f"{BROKER_LIMIT_BYTES >> 20} MiB"
    table = Table(title=f"Any size through a broker that refuses more than {limit}", box=box.SIMPLE_HEAD)
    table.add_column("", no_wrap=True)
    for run in runs:
        table.add_column(run.strategy, justify="right", no_wrap=True, min_width=14)
    for title, cells in _rows(runs):
        if title:
            table.add_row(title, *cells)
        else:
            table.add_section()
    table.add_row("[bold]mismatches[/bold]", *(_verdict(len(run.wrong)) for run in runs))
    return table


def _rows(runs: Sequence[Run]) -> Iterator[tuple[str, list[str]]]:
    """Titles and cells; an empty title is a line."""
    yield "files", [count(len(run.sent.sizes)) for run in runs]
    yield "payload", [mega(run.payload_bytes) for run in runs]
    yield "through the broker", [mega(run.sent.broker_bytes) for run in runs]
    yield "  of the payload", [_ratio(run.sent.broker_bytes, run.payload_bytes) for run in runs]
    yield "", []
    yield "envelopes", [count(sum(run.sent.envelopes.values())) for run in runs]
    for kind, title in _KINDS.items():
        if kind in ("pointer", "chunk", "plain") or any(kind in run.sent.envelopes for run in runs):
            yield f"  {title}", [_number(run.sent.envelopes.get(kind, 0)) for run in runs]
    yield "", []
    yield "written", [_speed(run.payload_bytes, run.sent.seconds) for run in runs]
    for name, title in (("RDD", "read as RDD, in the workers"), ("DataFrame", "read as DataFrame, into Spark")):
        yield title, [_reading_speed(run, name) for run in runs]
    yield "", []
    found = [[each for each in run.readings[0].found if each.entries is not None] for run in runs]
    yield "archives", [count(len(archives)) for archives in found]
    yield "  entries in them", [count(sum(each.entries or 0 for each in archives)) for archives in found]
    yield "  uncompressed", [mega(sum(each.unpacked for each in archives)) for archives in found]
    yield "", []


_KINDS = {
    "pointer": "pointers to the store",
    "chunk": "chunks",
    "plain": "plain messages, small enough",
    "literal": "literals, escaped look-alikes",
    "abort": "aborts",
}


def _number(number: int) -> str:
    return count(number) if number else _NOTHING


def _ratio(part: int, whole: int) -> str:
    share = 100 * part / whole if whole else 0
    return f"{share:.1f} %" if share >= 0.1 else "< 0.1 %" if whole else _NOTHING


def _speed(size: int, seconds: float) -> str:
    return f"{mega(size / seconds)}/s" if seconds > 0 else _NOTHING


def _reading_speed(run: Run, name: str) -> str:
    reading = run.reading(name)
    return _NOTHING if reading is None else _speed(run.payload_bytes, reading.seconds)


def _verdict(number: int) -> str:
    return "[bold green]0[/bold green]" if number == 0 else f"[bold red]{count(number)}[/bold red]"


def _times(number: int) -> str:
    return {1: "once", 2: "twice", 3: "three times"}.get(number, f"{number} times")


def _list(console: Console, title: str, lines: Mapping[str, str]) -> None:
    if not lines:
        return
    console.print(f"{title} ({count(len(lines))}):", highlight=False)
    for name, why in list(lines.items())[:_SHOWN]:
        shown = name.encode("utf-8", "replace").decode()  # a file's name may be no text at all
        console.print(f"  {shown}: {why}", highlight=False, markup=False)
    if len(lines) > _SHOWN:
        console.print(f"  and {count(len(lines) - _SHOWN)} more", highlight=False)
