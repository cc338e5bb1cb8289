"""Real servers for tests: Redis and an S3 gateway, started natively on free ports of the loopback interface.

The fixtures in conftest.py use it, and so does a person who wants to run something against both:

    python tests/servers.py make test

Only the standard library is imported, so any Python can run it before anything is installed.
"""

from __future__ import annotations

import contextlib
import functools
import http.client
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

READY_WITHIN_SECONDS = 20.0
ACCESS_KEY = "test"
SECRET_KEY = "testsecret"


class ServerError(RuntimeError):
    """The server did not start; the text ends with what it had to say."""


@dataclass(frozen=True)
class S3Server:
    """Where a test finds its S3 server, and who it may say it is."""

    endpoint_url: str
    access_key: str = ACCESS_KEY
    secret_key: str = field(default=SECRET_KEY, repr=False)
    region: str = "us-east-1"


@contextlib.contextmanager
def redis() -> Iterator[str]:
    """Run a Redis that keeps nothing on disk; gives its URL."""
    with _server(_redis_command, _redis_answers) as port:
        yield f"redis://127.0.0.1:{port}/0"


@contextlib.contextmanager
def s3() -> Iterator[S3Server]:
    """Run an S3 gateway over a temporary folder."""
    environment = {"ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY}
    with _server(_s3_command, _http_answers, environment) as port:
        yield S3Server(f"http://127.0.0.1:{port}")


def _redis_command(port: int, folder: Path) -> list[str]:
    return ["redis-server", "--bind", "127.0.0.1", "--port", str(port), "--dir", str(folder),
            "--save", "", "--appendonly", "no"]  # fmt: skip


def _s3_command(port: int, folder: Path) -> list[str]:
    root, meta = folder / "root", folder / "meta"  # the gateway wants its notes outside of the tree that it serves
    root.mkdir(exist_ok=True)
    meta.mkdir(exist_ok=True)
    return ["versitygw", "--port", f"127.0.0.1:{port}", "posix", "--sidecar", str(meta), str(root)]


def _redis_answers(port: int) -> bool:
    with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
        connection.sendall(b"PING\r\n")
        return connection.recv(16).startswith(b"+PONG")


def _http_answers(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
    try:
        connection.request("GET", "/")
        return connection.getresponse().status < 500  # an unsigned request is refused: that is an answer
    finally:
        connection.close()


@contextlib.contextmanager
def _server(
    command: Callable[[int, Path], list[str]], answers: Callable[[int], bool], environment: dict[str, str] | None = None
) -> Iterator[int]:
    folder = Path(tempfile.mkdtemp(prefix="claimcheck-server-"))
    try:
        process, port = _start(command, answers, folder, environment or {})
        try:
            yield port
        finally:
            _stop(process)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _start(
    command: Callable[[int, Path], list[str]], answers: Callable[[int], bool], folder: Path, environment: dict[str, str]
) -> tuple[subprocess.Popen[bytes], int]:
    log = folder / "log"
    for _ in range(3):  # between choosing a free port and binding it, someone else may take it
        port = _free_port()
        with log.open("wb") as output:
            process = subprocess.Popen(
                command(port, folder), env={**os.environ, **environment}, stdout=output, stderr=subprocess.STDOUT
            )
        try:
            if _wait(process, functools.partial(answers, port)):
                return process, port
        except BaseException:
            _stop(process)
            raise
        _stop(process)
    raise ServerError(f"{command(0, folder)[0]} did not start:\n{log.read_text(errors='replace')[-2000:]}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait(process: subprocess.Popen[bytes], ready: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + READY_WITHIN_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError, http.client.HTTPException):
            if ready() and process.poll() is None:  # else it was somebody else on that port who answered
                return True
        time.sleep(0.02)
    return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def main(command: list[str]) -> int:
    """Run a command with both servers up and named in its environment; gives the command's exit status."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that a killed run still stops its servers
    with redis() as redis_url, s3() as gateway:
        environment = {
            "CLAIMCHECK_TEST_REDIS_URL": redis_url,
            "CLAIMCHECK_TEST_S3_ENDPOINT": gateway.endpoint_url,
            "CLAIMCHECK_TEST_S3_ACCESS_KEY": gateway.access_key,
            "CLAIMCHECK_TEST_S3_SECRET_KEY": gateway.secret_key,
        }
        process = subprocess.Popen(command, env={**os.environ, **environment})
        try:
            return process.wait()
        except BaseException:
            _stop(process)  # asks first: make and pytest clean up after themselves
            raise


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
