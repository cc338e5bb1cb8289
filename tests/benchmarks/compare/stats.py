"""Medians, percentiles and their 95 % confidence intervals, from rounds that were repeated."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence

from tests.benchmarks.compare.model import Point

_RESAMPLES = 400
_LOW, _HIGH = 0.025, 0.975

Rounds = Sequence[Sequence[float]]


def percentile(values: Sequence[float], fraction: float) -> float:
    """Return the value below which a fraction of the values lies; interpolates between two values."""
    ordered = sorted(values)
    place = fraction * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def interval(rounds: Rounds, statistic: Callable[[Sequence[float]], float], *, seed: int = 0) -> tuple[float, float]:
    """Return a 95 % interval by bootstrap over whole rounds: values of one round are not independent."""
    rng = random.Random(seed)
    results = []
    for _ in range(_RESAMPLES if len(rounds) > 1 else 1):
        drawn = rng.choices(rounds, k=len(rounds)) if len(rounds) > 1 else rounds
        results.append(statistic([value for each in drawn for value in each]))
    return percentile(results, _LOW), percentile(results, _HIGH)


def median_point(x: float, values: Sequence[float]) -> Point:
    """Return the median of one value per round, with its interval."""
    low, high = interval([[value] for value in values], statistics.median)
    return Point(x, statistics.median(values), low, high)


def percentile_point(x: float, rounds: Rounds, fraction: float) -> Point:
    """Return a percentile of the values of all rounds, with its interval."""

    def statistic(values: Sequence[float]) -> float:
        return percentile(values, fraction)

    low, high = interval(rounds, statistic)
    return Point(x, statistic([value for each in rounds for value in each]), low, high)
