"""Variants of the same work, in turns: what disturbs the machine for a while disturbs all of them."""

from __future__ import annotations

import gc
import os
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")
MIB, GIGA = 1 << 20, 1e9
OURS = "claimcheck"


@dataclass(frozen=True, slots=True)
class Effort:
    """How long each interleaved run goes on, and with payloads of which sizes.

    Attributes:
        seconds: No new round begins after these, once there are enough.
        least: Rounds in any case.
        most: Rounds at most.
        divisor: Of all sizes.
        warm_up: Rounds before the count begins, after which connections, caches and the server's memory are there.
    """

    seconds: float
    least: int
    most: int
    divisor: int = 1
    warm_up: int = 1

    @property
    def is_quick(self) -> bool:
        return self.divisor > 1

    def size(self, mib: float) -> int:
        """Bytes of a payload that is ``mib`` MiB large in a full run."""
        return int(mib * MIB) // self.divisor


FULL = Effort(seconds=5, least=7, most=400)
QUICK = Effort(seconds=0.05, least=2, most=4, divisor=16)


def turn() -> None:
    """Wait until a round may begin; replaced where another process takes turns with this one."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to do the work: ``run`` is timed; ``clean`` undoes it, gets what it returned, and is not timed."""

    name: str
    run: Callable[[], Any]
    clean: Callable[[Any], object] = lambda result: None


class Sample(NamedTuple):
    """One round of one variant: seconds by the clock, and those of all threads of this process."""

    seconds: float
    cpu: float


class Spread(NamedTuple):
    """Where the rounds lie, the smallest is best; half of them are between ``low`` and ``high``."""

    median: float
    low: float
    high: float
    best: float


@dataclass(frozen=True, slots=True)
class Series:
    """All rounds of one variant; a round moves an amount of what ``counts`` says: ``bytes`` or ``operations``."""

    name: str
    amount: int
    samples: tuple[Sample, ...]
    counts: str = "bytes"

    @property
    def seconds(self) -> Spread:
        taken = [sample.seconds for sample in self.samples]
        low, median, high = statistics.quantiles(taken, n=4, method="inclusive") if len(taken) > 1 else taken * 3
        return Spread(median, low, high, min(taken))

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
        what = {"name": self.name, "amount": self.amount, "counts": self.counts, "rounds": len(self.samples)}
        return {**what, "seconds": self.seconds._asdict(), "rate": self.rate, "cpu_ms": self.cpu_ms}


def interval(values: Sequence[float]) -> tuple[float, float]:
    """A 95 % interval of the median, by bootstrap."""
    rng = random.Random(0)
    medians = [statistics.median(rng.choices(values, k=len(values))) for _ in range(400)]
    low, *_, high = statistics.quantiles(medians, n=40, method="inclusive")
    return low, high


def times_as_fast(ours: Series, base: Series) -> float:
    """The rate of ours over that of the base: the median over the rounds of the ratio within each round.

    What slows down one whole round, another process for example, slows down both sides of its ratio.
    """
    pairs = zip(ours.samples, base.samples, strict=True)
    ratio = statistics.median(their.seconds / our.seconds for our, their in pairs)
    return ratio * ours.amount / base.amount


def compare(effort: Effort, amount: int, *variants: Variant, counts: str = "bytes") -> tuple[Series, ...]:
    """Run all variants in turns and return their series, in the order of the variants."""
    taken: dict[str, list[Sample]] = {variant.name: [] for variant in variants}
    for variant in variants * effort.warm_up:
        _once(variant)
    begin = time.perf_counter()
    for number in range(effort.most):
        if number >= effort.least and time.perf_counter() - begin >= effort.seconds:
            break
        turn()
        for variant in rotated(variants, number):
            taken[variant.name].append(_once(variant))
    return tuple(Series(name, amount, tuple(samples), counts) for name, samples in taken.items())


def rotated(items: Sequence[T], number: int) -> list[T]:
    """All of them, another one first each time."""
    first = number % max(1, len(items))
    return [*items[first:], *items[:first]]


def _once(variant: Variant) -> Sample:
    """Time one run; what is frozen is not looked through by the garbage collector each time."""
    gc.collect()
    gc.freeze()
    cpu, begin = time.process_time(), time.perf_counter()
    result = variant.run()
    seconds, spent = time.perf_counter() - begin, time.process_time() - cpu
    variant.clean(result)
    return Sample(seconds, spent)


def payload_of(size: int) -> bytes:
    """Make bytes that do not compress and lie in memory."""
    block = os.urandom(min(size, MIB))
    return (block * (size // max(1, len(block)) + 1))[:size]


def size_text(size: int) -> str:
    return f"{size // MIB} MiB" if size >= MIB else f"{size // 1024} KiB"


def writing(store: Any, payload: bytes, name: str = OURS) -> Variant:
    return Variant(name, lambda: store.write(payload), store.rollback)


def reading(store: Any, pointer: Any, name: str = OURS) -> Variant:
    return Variant(name, lambda: store.read(pointer))
