"""A producer or a consumer in a process of its own: `Worker` is the experiment's side, `serve` the process.

A consumer also reports each payload as it arrives, so that the parent knows what was delivered before the process was
killed.
"""

from __future__ import annotations

import contextlib
import gc
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from typing import Literal

from claimcheck._client import ClaimCheck
from claimcheck.config import Config
from tests.benchmarks.children import Child, ChildError, error_text, reset_peak, status
from tests.benchmarks.compare.broker import (
    Broker,
    BrokerAddress,
    Consumer,
    Delivery,
    Producer,
    connect,
    make,
    recognized,
)
from tests.benchmarks.compare.faults import KillPoint, WatchedClaimCheck
from tests.benchmarks.compare.model import Mode

Role = Literal["producer", "consumer"]

_FLUSH_SECONDS = 120.0
_KILL_SECONDS = 0.5
_START_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """What a worker is started with; ``config`` has the strategy of ``mode``."""

    role: Role
    mode: Mode
    topic: str
    address: BrokerAddress = field(repr=False)
    config: Config = field(repr=False)
    group: str = "compare"
    kill_after: int | None = None
    """The worker kills itself when the wrapper has got this many messages: chunks and envelopes from the broker, or for
    it; the latter are flushed before."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a worker did for one command."""

    count: int  # payloads that were sent or received
    size: int  # of all of them
    seconds: float  # from the command to the last acknowledgement or payload
    cpu_seconds: float  # of all threads of the process
    peak_bytes: int  # of memory beyond what was there before, as payloads to send were; 0 if it was not measured
    latencies: tuple[float, ...] = field(default=(), repr=False)  # of each payload, to its acknowledgement or return
    errors: tuple[str, ...] = ()  # of sends


class Worker(Child):
    """A worker process, which answers commands in order: the methods of `_Sending` or of `_Receiving`."""

    def __init__(self, spec: WorkerSpec) -> None:
        super().__init__(serve, spec)
        self.spec = spec
        self.delivered: list[Delivery] = []
        """What a consumer received so far, also if it was killed since; not for commands with ``verify=False``."""

    def ready(self) -> Worker:
        """Wait until the client is connected and, in a group, has joined."""
        self.report(_START_SECONDS)
        return self

    def call(self, command: str, *, timeout: float = 120.0, **arguments: object) -> Report:
        """Send a command, and wait for its report."""
        self.send((command, arguments))
        return self.report(timeout)

    def report(self, timeout: float) -> Report:
        """Wait for the report of the oldest command that has none yet; each payload may take this long."""
        try:
            while isinstance(answer := self.answer(timeout), Delivery):
                self.delivered.append(answer)
        except ChildError as error:
            raise type(error)(f"a {self.spec.role} of mode {self.spec.mode}: {error}") from error
        report: Report = answer
        return report


# The process ----------------------------------------------------------------------------------------------------


def serve(pipe: Connection, spec: WorkerSpec) -> None:
    """Work until the parent closes the pipe."""
    with open(os.devnull, "w") as nothing:
        for descriptor in (1, 2):  # whatever a client prints
            os.dup2(nothing.fileno(), descriptor)
    with contextlib.ExitStack() as stack:
        role = _opened(spec, stack, pipe)
        pipe.send(None)
        while True:
            command, arguments = pipe.recv()
            pipe.send(getattr(role, command)(**arguments))


def _opened(spec: WorkerSpec, stack: contextlib.ExitStack, pipe: Connection) -> _Sending | _Receiving:
    point = None if spec.kill_after is None else KillPoint(spec.kill_after)
    cc = WatchedClaimCheck(spec.config, before=point.check, after=point.passed) if point else ClaimCheck(spec.config)
    stack.enter_context(cc)
    broker = stack.enter_context(contextlib.closing(connect(spec.address)))
    if spec.role == "consumer":
        return stack.enter_context(contextlib.closing(_Receiving(spec, broker, cc, pipe)))
    sending = stack.enter_context(contextlib.closing(_Sending(spec, broker, cc)))
    if point:
        point.flush = sending.flush_messages
    return sending


