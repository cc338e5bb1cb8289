"""Time, processor time and memory of a block of code in this process."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import resource
import sys
import time
from pathlib import Path

__all__ = ["Meter"]


class Meter:
    """Measures a block: time, processor time of all threads, and the peak of resident memory beyond its beginning.

    Args:
        peak: Whether to measure memory. The block is slower then: memory that was freed before returns to the system,
            so that using it again is seen, and has to be requested again.
    """

    seconds = 0.0
    cpu_seconds = 0.0
    peak_bytes = 0

    def __init__(self, *, peak: bool = False) -> None:
        self._peak = peak

    def __enter__(self) -> Meter:
        gc.collect()
        self._before = _reset_peak() if self._peak else 0
        self._cpu, self._begin = time.process_time(), time.perf_counter()
        return self

    def __exit__(self, *exc: object) -> None:
        self.seconds = time.perf_counter() - self._begin
        self.cpu_seconds = time.process_time() - self._cpu
        self.peak_bytes = max(0, _peak() - self._before) if self._peak else 0


def _reset_peak() -> int:
    """Return the resident bytes; on Linux the high-water mark begins there again."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS") or _peak()


def _peak() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return _status("VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _status(key: str) -> int:
    try:
        text = Path("/proc/self/status").read_text()
    except OSError:
        return 0
    return int(text.partition(f"{key}:")[2].split()[0]) * 1024
