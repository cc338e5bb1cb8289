"""Peak extra memory, each figure of a process of its own."""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import claimcheck
from tests.benchmarks.lab import Lab
from tests.benchmarks.redis_rows import stream
from tests.benchmarks.rounds import MIB, payload_of
from tests.benchmarks.rows import Findings, Rows, Target

ROWS = Rows()
NOTE = "VmHWM of a fresh process, after a warm-up with a small payload"
_WARM_UP = MIB // 16
_T = TypeVar("_T")


def fresh(function: Callable[..., _T], *arguments: Any) -> _T:
    """Call a function in a process of its own, and return its result."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def status(key: str) -> int:
    """Bytes, as the kernel counts them for this process."""
    text = Path("/proc/self/status").read_text()
    return int(text.partition(f"{key}:")[2].split()[0]) * 1024


def peak_extra(work: Callable[[], Any]) -> int:
    """Do the work; returns the bytes at its peak beyond what was there before. The kernel's page cache is not in it."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what was freed goes back to the system, so that taking it again is seen
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark begins anew
    before = status("VmRSS")
    result = work()
    peak = status("VmHWM") - before
    del result
    return peak


def _declare(job: str, what: str, most: float, unit: str) -> None:
    what = f"Redis {what} {{size}}, peak extra memory"

    @ROWS.findings(Target(f"memory-{job}-redis", what, most, unit, at_most=True), mib=256)
    def measure(lab: Lab, size: int) -> Findings:
        taken = fresh(_peak, job, lab.redis, size)
        return Findings((taken / (MIB if unit == "MiB" else size),), note=NOTE)


_declare("write", "write of bytes", 2, "MiB")
_declare("read", "read to bytes", 1.02, "payloads")
_declare("stream", "stream read", 4, "MiB")


def _peak(job: str, url: str, size: int) -> int:
    config = {"strategy": "external", "stores": {"hot": {"type": "redis", "url": url}}}
    with claimcheck.from_dict(config) as cc:
        _once(cc.store("hot"), job, _WARM_UP)
        return _once(cc.store("hot"), job, size)


def _once(store: claimcheck.Store, job: str, size: int) -> int:
    pointers = []
    if job == "write":
        payload = payload_of(size)
        taken = peak_extra(lambda: pointers.append(store.write(payload)))
    else:
        pointers = [store.write(payload_of(size))]
        read = store.read if job == "read" else _streamed(store)
        taken = peak_extra(lambda: read(pointers[0]))
    store.rollback(pointers[0])
    return taken


def _streamed(store: claimcheck.Store) -> Callable[[Any], None]:
    return lambda pointer: stream(store.open(pointer), bytearray(MIB))