class _Sending:
    """The commands of a producer."""

    def __init__(self, spec: WorkerSpec, broker: Broker, cc: ClaimCheck) -> None:
        self._spec, self._broker = spec, broker
        self._producer = self._new(cc)
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
        latencies = [seconds for batch in batches for seconds in batch.latencies]
        return meter.report(latencies, size * count, tuple(error for batch in batches for error in batch.errors))

    def flush_messages(self) -> None:
        """Wait until the messages so far are acknowledged; some producers wait for their payload, which never ends."""
        with contextlib.suppress(TimeoutError):
            self._producer.flush(_KILL_SECONDS)

    def _interleave(self, batches: list[_Batch]) -> None:
        """Send each batch with a producer of its own; each waits for the others after each message."""
        turn = threading.Barrier(len(batches))
        with WatchedClaimCheck(self._spec.config, after=partial(_wait, turn)) as cc, contextlib.ExitStack() as stack:
            producers = [stack.enter_context(contextlib.closing(self._new(cc))) for _ in batches]
            threads = [
                threading.Thread(target=batch.send_and_leave, args=(producer, turn))
                for batch, producer in zip(batches, producers, strict=True)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    def _new(self, cc: ClaimCheck) -> Producer:
        return self._broker.producer(self._spec.mode, self._spec.topic, cc)


def _wait(turn: threading.Barrier) -> None:
    with contextlib.suppress(threading.BrokenBarrierError):  # another producer has failed or finished
        turn.wait(_FLUSH_SECONDS)


class _Batch:
    """Payloads that exist before the clock starts, and what became of them."""

    def __init__(self, size: int, numbers: Sequence[int]) -> None:
        self._payloads = [make(size, number) for number in numbers]
        self._begins = [0.0] * len(numbers)
        self.latencies = [0.0] * len(numbers)
        self.errors: list[str] = []

    def send(self, producer: Producer) -> None:
        for i, payload in enumerate(self._payloads):
            self._begins[i] = time.perf_counter()
            producer.send(payload, done=partial(self._done, i))
        producer.flush(_FLUSH_SECONDS)

    def send_and_leave(self, producer: Producer, turn: threading.Barrier) -> None:
        try:
            self.send(producer)
        except Exception as error:
            self.errors.append(error_text(error))
        finally:
            turn.abort()

    def _done(self, i: int, error: Exception | None, partition: int | None) -> None:
        self.latencies[i] = time.perf_counter() - self._begins[i]
        if error is not None:
            self.errors.append(error_text(error))


class _Receiving:
    """The commands of a consumer."""

    def __init__(self, spec: WorkerSpec, broker: Broker, cc: ClaimCheck, pipe: Connection) -> None:
        self._consumer: Consumer = broker.consumer(spec.mode, spec.topic, cc, group=spec.group)
        self._pipe = pipe
        self.close = self._consumer.close

    def receive(
        self,
        *,
        count: int,
        idle: float = 10.0,
        commit: Literal["each", "last", "none"] = "each",
        verify: bool = True,
        peak: bool = False,
    ) -> Report:
        """Receive payloads, each of which is reported if it is to be verified."""
        latencies: list[float] = []
        total = 0
        with _Meter(peak=peak) as meter:
            while len(latencies) < count:
                begin = time.perf_counter()
                received = self._consumer.receive(idle)
                if received is None:
                    break
                latencies.append(time.perf_counter() - begin)
                total += len(received.payload or b"")
                if verify:
                    self._pipe.send(recognized(received))
                if commit == "each" or (commit == "last" and len(latencies) == count):
                    self._consumer.commit(received)
                del received  # else one payload more is in memory while the next one is received
        return meter.report(latencies, total)

    def seek(self, *, partition: int, position: int | str) -> Report:
        """Move to a position."""
        with _Meter() as meter:
            self._consumer.seek(partition, position)
        return meter.report([], 0)


class _Meter:
    """Measures a block: time, processor time of all threads, and the peak of resident memory beyond its beginning.

    Args:
        peak: Whether to measure memory. The block is slower then: memory that was freed before returns to the system,
            so that using it again is seen, and has to be requested again.
    """

    def __init__(self, *, peak: bool = False) -> None:
        self._peak = peak

    def __enter__(self) -> _Meter:
        gc.collect()
        self._before = reset_peak() if self._peak else 0
        self._cpu, self._begin = time.process_time(), time.perf_counter()
        return self

    def __exit__(self, *exc: object) -> None:
        seconds, cpu = time.perf_counter() - self._begin, time.process_time() - self._cpu
        self._taken = seconds, cpu, max(0, status("VmHWM") - self._before) if self._peak else 0

    def report(self, latencies: Sequence[float], size: int, errors: tuple[str, ...] = ()) -> Report:
        """Return what the block took for so many payloads."""
        return Report(len(latencies), size, *self._taken, tuple(latencies), errors)
