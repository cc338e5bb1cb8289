"""Other processes, and what this one takes: helpers with a port, children that answer in JSON, and peaks of memory."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import multiprocessing
import selectors
import subprocess
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
PATIENCE_SECONDS = 600.0
_END_SECONDS = 30.0


class ChildError(RuntimeError):
    """A child failed, or did not answer."""


class Child(contextlib.AbstractContextManager["Child"]):
    """A process that answers with a line of JSON: once when it is ready, and then for each line that it gets."""

    def __init__(self, *command: str | Path, env: Mapping[str, str], log: Path | None = None) -> None:
        with contextlib.ExitStack() as stack:
            errors = stack.enter_context(log.open("ab")) if log else None
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=env, start_new_session=True
            )

    def __exit__(self, *exc: object) -> None:
        with self._process:
            assert self._process.stdin is not None
            with contextlib.suppress(OSError):
                self._process.stdin.close()  # it ends by itself then, with what it has started
            try:
                self._process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()

    def ask(self, question: object) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(question).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise ChildError("its process ended") from error
        return self.answer()

    def answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(PATIENCE_SECONDS):
                raise ChildError(f"no answer in {PATIENCE_SECONDS:.0f} s")
        line = self._process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"error": "its process ended"}
        if "error" in answer:
            raise ChildError(answer["error"])
        return answer


@contextlib.contextmanager
def helper(*command: str | Path) -> Iterator[int]:
    """Run a program that prints its port and ends with its standard input."""
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    with process:  # closes its pipes, then waits
        assert process.stdout is not None
        yield int(process.stdout.readline())


def fresh(function: Callable[..., T], *arguments: Any) -> T:
    """Call a function in a process of its own, and return its result."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


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
