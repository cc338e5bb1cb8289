"""In a process of its own: do one piece of work, and print how many bytes of memory it took at its peak.

    python memory_child.py '{"job": "write", "store": {...}, "sizes": [65536, 268435456], "path": "scratch", ...}'

The same work is done with a small payload first, so that modules and connections are not counted. The peak is that of
the resident set: the kernel's page cache and the server's memory are not in it.
"""

from __future__ import annotations

import ctypes
import gc
import io
import json
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))  # at the end: what is installed wins

import claimcheck
from tests.benchmarks.rounds import MIB, payload_of


class Unknown(io.RawIOBase):
    """A file that does not say how long it is: a pipe, or a download."""

    def __init__(self, size: int) -> None:
        self._left = size
        self._block = payload_of(MIB)

    def readable(self) -> bool:
        """Always true."""
        return True

    def readinto(self, room: Any) -> int:
        """Give at most 1 MiB."""
        count = min(len(room), self._left, MIB)
        room[:count] = self._block[:count]
        self._left -= count
        return count


def status(key: str) -> int:
    """Bytes, as the kernel counts them for this process."""
    text = Path("/proc/self/status").read_text()
    return int(text.partition(f"{key}:")[2].split()[0]) * 1024


def peak_extra(work: Callable[[], Any]) -> tuple[int, Any]:
    """Do the work: bytes at its peak beyond what was there before, and its result."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what was freed goes back to the system, so that taking it again is seen
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark begins anew
    before = status("VmRSS")
    result = work()
    return status("VmHWM") - before, result


def work_of(what: dict[str, Any], cc: claimcheck.ClaimCheck, number: int) -> Callable[[], Any]:
    """Prepare the warm-up (0) or the work itself (1); what is prepared is not counted."""
    store, size, path = cc.store("hot"), what["sizes"][number], Path(what["path"])
    if what["job"] in ("read", "stream"):
        pointer = cc.pointer(bytes.fromhex(what["messages"][number]))
        assert pointer is not None
        return (lambda: store.read(pointer)) if what["job"] == "read" else (lambda: drain(store.open(pointer)))
    if what["job"] == "unknown":
        file = io.BufferedReader(Unknown(size), MIB)
        return lambda: store.write(file)
    payload = payload_of(size)
    if what["job"] == "file":
        path.write_bytes(payload)
        return lambda: write_file(store, path)
    return lambda: store.write(payload)


def drain(file: io.BufferedReader) -> None:
    """Read it through one buffer."""
    room = bytearray(MIB)
    with file:
        while file.readinto(room):
            pass


def write_file(store: claimcheck.Store, path: Path) -> Any:
    """Store a file."""
    with path.open("rb") as file:
        return store.write(file)


def main(what: dict[str, Any]) -> None:
    """Warm up, work, print, clean up."""
    raw = {"strategy": "external", "stores": {"hot": what["store"]}}
    with closing(claimcheck.from_dict(raw)) as cc:
        done = [work_of(what, cc, 0)()]
        extra, result = peak_extra(work_of(what, cc, 1))
        print(extra)
        for pointer in [*done, result]:
            if isinstance(pointer, claimcheck.Pointer):
                cc.store("hot").rollback(pointer)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
