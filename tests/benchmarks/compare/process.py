"""A producer or a consumer in a process of its own, as the experiments use it; see `worker` for the other side."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from claimcheck.config import Config
from tests.benchmarks.compare.broker import BrokerAddress
from tests.benchmarks.compare.model import CompareError, Mode

Role = Literal["producer", "consumer"]
Commit = Literal["each", "last", "none"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
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
            from the broker, or for it; the latter are flushed before. Without a wrapper (``native``) payloads
            count.
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
        from tests.benchmarks.compare.worker import serve

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
