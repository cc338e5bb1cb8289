"""A producer or a consumer in a process of its own: `Worker` is the measurement's side, `serve` the process."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, Literal

from claimcheck._client import ClaimCheck
from claimcheck._send.decorator import OutboundBlock
from claimcheck._send.outbound import Outbound
from claimcheck._wire.envelope import Envelope
from claimcheck.config import Config
from tests.benchmarks.children import Child, ChildError, error_text, reset_peak, status
from tests.benchmarks.compare.broker import Broker, BrokerAddress, Mode, Producer, connect, make, number_of

_WAIT_SECONDS = 300.0
_IDLE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """What a worker is started with; ``config`` has the strategy of ``mode``."""

    role: Literal["producer", "consumer"]
    mode: Mode
    topic: str
    address: BrokerAddress = field(repr=False)
    config: Config = field(repr=False)


@dataclass(frozen=True, slots=True)
class Report:
    """What a worker did for one command."""

    count: int  # payloads that were sent or received
    size: int  # of all of them
    seconds: float  # from the command to the last acknowledgement or payload
    peak_bytes: int  # of memory beyond what was there before, as payloads to send were; 0 if it was not measured
    latencies: tuple[float, ...] = field(default=(), repr=False)  # of each payload that was received
    errors: tuple[str, ...] = ()  # of sends, and of payloads that did not arrive whole and once
    begin: int | str = 0  # where the first payload was received


class Worker(Child):
    """A worker process, which answers commands in order: the methods of `_Sending` or of `_Receiving`."""

    def __init__(self, spec: WorkerSpec) -> None:
        super().__init__(serve, spec)
        self.spec = spec

    def start(self, command: str, **arguments: object) -> None:
        """Send a command, whose report comes later."""
        self.send((command, arguments))

    def report(self) -> Any:
        """Wait for the oldest report that is to come; the first one is that the client is connected."""
        try:
            return self.answer(_WAIT_SECONDS)
        except ChildError as error:
            raise type(error)(f"a {self.spec.role} of mode {self.spec.mode}: {error}") from error

    def call(self, command: str, **arguments: object) -> Report:
        """Send a command, and wait for its report."""
        self.start(command, **arguments)
        report: Report = self.report()
        return report


# The process ----------------------------------------------------------------------------------------------------


def serve(pipe: Connection, spec: WorkerSpec) -> None:
    """Work until the parent closes the pipe."""
    with open(os.devnull, "w") as nothing:
        for descriptor in (1, 2):  # whatever a client prints
            os.dup2(nothing.fileno(), descriptor)
    with (
        ClaimCheck(spec.config) as cc,
        contextlib.closing(connect(spec.address)) as broker,
        contextlib.closing((_Sending if spec.role == "producer" else _Receiving)(spec, broker, cc)) as role,
    ):
        pipe.send(None)
        while True:
            command, arguments = pipe.recv()
            pipe.send(getattr(role, command)(**arguments))


class _Sending:
    """The commands of a producer."""

    def __init__(self, spec: WorkerSpec, broker: Broker, cc: ClaimCheck) -> None:
        self._config = spec.config
        self._new = partial(broker.producer, spec.mode, spec.topic)
        self._producer: Producer = self._new(cc)
        self.close = self._producer.close

    def produce(
        self, *, size: int, first: int, count: int = 1, interleaved: bool = False, peak: bool = False
    ) -> Report:
        """Send payloads and wait until all are acknowledged; interleaved ones have a producer each."""
        numbers = range(first, first + count)
        batches = [_Batch(size, [number]) for number in numbers] if interleaved else [_Batch(size, numbers)]
        with _Meter(peak=peak) as meter:
            if interleaved:
                self._interleave(batches)
            else:
                batches[0].send(self._producer)
        return meter.report(count, size * count, errors=tuple(error for batch in batches for error in batch.errors))

    def _interleave(self, batches: list[_Batch]) -> None:
        """Send each batch with a producer of its own; each waits for the others after each message."""
        turn = threading.Barrier(len(batches))
        with _TurnTaking(self._config, turn) as cc, contextlib.ExitStack() as stack:
            producers = [stack.enter_context(contextlib.closing(self._new(cc))) for _ in batches]
            threads = [
                threading.Thread(target=batch.send_and_leave, args=(producer, turn))
                for batch, producer in zip(batches, producers, strict=True)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()


class _Batch:
    """Payloads that exist before the clock starts, and the errors of sending them."""

    def __init__(self, size: int, numbers: Sequence[int]) -> None:
        self._payloads = [make(size, number) for number in numbers]
        self.errors: list[str] = []

    def send(self, producer: Producer) -> None:
        for payload in self._payloads:
            producer.send(payload, done=self._done)
        producer.flush(_WAIT_SECONDS)

    def send_and_leave(self, producer: Producer, turn: threading.Barrier) -> None:
        try:
            self.send(producer)
        except Exception as error:
            self.errors.append(error_text(error))
        finally:
            turn.abort()

    def _done(self, error: Exception | None) -> None:
        if error is not None:
            self.errors.append(error_text(error))


class _TurnTaking(ClaimCheck):
    """Waits for the other producers after each message."""

    def __init__(self, config: Config, turn: threading.Barrier) -> None:
        super().__init__(config)
        self._turn = turn

    def outbound(self, payload: Any, **options: Any) -> OutboundBlock:
        """Return a block whose messages come in turns."""
        block = super().outbound(payload, **options)
        enter = block._entered

        def entered(out: Outbound) -> Outbound:
            out = enter(out)
            out._messages = self._in_turns(out._messages)
            return out

        block._entered = entered  # type: ignore[method-assign]
        return block

    def _in_turns(self, messages: Iterable[Envelope]) -> Iterator[Envelope]:
        for message in messages:
            yield message
            with contextlib.suppress(threading.BrokenBarrierError):  # another producer has failed or finished
                self._turn.wait(_WAIT_SECONDS)


class _Receiving:
    """The commands of a consumer."""

    def __init__(self, spec: WorkerSpec, broker: Broker, cc: ClaimCheck) -> None:
        self._consumer = broker.consumer(spec.mode, spec.topic, cc, group=spec.topic)
        self.close = self._consumer.close

    def receive(self, *, count: int, again: bool = False, peak: bool = False) -> Report:
        """Receive payloads; verifies and acknowledges each, unless they are received again to measure only that."""
        latencies, errors, numbers, total = list[float](), list[str](), list[int | None](), 0
        first: int | str = 0
        with _Meter(peak=peak) as meter:
            while len(latencies) < count:
                begin = time.perf_counter()
                received = self._consumer.receive(_IDLE_SECONDS)
                if received is None:
                    errors.append(f"{len(latencies)} of {count} arrived")
                    break
                first = received.position if not latencies else first
                latencies.append(time.perf_counter() - begin)
                total += len(received.payload or b"")
                if received.error is not None:
                    errors.append(error_text(received.error))
                if not again:
                    numbers.append(number_of(received.payload))
                    self._consumer.commit(received)
                del received  # else one payload more is in memory while the next one is received
        if None in numbers or len({*numbers}) < len(numbers):
            errors.append("damaged, or received twice")
        return meter.report(len(latencies), total, latencies=tuple(latencies), errors=tuple(errors), begin=first)

    def seek(self, *, position: int | str) -> Report:
        """Move to a position."""
        with _Meter() as meter:
            self._consumer.seek(position)
        return meter.report(0, 0)


class _Meter:
    """Measures a block: time, and the peak of resident memory beyond its beginning.

    Args:
        peak: Whether to measure memory. The block is slower then: memory that was freed before returns to the system,
            so that using it again is seen, and has to be requested again.
    """

    def __init__(self, *, peak: bool = False) -> None:
        self._peak = peak

    def __enter__(self) -> _Meter:
        gc.collect()
        self._before = reset_peak() if self._peak else 0
        self._begin = time.perf_counter()
        return self

    def __exit__(self, *exc: object) -> None:
        seconds = time.perf_counter() - self._begin
        self._taken = seconds, max(0, status("VmHWM") - self._before) if self._peak else 0

    def report(self, count: int, size: int, **more: Any) -> Report:
        """Return what the block took for so many payloads."""
        return Report(count, size, *self._taken, **more)
