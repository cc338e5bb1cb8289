"""The process of a `Worker`: it answers each command with a `Report`.

A consumer also reports each payload as it arrives, so that the parent knows what was delivered before the process was
killed. The process ends when the parent closes the pipe, or ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

from claimcheck._client import ClaimCheck
from tests.benchmarks.compare.broker import Broker, Consumer, Producer, Received, connect
from tests.benchmarks.compare.faults import KillPoint, WatchedClaimCheck
from tests.benchmarks.compare.payloads import make, number_of, verify
from tests.benchmarks.compare.process import Delivered, Report, WorkerSpec

_FLUSH_SECONDS = 120.0
_KILL_SECONDS = 0.5
_STEP_SECONDS = 1.0


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
    made = _Sending(spec, broker, cc, point) if spec.role == "producer" else _Receiving(spec, broker, cc, point, pipe)
    return stack.enter_context(contextlib.closing(made))


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


# The two roles -------------------------------------------------------------------------------------------------


class _Sending:
    """The commands of a producer."""

    def __init__(self, spec: WorkerSpec, broker: Broker, cc: ClaimCheck, point: KillPoint) -> None:
        self._spec, self._broker, self._point = spec, broker, point
        self._producer = self._new(cc)
        point.flush = self._flush_messages

    def send(self, *, size: int, first: int, count: int, one_by_one: bool, interleaved: bool, peak: bool) -> Report:
        numbers, meter = range(first, first + count), _Meter(peak=peak)
        if interleaved:
            return self._send_interleaved([_Batch(size, [number]) for number in numbers], meter)
        batch = _Batch(size, numbers)
        with meter:
            batch.send(self._producer, self._sent, one_by_one=one_by_one)
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

    def _sent(self) -> None:
        if self._spec.mode == "native":
            self._point.passed()

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

    def send(self, producer: Producer, sent: Callable[[], None], *, one_by_one: bool) -> None:
        for i, payload in enumerate(self._payloads):
            self._begins[i] = time.perf_counter()
            producer.send(payload, done=partial(self._done, i))
            if one_by_one:
                producer.flush(_FLUSH_SECONDS)
            sent()
        producer.flush(_FLUSH_SECONDS)

    def send_and_leave(self, producer: Producer, turn: threading.Barrier) -> None:
        try:
            self.send(producer, lambda: None, one_by_one=False)
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

    def __init__(self, spec: WorkerSpec, broker: Broker, cc: ClaimCheck, point: KillPoint, pipe: Connection) -> None:
        options = {"group": spec.group, "session_seconds": spec.session_seconds}
        self._consumer: Consumer = broker.consumer(spec.mode, spec.topic, cc, **options)  # type: ignore[arg-type]
        self._counts_payloads = spec.mode == "native"
        self._point, self._pipe = point, pipe

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
            if self._counts_payloads:
                self._point.passed()
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
        self._before = _reset_peak() if self._peak else 0
        self._cpu, self._begin = time.process_time(), time.perf_counter()
        return self

    def __exit__(self, *exc: object) -> None:
        self._seconds = time.perf_counter() - self._begin
        self._cpu_seconds = time.process_time() - self._cpu
        self._peak_bytes = max(0, _peak_bytes() - self._before) if self._peak else 0

    def report(self, latencies: Sequence[float], size: int, errors: tuple[str, ...] = ()) -> Report:
        """Return what the block took for so many payloads."""
        taken = self._seconds, self._cpu_seconds, self._peak_bytes
        return Report(len(latencies), size, *taken, tuple(latencies), errors)


def _reset_peak() -> int:
    """Return the resident bytes; on Linux the high-water mark begins there again."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS") or _peak_bytes()


def _peak_bytes() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return _status("VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _status(key: str) -> int:
    try:
        text = Path("/proc/self/status").read_text()
    except OSError:
        return 0
    return int(text.partition(f"{key}:")[2].split()[0]) * 1024
