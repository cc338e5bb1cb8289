"""A producer or a consumer in a process of its own: `Worker` is the experiment's side, `serve` the process.

A consumer also reports each payload as it arrives, so that the parent knows what was delivered before the process was
killed. The process ends when the parent closes the pipe, or ends.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, Literal

from claimcheck._client import ClaimCheck
from claimcheck.config import Config
from tests.benchmarks.children import reset_peak, status
from tests.benchmarks.compare.broker import Broker, BrokerAddress, Consumer, Producer, Received, connect
from tests.benchmarks.compare.faults import KillPoint, WatchedClaimCheck
from tests.benchmarks.compare.model import CompareError, Mode
from tests.benchmarks.compare.payloads import make, number_of, verify

Role = Literal["producer", "consumer"]
Commit = Literal["each", "last", "none"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_FLUSH_SECONDS = 120.0
_KILL_SECONDS = 0.5
_STEP_SECONDS = 1.0
_START_SECONDS = 60.0
_STOP_SECONDS = 10.0


class WorkerDiedError(CompareError):
    """The worker's process ended before it answered; `Worker.delivered` has what it reported until then."""


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """What a worker is started with. It is passed through a pipe, never on a command line.

    Attributes:
        role: What it is.
        mode: How payloads travel.
        topic: An existing topic.
        address: The broker.
        config: With the strategy of ``mode``.
        group: Of a consumer.
        max_message_bytes: The raised limit of ``native``.
        session_seconds: See `Broker.consumer`.
        kill_after: The worker kills itself (SIGKILL) when the wrapper has got this many messages: chunks and envelopes
            from the broker, or for it; the latter are flushed before.
    """

    role: Role
    mode: Mode
    topic: str
    address: BrokerAddress = field(repr=False)
    config: Config = field(repr=False)
    group: str = ""
    max_message_bytes: int | None = None
    session_seconds: float | None = None
    kill_after: int | None = None


@dataclass(frozen=True, slots=True)
class Delivered:
    """One payload that a consumer received, or an error in its place; the position is that of its first message."""

    number: int | None
    correct: bool
    partition: int
    position: int | str
    error: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """What a worker did for one command.

    Attributes:
        count: Payloads that were sent or received.
        size: Their bytes.
        seconds: From the command to the last acknowledgement or payload.
        cpu_seconds: Of all threads of the process.
        peak_bytes: The most memory beyond what was resident before the command, if that was measured, else 0. Payloads
            to send count as before.
        latencies: Seconds for each payload: from `send` to its acknowledgement, or of `receive`.
        errors: Of sends: names and texts.
    """

    count: int
    size: int
    seconds: float
    cpu_seconds: float
    peak_bytes: int
    latencies: tuple[float, ...] = field(default=(), repr=False)
    errors: tuple[str, ...] = ()


@contextlib.contextmanager
def _signals_later() -> Iterator[None]:
    """Handle signals that end a run after the block: a process that is started by half would print a traceback."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    noted: list[int] = []
    before = {each: signal.signal(each, lambda number, _: noted.append(number)) for each in _SIGNALS}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
        for number in noted[:1]:
            signal.raise_signal(number)


class Worker:
    """A worker process. Commands are answered in order; `start` sends one without waiting for its answer."""

    def __init__(self, spec: WorkerSpec, *, ended: Callable[[Worker], None] = lambda worker: None) -> None:
        self.spec = spec
        self.delivered: list[Delivered] = []
        """What a consumer received so far, also if it was killed since; not for commands with ``verify=False``."""
        self._ended = ended
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=serve, args=(other, spec), daemon=True)
        with _signals_later():
            self._process.start()
        other.close()

    def ready(self, timeout: float = _START_SECONDS) -> Worker:
        """Wait until the client is connected and, in a group, has joined."""
        self._answer(timeout)
        return self

    def send(
        self,
        size: int,
        first: int,
        count: int,
        *,
        one_by_one: bool = False,
        interleaved: bool = False,
        peak: bool = False,
        timeout: float = 120.0,
    ) -> Report:
        """Send payloads and wait until all are acknowledged."""
        options = {"one_by_one": one_by_one, "interleaved": interleaved, "peak": peak}
        self.start("send", size=size, first=first, count=count, **options)
        return self.report(timeout)

    def receive(
        self, count: int, *, timeout: float = 60.0, idle: float = 10.0, commit: Commit = "each", verify: bool = True
    ) -> Report:
        """Receive payloads, which are added to `delivered`."""
        self.start("receive", count=count, idle=idle, commit=commit, verify=verify)
        return self.report(timeout)

    def seek(self, partition: int, position: int | str, *, timeout: float = 30.0) -> Report:
        """Move a consumer to a position."""
        self.start("seek", partition=partition, position=position)
        return self.report(timeout)

    def start(self, command: str, **arguments: object) -> None:
        """Send a command without waiting for its report."""
        try:
            self._pipe.send((command, arguments))
        except OSError as error:
            raise self._died() from error

    def report(self, timeout: float) -> Report:
        """Wait for the report of the oldest command that has none yet."""
        answer: Report = self._answer(timeout)
        return answer

    def wait(self, timeout: float) -> int | None:
        """Wait until the process has ended by itself; return its exit status, negative for a signal."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise CompareError(f"a {self.spec.role} did not end within {timeout:.0f} s")
        self.kill()
        return self._process.exitcode

    def kill(self) -> None:
        """Kill the process (SIGKILL) and wait until it has ended; harmless if it has."""
        self._process.kill()
        self.close()

    def close(self) -> None:
        """Close the client, which leaves its group, and end the process; killed if that takes too long."""
        self._pipe.close()
        self._process.join(_STOP_SECONDS)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._ended(self)

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _answer(self, timeout: float) -> Any:
        """Return the next answer that is not a payload; each may take this long."""
        while True:
            try:
                if not self._pipe.poll(timeout):
                    self.kill()
                    text = f"a {self.spec.role} of mode {self.spec.mode} did not answer within {timeout:.0f} s"
                    raise CompareError(text)
                answer = self._pipe.recv()
            except (EOFError, OSError) as error:
                raise self._died() from error
            if isinstance(answer, str):
                raise CompareError(answer)
            if not isinstance(answer, Delivered):
                return answer
            self.delivered.append(answer)

    def _died(self) -> WorkerDiedError:
        self._process.join(_STOP_SECONDS)
        who = f"a {self.spec.role} of mode {self.spec.mode}"
        return WorkerDiedError(f"{who} ended with status {self._process.exitcode}")


