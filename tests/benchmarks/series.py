"""What the rounds of one measurement amount to: medians, spreads, rates and ratios."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

GIGA = 1e9


@dataclass(frozen=True, slots=True)
class Sample:
    """One round of one variant.

    Attributes:
        seconds: By the clock.
        cpu: Seconds of all threads of this process.
    """

    seconds: float
    cpu: float


@dataclass(frozen=True, slots=True)
class Spread:
    """Where the rounds lie; half of them between the quartiles."""

    median: float
    low: float
    high: float
    best: float
    worst: float


@dataclass(frozen=True, slots=True)
class Series:
    """All rounds of one variant.

    Attributes:
        name: The variant's.
        amount: What one round moves: bytes, or operations.
        samples: In the order of the rounds.
        counts: What the amount counts, ``bytes`` or ``operations``.
    """

    name: str
    amount: int
    samples: tuple[Sample, ...]
    counts: str = "bytes"

    @property
    def seconds(self) -> Spread:
        """Of one round."""
        return spread([sample.seconds for sample in self.samples])

    @property
    def rate(self) -> float:
        """GB/s, or operations per second, at the median."""
        return self.amount / self.seconds.median / (GIGA if self.counts == "bytes" else 1)

    @property
    def cpu_ms(self) -> float:
        """Milliseconds of this process' CPU per GB, or per thousand operations, at the median."""
        spent = statistics.median(sample.cpu for sample in self.samples)
        return spent * 1000 / self.amount * (GIGA if self.counts == "bytes" else 1000)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        seconds = {name: getattr(self.seconds, name) for name in Spread.__slots__}
        what = {"name": self.name, "amount": self.amount, "counts": self.counts, "rounds": len(self.samples)}
        return {**what, "seconds": seconds, "rate": self.rate, "cpu_ms": self.cpu_ms}


def spread(values: Sequence[float]) -> Spread:
    """Say where values lie, smallest is best."""
    low, high = min(values), max(values)
    quarter, three = (low, high)
    if len(values) > 1:
        quarter, _, three = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(median=statistics.median(values), low=quarter, high=three, best=low, worst=high)


def times_as_fast(ours: Series, base: Series) -> float:
    """The rate of ours over that of the base: the median over the rounds of the ratio within each round.

    What slows down one whole round, another process for example, slows down both sides of its ratio.
    """
    pairs = zip(ours.samples, base.samples, strict=True)
    ratio = statistics.median(their.seconds / our.seconds for our, their in pairs)
    return ratio * ours.amount / base.amount
