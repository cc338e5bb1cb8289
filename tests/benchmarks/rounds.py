"""Variants of the same work, in turns: what disturbs the machine for a while disturbs all of them."""

from __future__ import annotations

import gc
import itertools
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tests.benchmarks.series import Sample, Series

MIB = 1 << 20
OURS = "claimcheck"


@dataclass(frozen=True, slots=True)
class Effort:
    """How long each interleaved run goes on, and with payloads of which sizes.

    Attributes:
        seconds: No new round begins after these, once there are enough.
        least: Rounds in any case.
        most: Rounds at most.
        divisor: Of all sizes.
        warm_up: Rounds before the count begins: connections, caches and the server's memory are there then, and a
            server in Java has compiled what it needs.
    """

    seconds: float
    least: int
    most: int
    divisor: int = 1
    warm_up: int = 1

    def size(self, mib: float) -> int:
        """Bytes of a payload that is ``mib`` MiB large in a full run."""
        return int(mib * MIB) // self.divisor

    def enough(self, rounds: int, seconds: float) -> bool:
        """Whether so many rounds in so much time will do."""
        return rounds >= self.most or (rounds >= self.least and seconds >= self.seconds)


FULL = Effort(seconds=5, least=7, most=400)
QUICK = Effort(seconds=0.05, least=2, most=4, divisor=16)


def turn() -> None:
    """Wait until a round may begin; replaced where another process takes turns with this one."""


def _nothing(result: Any) -> None:
    """Leave no trace: there is none."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to do the work.

    Attributes:
        name: As it is printed.
        run: The work; this is timed.
        clean: Undoes it; gets what the work returned, and is not timed.
    """

    name: str
    run: Callable[[], Any]
    clean: Callable[[Any], object] = _nothing


def compare(effort: Effort, amount: int, *variants: Variant, counts: str = "bytes") -> tuple[Series, ...]:
    """Run all variants in turns and return their series, in the order of the variants."""
    taken: dict[str, list[Sample]] = {variant.name: [] for variant in variants}
    for variant in variants * effort.warm_up:
        _once(variant)
    begin = time.perf_counter()
    for number in itertools.count():
        if effort.enough(number, time.perf_counter() - begin):
            break
        turn()
        for variant in _rotated(variants, number):
            taken[variant.name].append(_once(variant))
    return tuple(Series(name, amount, tuple(samples), counts) for name, samples in taken.items())


def _rotated(variants: Sequence[Variant], number: int) -> Sequence[Variant]:
    first = number % len(variants)
    return [*variants[first:], *variants[:first]]


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
    """Write a size as people do."""
    return f"{size // MIB} MiB" if size >= MIB else f"{size // 1024} KiB"


def writing(store: Any, payload: bytes, name: str = OURS) -> Variant:
    """Write a payload to a store."""
    return Variant(name, lambda: store.write(payload), store.rollback)


def reading(store: Any, pointer: Any, name: str = OURS) -> Variant:
    """Read a payload from a store."""
    return Variant(name, lambda: store.read(pointer))