# The process ----------------------------------------------------------------------------------------------------


def serve(pipe: Connection, spec: WorkerSpec) -> None:
    """Work until the parent closes the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, too, which closes this process
    with open(os.devnull, "w") as nothing:
        for descriptor in (1, 2):  # whatever a client prints
            os.dup2(nothing.fileno(), descriptor)
    try:
        with contextlib.ExitStack() as stack:
            role = _opened(spec, stack, pipe)
            pipe.send(None)
            while True:
                command, arguments = pipe.recv()
                pipe.send(getattr(role, command)(**arguments))
    except EOFError:
        pass
    except Exception as error:
        with contextlib.suppress(OSError):
            pipe.send(_text(error))


def _opened(spec: WorkerSpec, stack: contextlib.ExitStack, pipe: Connection) -> _Sending | _Receiving:
    point = KillPoint(spec.kill_after)
    watched = spec.kill_after is not None
    cc = WatchedClaimCheck.of(spec.config, point.check, point.passed) if watched else ClaimCheck(spec.config)
    stack.enter_context(cc)
    broker = stack.enter_context(contextlib.closing(connect(spec.address)))
    made = _Sending(spec, broker, cc, point) if spec.role == "producer" else _Receiving(spec, broker, cc, pipe)
    return stack.enter_context(contextlib.closing(made))


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


# The two roles -------------------------------------------------------------------------------------------------


class _Sending:
    """The commands of a producer."""

    def __init__(self, spec: WorkerSpec, broker: Broker, cc: ClaimCheck, point: KillPoint) -> None:
        self._spec, self._broker = spec, broker
        self._producer = self._new(cc)
        point.flush = self._flush_messages

    def send(self, *, size: int, first: int, count: int, one_by_one: bool, interleaved: bool, peak: bool) -> Report:
        numbers, meter = range(first, first + count), _Meter(peak=peak)
        if interleaved:
            return self._send_interleaved([_Batch(size, [number]) for number in numbers], meter)
        batch = _Batch(size, numbers)
        with meter:
            batch.send(self._producer, one_by_one=one_by_one)
        return _sent_report([batch], meter)

    def _flush_messages(self) -> None:
        """Wait until the messages so far are acknowledged; some producers wait for their payload, which never ends."""
        with contextlib.suppress(TimeoutError):
            self._producer.flush(_KILL_SECONDS)

    def _send_interleaved(self, batches: list[_Batch], meter: _Meter) -> Report:
        """Send each batch with a producer of its own; each waits for the others after each message."""
        turn = threading.Barrier(len(batches))
        with contextlib.ExitStack() as stack, meter:
            cc = stack.enter_context(WatchedClaimCheck.of(self._spec.config, lambda: None, partial(_wait, turn)))
            producers = [stack.enter_context(contextlib.closing(self._new(cc))) for _ in batches]
            threads = [
                threading.Thread(target=batch.send_and_leave, args=(producer, turn))
                for batch, producer in zip(batches, producers, strict=True)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        return _sent_report(batches, meter)

    def _new(self, cc: ClaimCheck) -> Producer:
        spec = self._spec
        return self._broker.producer(spec.mode, spec.topic, cc, max_message_bytes=spec.max_message_bytes)

    def close(self) -> None:
        self._producer.close()


def _wait(turn: threading.Barrier) -> None:
    with contextlib.suppress(threading.BrokenBarrierError):  # another producer has failed or finished
        turn.wait(_FLUSH_SECONDS)


def _sent_report(batches: Sequence[_Batch], meter: _Meter) -> Report:
    latencies = [seconds for batch in batches for seconds in batch.latencies]
    errors = tuple(error for batch in batches for error in batch.errors)
    return meter.report(latencies, sum(batch.size for batch in batches), errors)


class _Batch:
    """Payloads that exist before the clock starts, and what became of them."""

    def __init__(self, size: int, numbers: Sequence[int]) -> None:
        self.size = size * len(numbers)
        self._payloads = [make(size, number) for number in numbers]
        self._begins = [0.0] * len(numbers)
        self.latencies = [0.0] * len(numbers)
        self.errors: list[str] = []

    def send(self, producer: Producer, *, one_by_one: bool) -> None:
        for i, payload in enumerate(self._payloads):
            self._begins[i] = time.perf_counter()
            producer.send(payload, done=partial(self._done, i))
            if one_by_one:
                producer.flush(_FLUSH_SECONDS)
        producer.flush(_FLUSH_SECONDS)

    def send_and_leave(self, producer: Producer, turn: threading.Barrier) -> None:
        try:
            self.send(producer, one_by_one=False)
        except Exception as error:
            self.errors.append(_text(error))
        finally:
            turn.abort()

    def _done(self, i: int, error: Exception | None, partition: int | None) -> None:
        self.latencies[i] = time.perf_counter() - self._begins[i]
        if error is not None:
            self.errors.append(_text(error))


class _Receiving:
    """The commands of a consumer."""

    def __init__(self, spec: WorkerSpec, broker: Broker, cc: ClaimCheck, pipe: Connection) -> None:
        options = {"group": spec.group, "session_seconds": spec.session_seconds}
        self._consumer: Consumer = broker.consumer(spec.mode, spec.topic, cc, **options)  # type: ignore[arg-type]
        self._pipe = pipe

    def receive(self, *, count: int, idle: float, commit: str, verify: bool, peak: bool = False) -> Report:
        latencies: list[float] = []
        total = 0
        with _Meter(peak=peak) as meter:
            for received in self._received(count, idle, latencies):
                total += len(received.payload or b"")
                if verify:
                    self._pipe.send(self._verified(received))
                if commit == "each" or (commit == "last" and len(latencies) == count):
                    self._consumer.commit(received)
                del received  # else one payload more is in memory while the next one is received
        return meter.report(latencies, total)

    def _received(self, count: int, idle: float, latencies: list[float]) -> Iterator[Received]:
        for _ in range(count):
            begin = time.perf_counter()
            received = self._next(idle)
            if received is None:
                return
            latencies.append(time.perf_counter() - begin)
            yield received
            del received

    def _next(self, idle: float) -> Received | None:
        end = time.perf_counter() + idle
        while True:
            left = end - time.perf_counter()
            received = self._consumer.receive(max(0.0, min(left, _STEP_SECONDS)))
            if received is not None or left <= 0:
                return received

    def _verified(self, received: Received) -> Delivered:
        payload, place = received.payload, (received.partition, received.position)
        if payload is None:
            error = _text(received.error) if received.error is not None else "a tombstone"
            return Delivered(None, False, *place, error)
        number = number_of(payload) if len(payload) >= 8 else None
        return Delivered(number, verify(payload), *place)

    def seek(self, *, partition: int, position: int | str) -> Report:
        with _Meter() as meter:
            self._consumer.seek(partition, position)
        return meter.report([], 0)

    def close(self) -> None:
        self._consumer.close()


# What a command took -------------------------------------------------------------------------------------------


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
        self._seconds = time.perf_counter() - self._begin
        self._cpu_seconds = time.process_time() - self._cpu
        self._peak_bytes = max(0, status("VmHWM") - self._before) if self._peak else 0

    def report(self, latencies: Sequence[float], size: int, errors: tuple[str, ...] = ()) -> Report:
        """Return what the block took for so many payloads."""
        taken = self._seconds, self._cpu_seconds, self._peak_bytes
        return Report(len(latencies), size, *taken, tuple(latencies), errors)
