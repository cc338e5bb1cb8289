"""How many requests at once pay: threads hide waiting (a store behind a network), and only get in the way of work."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Literal, TypeVar

__all__ = ["Concurrency", "Pace"]

Concurrency = Literal["auto"] | int
"""Requests at once: 1 to 64, or ``auto`` to find out."""

T = TypeVar("T")

_AUTO_THREADS = 16
_SAMPLES = 4
_WORTHWHILE_SECONDS = 0.002  # below this, switching threads costs more than the waiting that it hides
_REMEMBER_SECONDS = 60.0


class Pace:
    """How many fetches at once pay: learnt from single ones, remembered for a minute, one per process and store.

    Args:
        concurrency: A number is simply kept; ``auto`` learns.
        wall: Seconds that pass.
        cpu: Seconds that the calling thread works.
    """

    def __init__(
        self,
        concurrency: Concurrency,
        *,
        wall: Callable[[], float] = time.perf_counter,
        cpu: Callable[[], float] = time.thread_time,
    ) -> None:
        self._fixed = None if concurrency == "auto" else concurrency
        self._wall, self._cpu = wall, cpu
        self._connected = False
        self._samples: list[tuple[float, float]] = []
        self._learnt = 1
        self._learnt_at = -math.inf

    @property
    def threads(self) -> int:
        """1 while it is still learning and where threads would not pay."""
        if self._fixed is not None:
            return self._fixed
        if len(self._samples) == _SAMPLES and self._wall() - self._learnt_at > _REMEMBER_SECONDS:
            self._samples.clear()
        return self._learnt if len(self._samples) == _SAMPLES else 1

    def watch(self, fetch: Callable[[], T]) -> T:
        """Do one fetch and learn from it."""
        wall, cpu = self._wall(), self._cpu()
        outcome = fetch()
        self._learn(self._wall() - wall, self._cpu() - cpu)
        return outcome

    def _learn(self, wall: float, cpu: float) -> None:
        if not self._connected:  # the first fetch also opens the connection and says nothing about the others
            self._connected = True
        elif len(self._samples) < _SAMPLES:
            self._samples.append((wall, cpu))
            if len(self._samples) == _SAMPLES:
                self._learnt, self._learnt_at = _worthwhile(self._samples), self._wall()

    def __repr__(self) -> str:
        return f"<Pace threads={self.threads} samples={len(self._samples)}>"


def _worthwhile(samples: list[tuple[float, float]]) -> int:
    wall = sum(sample[0] for sample in samples) / len(samples)
    cpu = sum(sample[1] for sample in samples) / len(samples)
    if wall - cpu < _WORTHWHILE_SECONDS:
        return 1
    return min(max(math.ceil(wall / max(cpu, 1e-6)), 2), _AUTO_THREADS)
