"""One library at work, in a process and an environment of its own: puts payloads and gets them back, as it is told to.

    PYTHON peer_child.py NAME        PYTHON is of the environment that holds the library

Reads a line of JSON for each round, ``{"size": 1048576, "number": 3}``, and answers one: seconds of put and get, and
the bytes of memory that both together took at their peak. Servers are named by the environment. This file imports
nothing but the standard library and the adapters beside it.
"""

from __future__ import annotations

import base64
import ctypes
import gc
import importlib.metadata
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any, TextIO

from peer_adapters import ADAPTERS

FOR_MEMORY = 0
"""The round of this number is one for memory; its seconds say less, because all memory is new to it."""

_SMALL_BYTES, _IN_A_ROW = 1 << 20, 8


def status(key: str) -> int:
    """Bytes, as the kernel counts them for this process."""
    text = Path("/proc/self/status").read_text()
    return int(text.partition(f"{key}:")[2].split()[0]) * 1024


def payload(size: int, number: int, text: bool) -> Any:
    """Text of so many bytes that no other round has: random, and already in memory."""
    block = base64.b64encode(os.urandom(min(size, 1 << 20) // 4 * 3))
    data = (b"%016d" % number + block * (size // len(block) + 1))[:size]
    return data.decode() if text else data


def give_back() -> None:
    """Give freed memory back to the system, so that what is taken again is seen."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


def one_round(adapter: Any, size: int, number: int) -> dict[str, Any]:
    """Put a payload and get it back, several times in a row if it is small; returns the mean of each."""
    several = [_once(adapter, size, number) for _ in range(_IN_A_ROW if size <= _SMALL_BYTES else 1)]
    return {name: statistics.fmean(one[name] for one in several) for name in several[0]}


def _once(adapter: Any, size: int, number: int) -> dict[str, float]:
    data = payload(size, number, adapter.text)
    if number == FOR_MEMORY:
        give_back()
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark begins anew
    before, begin = status("VmRSS"), time.perf_counter()
    token = adapter.put(data)
    middle = time.perf_counter()
    back = adapter.get(token)
    end, peak = time.perf_counter(), status("VmHWM")
    if back != data:
        raise ValueError(f"put {len(data)} bytes and got {type(back).__name__} that differ")
    getattr(adapter, "forget", lambda: None)()
    return {"put": middle - begin, "get": end - middle, "extra": peak - before}


def answer(output: TextIO, **what: Any) -> None:
    """Write one line."""
    output.write(json.dumps(what) + "\n")
    output.flush()


def main(name: str) -> None:
    """Work until the input ends; whatever a library prints goes to standard error."""
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        adapter = ADAPTERS[name]()
        one_round(adapter, 300 << 10, -1)  # connections and modules are there before anything is counted
        answer(output, version=importlib.metadata.version(adapter.package))
        for line in sys.stdin:
            answer(output, **one_round(adapter, **json.loads(line)))
    except Exception as error:
        answer(output, error=f"{type(error).__name__}: {error}"[:300])
    os._exit(0)  # some leave threads behind that do not end


if __name__ == "__main__":
    main(sys.argv[1])
