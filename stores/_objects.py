"""What the stores of objects have in common: where keys begin, and payloads that move in parts, side by side."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from urllib.parse import urlsplit

from claimcheck._payload import Source
from claimcheck._payload_reader import STEP_BYTES, Reader
from claimcheck._pointer import KEY_PREFIX, is_key_prefix
from claimcheck._validation import Check

__all__ = ["ENDPOINT", "PREFIX", "ParallelReader", "folder", "in_parts", "part_size"]

_MAX_PARTS = 10_000


def folder(prefix: str) -> str:
    """Make what is written in YAML the beginning of keys."""
    return f"{prefix.strip('/')}/" if prefix.strip("/") else ""


def part_size(source: Source, limit: int, *, single: int, part: int) -> int:
    """Say how large the pieces are that a payload is sent in.

    Args:
        source: The payload.
        limit: Bytes that a payload of unknown size may have.
        single: Up to this size a payload is one piece.
        part: Of each piece of a larger one; more where 10,000 of them would not be enough.
    """
    if source.size is not None and source.size <= single:
        return max(1, source.size)
    largest = limit if source.size is None else source.size
    return max(part, -(-largest // _MAX_PARTS))


def _is_endpoint(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return not url or (parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0)
    except ValueError:
        return False


PREFIX = Check(lambda prefix: is_key_prefix(folder(prefix)), KEY_PREFIX.expected)
"""For an option that keys begin with."""

ENDPOINT = Check(_is_endpoint, "http://host[:port] or https://host[:port]")
"""For the address of a server."""


class ParallelReader:
    """Fetches parts in threads and hands them out in order; a `claimcheck._payload_reader.Reader`.

    Args:
        opened: Gives a reader of the bytes from one number up to another; called in several threads.
        start: The first byte.
        stop: The byte after the last.
        part_bytes: Of each part.
        parallel: Parts in memory: the one that is handed out, and those that come next.
    """

    def __init__(
        self, opened: Callable[[int, int], Reader], start: int, stop: int, *, part_bytes: int, parallel: int
    ) -> None:
        self._opened = opened
        self._starts = iter(range(start, stop, part_bytes))
        self._stop = stop
        self._given_up = threading.Event()
        self._threads = ThreadPoolExecutor(parallel, thread_name_prefix="claimcheck-read")
        self._flying: deque[Future[memoryview]] = deque()
        self._rest = memoryview(b"")
        for _ in range(min(parallel, -(-(stop - start) // part_bytes))):
            self._launch(memoryview(bytearray(part_bytes)))

    def readinto(self, buffer: memoryview, /) -> int:
        """Copy from the part that comes next."""
        if not len(self._rest):
            if not self._flying:
                return 0
            self._rest = self._flying.popleft().result()
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        room, self._rest = self._rest, self._rest[count:]
        if not len(self._rest) and isinstance(room.obj, bytearray):
            self._launch(memoryview(room.obj))
        return count

    def close(self) -> None:
        """Stop, and wait for the threads; their connections are closed then."""
        self._given_up.set()
        self._threads.shutdown(cancel_futures=True)
        self._flying.clear()
        self._rest = memoryview(b"")

    def _launch(self, room: memoryview) -> None:
        start = next(self._starts, None)
        if start is not None:
            self._flying.append(self._threads.submit(self._fetch, room[: self._stop - start], start))

    def _fetch(self, room: memoryview, start: int) -> memoryview:
        done = 0
        with closing(self._opened(start, start + len(room))) as reader:
            while done < len(room) and not self._given_up.is_set():
                count = reader.readinto(room[done : done + STEP_BYTES])
                if not count:
                    break
                done += count
        return room[:done]


def in_parts(
    opened: Callable[[int, int | None], Reader], start: int, stop: int | None, *, part_bytes: int, parallel: int
) -> Reader:
    """Open a reader of the bytes from one number up to another, of parts side by side where there are several."""
    if stop is None or parallel == 1 or stop - start <= part_bytes:
        return opened(start, stop)
    return ParallelReader(opened, start, stop, part_bytes=part_bytes, parallel=parallel)
