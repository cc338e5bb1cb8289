"""Other processes, and what this one takes: helpers with a port, children that run a function, peaks; the machine."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib.metadata
import multiprocessing
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
ROOT = Path(__file__).resolve().parents[2]
PATIENCE_SECONDS = 600.0
_END_SECONDS = 30.0


class ChildError(RuntimeError):
    """A child failed, or did not answer."""


class Child:
    """A function in a process of its own, which gets a pipe and arguments; it returns when the pipe ends.

    Args:
        function: Is imported in the child by its name.
        arguments: They travel through the pipe, never on a command line.
        path: Folders from which the child imports first.
    """

    def __init__(self, function: Callable[..., object], *arguments: object, path: tuple[Path, ...] = ()) -> None:
        folders = [*map(str, path), *filter(None, [os.environ.get("PYTHONPATH")]), str(ROOT)]
        self._pipe, theirs = multiprocessing.Pipe()
        with theirs:
            program = f"from tests.benchmarks.children import work; work({theirs.fileno()})"
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", program],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(folders)},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=2,  # whatever a client prints
                start_new_session=True,  # Ctrl-C reaches the parent, which then ends the child
            )
        self.send((function, arguments))

    def send(self, value: object) -> None:
        try:
            self._pipe.send(value)
        except OSError as error:
            raise self._ended() from error

    def answer(self, timeout: float = PATIENCE_SECONDS) -> Any:
        """Return what the child sends next. Raises `ChildError`."""
        try:
            if not self._pipe.poll(timeout):
                raise ChildError(f"no answer in {timeout:.0f} s")
            answer = self._pipe.recv()
        except (EOFError, OSError) as error:
            raise self._ended() from error
        if isinstance(answer, ChildError):
            raise answer
        return answer

    def close(self, timeout: float = _END_SECONDS) -> None:
        """End the pipe and wait for the process, which is killed if it takes longer."""
        self._pipe.close()
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        self._pipe.close()
        self._process.kill()
        self._process.wait()

    def __enter__(self: T) -> T:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _ended(self) -> ChildError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)
        return ChildError(f"its process ended with status {self._process.returncode}")


def work(descriptor: int) -> None:
    """Be the child: call the function that the parent names, and send back an error as text."""
    with Connection(descriptor) as pipe, contextlib.suppress(EOFError, BrokenPipeError):
        try:
            function, arguments = pipe.recv()
            function(pipe, *arguments)
        except (EOFError, BrokenPipeError):
            raise
        except Exception as error:
            pipe.send(ChildError(f"{type(error).__name__}: {' '.join(str(error).split())}"))


def fresh(function: Callable[..., T], *arguments: Any) -> T:
    """Call a function in a process of its own, and return its result."""
    with Child(_call, function, *arguments) as child:
        result: T = child.answer()
    return result


def _call(pipe: Connection, function: Callable[..., object], *arguments: Any) -> None:
    pipe.send(function(*arguments))


@contextlib.contextmanager
def helper(*command: str | Path) -> Iterator[int]:
    """Run a program that prints its port and ends with its standard input."""
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    with process:  # closes its pipes, then waits
        assert process.stdout is not None
        yield int(process.stdout.readline())


# Memory ----------------------------------------------------------------------------------------------------------


def status(key: str) -> int:
    """Bytes, as the kernel counts them for this process."""
    text = Path("/proc/self/status").read_text()
    return int(text.partition(f"{key}:")[2].split()[0]) * 1024


def reset_peak() -> int:
    """Begin the high-water mark anew; returns the bytes that are there."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what was freed goes back to the system, so that taking it again is seen
    Path("/proc/self/clear_refs").write_text("5")
    return status("VmRSS")


def peak_extra(work: Callable[[], Any]) -> int:
    """Do the work; returns the bytes at its peak beyond what was there before. The kernel's page cache is not in it."""
    before = reset_peak()
    result = work()
    peak = status("VmHWM") - before
    del result
    return peak


# The machine -----------------------------------------------------------------------------------------------------

_CONGESTION = Path("/proc/sys/net/ipv4/tcp_congestion_control")
_LIBRARIES = "claimcheck-messaging confluent-kafka pulsar-client redis hiredis boto3 obstore pyspark isal"


def machine() -> dict[str, str]:
    """Describe this machine and what is installed."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    return {
        "processor": _model() or platform.processor() or platform.machine(),
        "cores": str(os.cpu_count() or 1),
        "memory": f"{memory:.1f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "load at start": f"{os.getloadavg()[0]:.1f}",
        "python": platform.python_version(),
        **{name: _version(name) for name in _LIBRARIES.split()},
        "congestion_control": _CONGESTION.read_text().strip() if _CONGESTION.exists() else "unknown",
    }


def _version(package: str) -> str:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(package)
    return "not installed"


def _model() -> str:
    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
