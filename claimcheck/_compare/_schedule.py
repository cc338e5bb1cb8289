"""The experiments in their order, and how long they take."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from claimcheck._compare._model import CompareError, Experiment

if TYPE_CHECKING:
    from claimcheck._compare._lab import Lab

__all__ = ["NAMES", "Plan", "Schedule", "selected"]


@dataclass(frozen=True, slots=True)
class Plan:
    """One experiment.

    Attributes:
        name: Of its result.
        module: Its function ``run`` is the experiment.
        local_seconds: About how long it takes on the embedded broker.
        seconds: On other brokers.
    """

    name: str
    module: str
    local_seconds: float
    seconds: float

    def load(self) -> Callable[[Lab], Experiment]:
        """Return the function; imports the module now."""
        run: Callable[[Lab], Experiment] = importlib.import_module(f"claimcheck._compare.{self.module}").run
        return run

    def expected(self, kind: str) -> float:
        """Return about how long it takes on a kind of broker."""
        return self.local_seconds if kind == "local" else self.seconds


_PLANS = (
    Plan("services", "_services", 5, 20),
    Plan("partition", "_partition_bytes", 5, 20),
    Plan("expiry", "_expiry", 10, 30),
    Plan("seek", "_seek", 3, 15),
    Plan("memory", "_memory", 12, 25),
    Plan("partitions", "_partitions", 3, 10),
    Plan("rebalance", "_rebalance", 15, 30),
    Plan("rollback", "_rollback", 8, 20),
    Plan("speed", "_speed", 45, 90),
)

NAMES = tuple(plan.name for plan in _PLANS)
"""The names of all experiments, in their order; ``cost`` is computed from them."""


def selected(only: Sequence[str] | None) -> tuple[Plan, ...]:
    """Return the experiments to run.

    Args:
        only: Names; ``None`` for all.

    Raises:
        CompareError: There is no such experiment, or none is named.
    """
    if only is not None and not only:
        raise CompareError(f"no experiment is named; choose from {', '.join(NAMES)}")
    unknown = [name for name in only or () if name not in NAMES]
    if unknown:
        raise CompareError(f"there is no experiment {unknown[0]!r}; choose from {', '.join(NAMES)}")
    return tuple(plan for plan in _PLANS if only is None or plan.name in only)


class Schedule:
    """Estimates the rest of a run from what the finished experiments took.

    Args:
        plans: What runs.
        kind: Of the broker.
        clock: Monotonic seconds.
    """

    def __init__(self, plans: Sequence[Plan], kind: str, clock: Callable[[], float]) -> None:
        self._plans = tuple(plans)
        self._kind = kind
        self._clock = clock
        self._taken: dict[str, float] = {}
        self._begin = clock()

    @property
    def started(self) -> float:
        """When the current experiment began."""
        return self._begin

    def begin(self) -> None:
        """Start the clock of the next experiment."""
        self._begin = self._clock()

    def end(self, plan: Plan) -> float:
        """Return how long an experiment took."""
        self._taken[plan.name] = self._clock() - self._begin
        return self._taken[plan.name]

    def seconds_left(self, current: Plan) -> float:
        """Return about how long the run still takes, while ``current`` runs."""
        finished = [plan for plan in self._plans if plan.name in self._taken]
        expected = sum(plan.expected(self._kind) for plan in finished)
        pace = sum(self._taken.values()) / expected if expected else 1.0
        waiting = [plan for plan in self._plans if plan.name not in self._taken and plan is not current]
        rest = pace * sum(plan.expected(self._kind) for plan in waiting)
        return rest + max(0.0, pace * current.expected(self._kind) - (self._clock() - self._begin))
