"""What several stores share: options, error codes of object stores, and payloads that are read in parallel parts."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from claimcheck._payload import Source
from claimcheck._payload_reader import STEP_BYTES, Reader
from claimcheck._pointer import KEY_PREFIX, is_key_prefix
from claimcheck._validation import Check, fail
from claimcheck.errors import PayloadNotFoundError, StoreError, StoreUnavailableError

__all__ = [
    "ENDPOINT",
    "ERROR_CODES",
    "NOT_ADMITTED",
    "NOT_KNOWN",
    "PREFIX",
    "CaFile",
    "ParallelReader",
    "bounds",
    "check_ca_file",
    "folder",
    "in_parts",
    "part_size",
    "ranges",
]

_MAX_PARTS = 10_000
_NOT_FOUND = (
    *("NoSuchKey", "NotFound", "404"),
    *("KeyTooLongError", "InvalidObjectName", "XMinioInvalidObjectName"),  # rejected names: nothing can be stored there
)
_UNAVAILABLE = (
    *("ConditionalRequestConflict", "InternalError", "OperationAborted", "RequestTimeout", "ServiceUnavailable"),
    *("SlowDown", "Throttling", "ThrottlingException", "TooManyRequests", "429", "500", "502", "503", "504"),
)

ERROR_CODES: dict[str, type[StoreError]] = {
    **dict.fromkeys(_NOT_FOUND, PayloadNotFoundError),
    **dict.fromkeys(_UNAVAILABLE, StoreUnavailableError),
}
"""Error classes by the service's error code, or by HTTP status without one. Any other code is a `StoreError`."""

NOT_ADMITTED = {
    "403",
    "AccessDenied",
    "ExpiredToken",
    "InvalidAccessKeyId",
    "InvalidToken",
    "NoSuchBucket",
    "SignatureDoesNotMatch",
}
"""Codes after which there is nothing to delete, and no way to."""

NOT_KNOWN = {"NotImplemented", "501"}
"""Codes of servers that do not support a request."""

CaFile = Annotated[str, Check(bool, "the path of a file with certificates in PEM format")]
"""An option: the certificates of the authorities that may sign a server's certificate."""


def check_ca_file(path: str | None, *, store: str) -> None:
    """Check that the file exists; a driver's error would be less clear.

    Raises:
        ConfigError: It does not exist on this machine.
    """
    if path is not None and not Path(path).is_file():
        where = f"stores.{store}.tls_ca_file"
        fail(where, found=f"{path!r}, which is not a file on this machine", expected="certificates in PEM format")


def _is_endpoint(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return not url or (parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0)
    except ValueError:
        return False


def folder(prefix: str) -> str:
    """Return the key prefix for a configured prefix: no leading slash, one trailing slash."""
    return f"{prefix.strip('/')}/" if prefix.strip("/") else ""


PREFIX = Check(lambda prefix: is_key_prefix(folder(prefix)), KEY_PREFIX.expected)
"""For an option with a prefix of keys."""

ENDPOINT = Check(_is_endpoint, "http://host[:port] or https://host[:port]")
"""For an option with the address of a server."""


def part_size(source: Source, limit: int, *, single: int, part: int) -> int:
    """Return the size of the parts in which to send a payload.

    Args:
        source: The payload.
        limit: The largest size of a payload of unknown size.
        single: A payload up to this size is one part.
        part: The size of each part of a larger one; increased if it would need more than 10,000 parts.
    """
    if source.size is not None and source.size <= single:
        return max(1, source.size)
    largest = limit if source.size is None else source.size
    return max(part, -(-largest // _MAX_PARTS))


class ParallelReader:
    """A `Reader` that fetches parts in threads and returns them in order.

    Args:
        opened: Returns a reader of the bytes from a start up to a stop; called in several threads.
        start: The first byte.
        stop: The byte after the last.
        part_bytes: The size of each part.
        parallel: Parts in memory: the one being returned, and the next ones.
    """

    def __init__(
        self, opened: Callable[[int, int], Reader], start: int, stop: int, *, part_bytes: int, parallel: int
    ) -> None:
        self._opened = opened
        self._starts = iter(range(start, stop, part_bytes))
        self._stop = stop
        self._closed = threading.Event()
        self._threads = ThreadPoolExecutor(parallel, thread_name_prefix="claimcheck-read")
        self._in_flight: deque[Future[memoryview]] = deque()
        self._rest = memoryview(b"")
        for _ in range(min(parallel, -(-(stop - start) // part_bytes))):
            self._launch(memoryview(bytearray(part_bytes)))

    def readinto(self, buffer: memoryview, /) -> int:
        """Copy from the next part."""
        if not len(self._rest):
            if not self._in_flight:
                return 0
            self._rest = self._in_flight.popleft().result()
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        room, self._rest = self._rest, self._rest[count:]
        if not len(self._rest) and isinstance(room.obj, bytearray):
            self._launch(memoryview(room.obj))
        return count

    def close(self) -> None:
        """Stop, and wait for the threads, which close their connections."""
        self._closed.set()
        self._threads.shutdown(cancel_futures=True)
        self._in_flight.clear()
        self._rest = memoryview(b"")

    def _launch(self, room: memoryview) -> None:
        start = next(self._starts, None)
        if start is not None:
            self._in_flight.append(self._threads.submit(self._fetch, room[: self._stop - start], start))

    def _fetch(self, room: memoryview, start: int) -> memoryview:
        done = 0
        with closing(self._opened(start, start + len(room))) as reader:
            while done < len(room) and not self._closed.is_set():
                count = reader.readinto(room[done : done + STEP_BYTES])
                if not count:
                    break
                done += count
        return room[:done]


def in_parts(
    opened: Callable[[int, int | None], Reader], start: int, stop: int | None, *, part_bytes: int, parallel: int
) -> Reader:
    """Return a reader of the bytes from ``start`` up to ``stop``, in parallel parts if there are several."""
    if stop is None or parallel == 1 or stop - start <= part_bytes:
        return opened(start, stop)
    return ParallelReader(opened, start, stop, part_bytes=part_bytes, parallel=parallel)


def ranges(names: Sequence[str], count: int) -> list[str]:
    """Divide all names into up to ``count`` ranges, each as one text.

    Args:
        names: Sorted names at which a range may begin.
        count: The most ranges.
    """
    starts = sorted({names[len(names) * i // count] for i in range(1, count)} - {""}) if names else []
    return [f"{start}\n{stop}" for start, stop in pairwise(["", *starts, ""])]


def bounds(text: str) -> tuple[str, str]:
    """Return the names between which a range of `ranges` lies; an empty one is no bound."""
    start, _, stop = text.partition("\n")
    return start, stop
