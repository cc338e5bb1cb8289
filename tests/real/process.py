"""Server processes on free ports: started, found ready, killed, started again, and stopped at the end."""

from __future__ import annotations

import contextlib
import functools
import http.client
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

READY_WITHIN_SECONDS = 20.0
# Below what the kernel gives to clients, so that a server that was killed finds its port free when it comes back.
_PORTS = range(10_000, 32_768)
_chance = random.SystemRandom()  # two runs side by side must not look for the same ports, and Hypothesis seeds `random`


class ServerError(RuntimeError):
    """The server did not start; the text ends with what it had to say."""


@dataclass(frozen=True)
class Spot:
    """Where one server may live: a folder of its own, the port that clients use, and one more."""

    folder: Path
    port: int
    spare: int


class Server:
    """One process, which may be killed and started again in its place.

    Args:
        command: What to run.
        spot: Where.
        answers: Whether it takes requests by now; may raise as long as it does not.
        environment: Variables besides those of this process.
        ready_within: Seconds that it may take to start.
    """

    def __init__(
        self,
        command: list[str],
        spot: Spot,
        answers: Callable[[], bool],
        environment: dict[str, str] | None = None,
        ready_within: float = READY_WITHIN_SECONDS,
    ) -> None:
        self.port = spot.port
        self.spot = spot
        self._command = command
        self._answers = answers
        self._ready_within = ready_within
        self._environment = {**os.environ, **(environment or {})}
        self._log = spot.folder / "log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Of the process that is there, or was."""
        assert self._process is not None, "it was never started"
        return self._process.pid

    def start(self) -> None:
        """Start it, for the first time or again, and wait until it answers.

        Raises:
            ServerError: It ended, or did not answer in time; it is not running then.
        """
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(
                self._command, env=self._environment, stdout=output, stderr=subprocess.STDOUT
            )
        try:
            wait_until(lambda: self._ready(self._process), f"{self._command[0]} answers", self._ready_within)
        except BaseException:
            self.stop()
            raise

    def kill(self) -> None:
        """End it at once, as a power cut does, but with no write cut in two.

        The space behind the last record of Pulsar's journal is there already, full of zeros: what a torn write leaves
        is taken for a whole record, and a topic with one copy only cannot be opened any more. A process that is told
        to stop ends what it has asked of the kernel.
        """
        if self._process is not None:
            if self._process.poll() is None:
                self._process.send_signal(signal.SIGSTOP)
                os.waitpid(self._process.pid, os.WUNTRACED)  # which is when the last of its threads has stopped
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        """Ask it to end, and insist after a while."""
        if self._process is not None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=10)
            self.kill()

    def _ready(self, process: subprocess.Popen[bytes] | None) -> bool:
        if process is None or process.poll() is not None:
            raise ServerError(f"{self._command[0]} did not start:\n{self._log.read_text(errors='replace')[-2000:]}")
        return self._answers() and process.poll() is None  # else it was somebody else on that port who answered


@contextlib.contextmanager
def running(
    command: Callable[[Spot], list[str]],
    answers: Callable[[Spot], bool],
    environment: dict[str, str] | None = None,
    prepare: Callable[[Path], None] = lambda folder: None,
    ready_within: float = READY_WITHIN_SECONDS,
) -> Iterator[Server]:
    """Run a server in a temporary folder, which `prepare` may furnish; both are gone afterwards."""
    with temporary_folder() as folder:
        prepare(folder)
        server = _start_somewhere(command, answers, folder, environment, ready_within)
        try:
            yield server
        finally:
            server.stop()


def _start_somewhere(
    command: Callable[[Spot], list[str]],
    answers: Callable[[Spot], bool],
    folder: Path,
    environment: dict[str, str] | None,
    ready_within: float,
) -> Server:
    for left in (2, 1, 0):  # between choosing a free port and binding it, someone else may take it
        spot = Spot(folder, *free_ports(2))
        answer = functools.partial(answers, spot)
        server = Server(command(spot), spot, answer, environment, ready_within)
        try:
            server.start()
            break
        except ServerError:
            if not left:
                raise
    return server


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder with a short name, because the path of a unix socket must be short."""
    folder = Path(tempfile.mkdtemp(prefix="claimcheck-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def free_ports(count: int) -> list[int]:
    """Find ports that nobody listens at."""
    found: list[int] = []
    while len(found) < count:
        port = _chance.choice(_PORTS)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            if port not in found:
                found.append(port)
    return found


def wait_until(ready: Callable[[], bool], what: str, within: float = READY_WITHIN_SECONDS) -> None:
    """Ask until the answer is yes; who does not answer yet has not said no.

    Raises:
        ServerError: Time is up.
    """
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError, http.client.HTTPException):
            if ready():
                return
        time.sleep(0.01)
    raise ServerError(f"waited for {within:g} seconds in vain until {what}")
