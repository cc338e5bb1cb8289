"""Server processes on free ports: start, wait until ready, kill, restart, stop; and their certificates."""

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

READY_WITHIN_SECONDS = 60.0
JAVA_OPTIONS = "CLAIMCHECK_TEST_JAVA_OPTIONS"
"""Variable with options for the Java of brokers."""

# Below the ephemeral range, so that the port of a killed server is still free when it restarts.
_PORTS = range(10_000, 32_768)
_random = random.SystemRandom()  # Hypothesis seeds `random`, and parallel runs must not pick the same ports


def java(jars: str) -> list[str]:
    """Return the beginning of a broker's command, with the folder of its jars as the class path."""
    options = os.environ.get(JAVA_OPTIONS, "") + with_classes(Path(f"{jars}.jsa"))
    return ["java", *options.split(), "-cp", f"{jars}/*"]


def with_classes(archive: Path) -> str:
    """Return the options for a JVM to load its classes from an archive, if there is one: it starts in half the time.

    Where the archive does not fit, because Java or a jar has changed, the JVM ignores it.
    """
    return f" -XX:SharedArchiveFile={archive} -Xlog:cds=off -Xlog:cds+dynamic=off" if archive.exists() else ""


class ServerError(RuntimeError):
    """The server did not start or did not respond in time; the message ends with its log."""


@dataclass(frozen=True)
class Location:
    """Folder and ports of one server: `port` is for clients, `extra_port` for whatever else it needs."""

    folder: Path
    port: int
    extra_port: int


class Server:
    """A process that can be killed and restarted on the same ports.

    Args:
        command: Command line.
        location: Its folder and ports.
        is_ready: Returns whether it accepts requests; may raise while it does not.
        environment: Variables in addition to those of this process.
        ready_within: Maximum start time in seconds.
    """

    def __init__(
        self,
        command: list[str],
        location: Location,
        is_ready: Callable[[], bool],
        environment: dict[str, str] | None = None,
        ready_within: float = READY_WITHIN_SECONDS,
    ) -> None:
        self.port = location.port
        self.location = location
        self._command = command
        self._is_ready = is_ready
        self._ready_within = ready_within
        self._environment = {**os.environ, **(environment or {})}
        self._log = location.folder / "log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Process id of the current or last process."""
        assert self._process is not None, "the server was never started"
        return self._process.pid

    def start(self) -> None:
        """Start the process and wait until it is ready.

        Raises:
            ServerError: It exited or was not ready in time; it is not running.
        """
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(
                self._command, env=self._environment, stdout=output, stderr=subprocess.STDOUT
            )
        try:
            wait_until(lambda: self._ready(self._process), f"{self._command[0]} is ready", self._ready_within)
        except BaseException:
            self.stop()
            raise

    def kill(self) -> None:
        """Kill the process without warning, but between two system calls.

        Pulsar preallocates its journal with zeros and takes a torn write for a whole record; a topic with a single
        replica is then unreadable. SIGSTOP lets the process finish its current writes first.
        """
        if self._process is not None:
            if self._process.poll() is None:
                self._process.send_signal(signal.SIGSTOP)
                os.waitpid(self._process.pid, os.WUNTRACED)  # returns when all threads are stopped
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        """Terminate the process, and kill it if it does not exit within a minute; Java may write an archive."""
        if self._process is not None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=60)
            self.kill()

    def _ready(self, process: subprocess.Popen[bytes] | None) -> bool:
        if process is None or process.poll() is not None:
            raise ServerError(f"{self._command[0]} did not start:\n{self._log.read_text(errors='replace')[-2000:]}")
        return self._is_ready() and process.poll() is None  # another process may have taken the port


def accepts_connections(location: Location) -> bool:
    """Whether a server listens on the port."""
    with socket.create_connection(("127.0.0.1", location.port), timeout=1):
        return True


@contextlib.contextmanager
def running(
    command: Callable[[Location], list[str]],
    is_ready: Callable[[Location], bool],
    environment: dict[str, str] | None = None,
    prepare: Callable[[Path], None] = lambda folder: None,
    ready_within: float = READY_WITHIN_SECONDS,
) -> Iterator[Server]:
    """Run a server in a temporary folder that `prepare` fills; stops and deletes both afterwards."""
    with temporary_folder() as folder:
        prepare(folder)
        for retries in (2, 1, 0):  # another process may take a free port before the server binds it
            location = Location(folder, *free_ports(2))
            ready = functools.partial(is_ready, location)
            server = Server(command(location), location, ready, environment, ready_within)
            try:
                server.start()
                break
            except ServerError:
                if not retries:
                    raise
        try:
            yield server
        finally:
            server.stop()


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """Yield a temporary folder with a short path, since paths of unix sockets are limited."""
    folder = Path(tempfile.mkdtemp(prefix="claimcheck-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def free_ports(count: int) -> list[int]:
    """Return ports that are free now."""
    found: list[int] = []
    while len(found) < count:
        port = _random.choice(_PORTS)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            if port not in found:
                found.append(port)
    return found


def wait_until(condition: Callable[[], bool], what: str, within: float = READY_WITHIN_SECONDS) -> None:
    """Poll a condition until it holds; connection errors count as not yet.

    Raises:
        ServerError: It did not hold within the time.
    """
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError, http.client.HTTPException):
            if condition():
                return
        time.sleep(0.01)
    raise ServerError(f"waited {within:g} seconds, but not until {what}")


def make_certificate(folder: Path, *, names: str = "IP:127.0.0.1,DNS:localhost") -> None:
    """Write ``ca.crt``, ``server.crt`` and ``server.key`` (PKCS 8), with all extensions that strict clients check."""

    def openssl(arguments: str) -> None:
        subprocess.run(["openssl", *arguments.split()], cwd=folder, check=True, capture_output=True, timeout=20)

    key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
    (folder / "server.ext").write_text(
        f"subjectAltName={names}\nkeyUsage=critical,digitalSignature\nextendedKeyUsage=serverAuth,clientAuth\n"
        "basicConstraints=critical,CA:false\nsubjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\n"
    )
    openssl(
        f"req -x509 {key} -keyout ca.key -out ca.crt -days 2 -subj /CN=claimcheck-test-authority "
        "-addext keyUsage=critical,keyCertSign"
    )
    openssl(f"req {key} -keyout server.key -out server.csr -subj /CN=claimcheck-test-server")
    signer = "-CA ca.crt -CAkey ca.key -CAcreateserial"
    openssl(f"x509 -req -in server.csr {signer} -out server.crt -days 2 -extfile server.ext")
