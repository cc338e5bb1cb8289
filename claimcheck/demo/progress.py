"""What a person sees while the work is going on: a bar on a terminal, a line now and then in a log."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from claimcheck.demo.files import Folder
from claimcheck.demo.tally import Tally

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["Watch", "count", "mega"]

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
