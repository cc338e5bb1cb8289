"""What the demo prints: progress and a table."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait
from types import TracebackType
from typing import TypeVar

T = TypeVar("T")

WIDTH = 20
LINE_SECONDS = 5.0


class Line:
    """The progress of one step: a line that changes on a terminal, elsewhere one every five seconds."""

    def __init__(self, title: str) -> None:
        self._title, self._text = title, ""
        self._begin = self._printed = time.monotonic()
        self._changes = sys.stdout.isatty()

    def show(self, text: str) -> None:
        """Show how far it is."""
        self._text = text
        if self._changes:
            self._print("\r", "\033[K")
        elif time.monotonic() - self._printed >= LINE_SECONDS:
            self._printed = time.monotonic()
            self._print("", "\n")

    def wait(self, future: Future[T]) -> None:
        """Show that something is not ready until it is."""
        while not wait([future], timeout=0.2).done:
            self.show("...")

    def _print(self, before: str, after: str) -> None:
        line = f"{self._title:<{WIDTH}} {time.monotonic() - self._begin:5.1f} s  {self._text}"
        if self._changes:
            line = line[: shutil.get_terminal_size().columns - 1]
        print(f"{before}{line}{after}", end="", flush=True)

    def __enter__(self) -> Line:
        self.show("")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._print("\r" if self._changes else "", "\033[K\n" if self._changes else "\n")


def megabytes(size: float) -> str:
    """Format a number of bytes."""
    return f"{size / 1e6:,.1f} MB" if size >= 1e5 else f"{size / 1e3:,.1f} kB"


def table(names: Sequence[str], rows: Mapping[str, Sequence[str]]) -> str:
    """Return a table with a column for each name."""
    width = max(map(len, rows)) + 2
    lines = [("", names), *rows.items()]
    return "\n".join(
        ["", *(f"{title:<{width}}" + "".join(f"{cell:>14}" for cell in cells) for title, cells in lines), ""]
    )
