"""A producer or a consumer in a process of its own, as the experiments use it; see `worker` for the other side."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import pickle
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import claimcheck
from claimcheck.config import Config
from tests.benchmarks.compare.broker import BrokerAddress
from tests.benchmarks.compare.model import CompareError, Mode

Role = Literal["producer", "consumer"]
Commit = Literal["each", "last", "none"]

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
        payloads: Folder of the payloads' contents.
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
    payloads: str | None = None

    def encode(self) -> str:
        """Return the spec as one word."""
        return base64.b64encode(pickle.dumps(self)).decode("ascii")

    @classmethod
    def decode(cls, word: str) -> WorkerSpec:
        """Return the spec of `encode`; only for words from the parent process."""
        spec = pickle.loads(base64.b64decode(word))
        if not isinstance(spec, cls):
            raise TypeError(f"not a {cls.__name__}")
        return spec


@dataclass(frozen=True, slots=True)
class Delivered:
    """One payload that a consumer received.

    Attributes:
        number: The payload's number; ``None`` with an error.
        size: Its size in bytes.
        correct: Whether every byte is right.
        partition: Of the message.
        position: Of the payload's first message.
        error: Name and text of the error that was received in place of the payload; empty if there was none.
    """

    number: int | None
    size: int
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
        partitions: Where the payloads went.
    """

    count: int
    size: int
    seconds: float
    cpu_seconds: float
    peak_bytes: int
    latencies: tuple[float, ...] = field(repr=False)
    errors: tuple[str, ...] = ()
    partitions: tuple[int | None, ...] = field(default=(), repr=False)


class Worker:
    """A worker process. Commands are answered in order; `start` sends one without waiting for its answer.

    Args:
        spec: What it does.
        ended: Called when the process was closed or killed.
    """

    def __init__(self, spec: WorkerSpec, *, ended: Callable[[Worker], None] = lambda worker: None) -> None:
        self.spec = spec
        self.delivered: list[Delivered] = []
        """What a consumer received so far, also if it was killed since; not for commands with ``verify=False``."""
        self._answers: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._ended = ended
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.benchmarks.compare.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=_environment(),
        )
        self._reader = threading.Thread(target=self._read, name="claimcheck-compare-worker", daemon=True)
        self._reader.start()
        self._write(spec.encode())

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    def ready(self, timeout: float = _START_SECONDS) -> Worker:
        """Wait until the client is connected and, in a group, has joined."""
        self._answer(timeout)
        return self

    # Commands --------------------------------------------------------------------------------------------------

    def send(
        self,
        size: int,
        first: int,
        count: int,
        *,
        keys: bool = False,
        one_by_one: bool = False,
        interleaved: bool = False,
        peak: bool = False,
        timeout: float = 120.0,
    ) -> Report:
        """Send payloads and wait until all are acknowledged."""
        options = {"keys": keys, "one_by_one": one_by_one, "interleaved": interleaved, "peak": peak}
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
        self._write(json.dumps({"command": command, **arguments}))

    def report(self, timeout: float) -> Report:
        """Wait for the report of the oldest command that has none yet."""
        answer = self._answer(timeout)
        for name in ("latencies", "errors", "partitions"):
            answer[name] = tuple(answer[name])
        return Report(**answer)

    # The process -----------------------------------------------------------------------------------------------

    def kill(self) -> None:
        """Kill the process (SIGKILL) and wait until it has ended; harmless if it has."""
        self._process.kill()
        self._finish()

    def wait(self, timeout: float) -> int:
        """Wait until the process has ended by itself; return its exit status, negative for a signal."""
        try:
            status = self._process.wait(timeout)
        except subprocess.TimeoutExpired as error:
            raise CompareError(f"a {self.spec.role} did not end within {timeout:.0f} s") from error
        self._finish()
        return status

    def close(self) -> None:
        """Close the client, which leaves its group, and end the process; killed if that takes too long."""
        try:
            if self._process.stdin is not None:
                self._process.stdin.close()
            self._process.wait(_STOP_SECONDS)
        except (OSError, subprocess.TimeoutExpired):
            self._process.kill()
        self._finish()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _finish(self) -> None:
        self._process.wait()
        self._reader.join(_STOP_SECONDS)
        for stream in (self._process.stdin, self._process.stdout, self._log):
            if stream is not None and not stream.closed:
                _close(stream)
        self._ended(self)

    def _write(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except (OSError, ValueError) as error:
            raise self._died() from error

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            answer: dict[str, Any] = json.loads(line)
            if "delivered" in answer:
                self.delivered.append(Delivered(**answer["delivered"]))
            else:
                self._answers.put(answer)
        self._answers.put(None)

    def _answer(self, timeout: float) -> dict[str, Any]:
        try:
            answer = self._answers.get(timeout=timeout)
        except queue.Empty:
            self.kill()
            text = f"a {self.spec.role} of mode {self.spec.mode} did not answer within {timeout:.0f} s"
            raise CompareError(text) from None
        if answer is None:
            self._answers.put(None)  # for the next call
            raise self._died()
        if "failed" in answer:
            raise CompareError(answer["failed"])
        return answer

    def _died(self) -> WorkerDiedError:
        self._process.wait(_STOP_SECONDS)
        if not self._log.closed:
            self._log.seek(0)
        lines = b"" if self._log.closed else self._log.read()
        reason = lines.decode("utf-8", "replace").strip().rpartition("\n")[2]
        text = f"a {self.spec.role} of mode {self.spec.mode} ended with status {self._process.returncode}"
        return WorkerDiedError(f"{text}: {reason}" if reason else text)


def _close(stream: Any) -> None:
    with contextlib.suppress(OSError):  # what was buffered for a process that has ended
        stream.close()


def _environment() -> dict[str, str]:
    """Return the environment in which the worker imports the same claimcheck, and this package."""
    roots = (Path(claimcheck.__file__).parents[1], Path(__file__).parents[3])
    path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), *map(str, roots))))
    return {**os.environ, "PYTHONPATH": path}
