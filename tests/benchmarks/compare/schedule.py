"""The experiments in their order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.benchmarks.compare import (
    expiry,
    memory,
    partition_bytes,
    partitions,
    rebalance,
    rollback,
    seek,
    services,
    speed,
)
from tests.benchmarks.compare.lab import Lab
from tests.benchmarks.compare.model import CompareError, Experiment


@dataclass(frozen=True, slots=True)
class Plan:
    """One experiment by the name of its result."""

    name: str
    run: Callable[[Lab], Experiment]


PLANS = (
    Plan("services", services.run),
    Plan("partition", partition_bytes.run),
    Plan("expiry", expiry.run),
    Plan("seek", seek.run),
    Plan("memory", memory.run),
    Plan("partitions", partitions.run),
    Plan("rebalance", rebalance.run),
    Plan("rollback", rollback.run),
    Plan("speed", speed.run),
)
"""All experiments; ``cost`` is computed from them."""


def selected(only: Sequence[str] | None) -> tuple[Plan, ...]:
    """Return the experiments to run."""
    names = [plan.name for plan in PLANS]
    if only is not None and not only:
        raise CompareError(f"no experiment is named; choose from {', '.join(names)}")
    unknown = [name for name in only or () if name not in names]
    if unknown:
        raise CompareError(f"there is no experiment {unknown[0]!r}; choose from {', '.join(names)}")
    return tuple(plan for plan in PLANS if only is None or plan.name in only)
