"""How far a run is: a bar on a terminal, a line for each step elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

Show = Callable[[str], None]
"""Say what begins now."""


@contextlib.contextmanager
def progress(total: int) -> Iterator[Show]:
    """Show how many of so many steps are done, on standard error."""
    with _bar(total) if sys.stderr.isatty() else _lines(total) as show:
        yield show


@contextlib.contextmanager
def _bar(total: int) -> Iterator[Show]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(24), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    # Drawn between the steps only: a thread that draws would take its time from what is measured.
    with Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False) as bar:
        task, done = bar.add_task("", total=total), iter(range(total))
        yield lambda text: bar.update(task, completed=next(done), description=text, refresh=True)


@contextlib.contextmanager
def _lines(total: int) -> Iterator[Show]:
    begin, done = time.monotonic(), iter(range(1, total + 1))

    def show(text: str) -> None:
        print(f"[{next(done):3}/{total}] {time.monotonic() - begin:4.0f} s  {text}", file=sys.stderr, flush=True)

    yield show
