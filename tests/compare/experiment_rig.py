"""An embedded broker whose producers and consumers can be replaced by faulty ones, for tests of the experiments."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.benchmarks.compare.broker import Broker, Received
from tests.benchmarks.compare.lab import Lab
from tests.benchmarks.compare.model import Experiment, Mode
from tests.compare.rig import MIB, embedded, lab_on

IDLE_SECONDS = 1000.0


class IdleClock:
    """A clock by which time passes when a consumer receives nothing, and a little with each look."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.05
        return self.now


class Proxy:
    """Passes everything on. Tests override what is to be faulty."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class IdlingConsumer(Proxy):
    """Moves a clock on when nothing arrives."""

    clock: IdleClock

    def receive(self, timeout: float) -> Any:
        received = self.inner.receive(min(timeout, 0.05))
        if received is None:
            self.clock.now += IDLE_SECONDS
        return received


class FaultyBroker(Proxy):
    """The embedded broker with wrapped clients in the modes of ``faulty``."""

    def __init__(
        self,
        inner: Broker,
        clock: IdleClock | None,
        *,
        producer: Callable[[Any], Any] = lambda producer: producer,
        consumer: Callable[[Any], Any] = lambda consumer: consumer,
        faulty: tuple[Mode, ...] = ("chunking",),
    ) -> None:
        super().__init__(inner)
        self.clock = clock
        self.wrappers = producer, consumer
        self.faulty = faulty

    def producer(self, mode: Mode, *args: Any, **options: Any) -> Any:
        producer = self.inner.producer(mode, *args, **options)
        return self.wrappers[0](producer) if mode in self.faulty else producer

    def consumer(self, mode: Mode, *args: Any, **options: Any) -> Any:
        consumer = self.inner.consumer(mode, *args, **options)
        consumer = self.wrappers[1](consumer) if mode in self.faulty else consumer
        if self.clock is None:
            return consumer
        idling = IdlingConsumer(consumer)
        idling.clock = self.clock
        return idling


@contextlib.contextmanager
def lab(folder: Path, *modes: Mode, real_time: bool = False, **faults: Any) -> Iterator[Any]:
    """Open a lab on the embedded broker for some modes; with ``real_time``, clock and consumers are normal."""

    class SmallLab(Lab):
        @property
        def modes(self) -> tuple[Mode, ...]:
            return modes

    clock = None if real_time else IdleClock()
    broker = FaultyBroker(embedded(folder), clock, **faults)
    more = {} if clock is None else {"clock": clock}
    with lab_on(broker, folder, kind=SmallLab, sizes=(MIB,), quick=True, **more) as made:  # type: ignore[arg-type]
        yield made
        assert broker.topics("") == [], "an experiment deletes its topics"


def swapped(received: Received, payload: bytes) -> Received:
    """Return the message with other bytes."""
    return replace(received, payload=payload, error=None)


def facts(result: Experiment) -> dict[str, float]:
    """Return the numbers of a result."""
    assert result.facts is not None
    return result.facts
