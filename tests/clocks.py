"""Time for tests: it passes only when somebody sleeps or the test says so."""

from __future__ import annotations


class Clock:
    """Time that passes only when somebody sleeps or the test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
