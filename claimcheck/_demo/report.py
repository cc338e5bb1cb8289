"""What a person sees while the work is going on: a bar on a terminal, a line now and then in a log."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from claimcheck._demo.files import Folder, Tally
from claimcheck._demo.job import Found, Reading
from claimcheck._demo.produce import BROKER_LIMIT_BYTES, Sent

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

__all__ = [
    "count",
    "mega",
    "mismatches",
    "Run",
    "show",
    "Watch",
]

T = TypeVar("T")

_LOOK_SECONDS = 0.1
_LINE_SECONDS = 5.0
_TITLE = 20


@dataclass(frozen=True, slots=True)
class Watch:
    """Shows how far a piece of work is while another thread does it.

    Attributes:
        console: Where to.
        folder: What there is to do.
        tally: Where the work counts what it has done.
        clock: Seconds.
    """

    console: Console
    folder: Folder
    tally: Tally
    clock: Callable[[], float] = time.monotonic

    def over(self, title: str, work: Callable[[], T], *, cancel: Callable[[], object], counted: bool = True) -> T:
        """Do the work and return what it returns; when this is interrupted the work is over, too.

        Args:
            title: What it is, in two words.
            work: Done in a thread of its own; its errors come through unchanged.
            cancel: Makes the work end soon, in whatever way.
            counted: Whether the work counts in the tally as it goes; else only its end is known.
        """
        self.tally.reset()
        with ThreadPoolExecutor(1, thread_name_prefix="claimcheck-demo") as threads:
            future = threads.submit(work)
            show = self._bar if self.console.is_terminal else self._lines
            try:
                show(title, future, counted=counted)
            except BaseException:
                with contextlib.suppress(Exception):
                    cancel()
                raise
            return future.result()

    def _bar(self, title: str, future: Future[T], *, counted: bool) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.description}"), BarColumn(18), TextColumn("{task.fields[text]}"))
        with Progress(*columns, TimeElapsedColumn(), console=self.console) as progress:
            everything = max(self.folder.total_bytes, 1)
            task = progress.add_task(title.ljust(_TITLE), total=everything if counted else None, text="")
            while not self._done(future):
                files, size = self.tally.total()
                text = self._far(files, size) if counted else "at work"
                progress.update(task, completed=size, text=text)
            if future.exception() is None:
                progress.update(task, total=everything, completed=everything, text="done")

    def _lines(self, title: str, future: Future[T], *, counted: bool) -> None:
        begin = said = self.clock()
        while not self._done(future):
            if self.clock() - said >= _LINE_SECONDS:
                said = self.clock()
                self._line(title, self._far(*self.tally.total()) if counted else f"at work for {said - begin:.0f} s")
        if future.exception() is None:
            self._line(title, f"done in {self.clock() - begin:.1f} s")

    def _line(self, title: str, text: str) -> None:
        self.console.print(f"{title:<{_TITLE}} {text}", highlight=False, markup=False)

    def _far(self, files: int, size: int) -> str:
        return f"{count(files)} of {count(len(self.folder.sizes))} files, {mega(size)}"

    def _done(self, future: Future[T]) -> bool:
        return bool(wait([future], timeout=_LOOK_SECONDS).done)


def count(number: int) -> str:
    """Write a number as people do."""
    return f"{number:,}"


def mega(size: float) -> str:
    """Write bytes as people do."""
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} B" if unit == "B" else f"{size:,.1f} {unit}"
        size /= 1000
    return f"{size:,.1f} GB"


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
