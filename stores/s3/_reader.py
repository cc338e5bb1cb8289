"""The body of an S3 object, read from the HTTP response straight into the caller's memory."""

from __future__ import annotations

import http.client
import re
from typing import Any, NamedTuple

from claimcheck._registry import import_vendor

__all__ = ["Extent", "ObjectReader", "extent_of", "range_of"]

_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")


class Extent(NamedTuple):
    """What a response holds: bytes from ``start`` up to ``stop`` of an object of ``size`` bytes."""

    start: int
    stop: int
    size: int


def range_of(start: int, stop: int) -> dict[str, str]:
    """Ask for a part of an object, in the SDK's words."""
    return {"Range": f"bytes={start}-{stop - 1}"}


def extent_of(response: dict[str, Any]) -> Extent:
    """Read from a response what it holds; a server that knows no ranges sends the whole.

    Raises:
        ConnectionError: It does not say how much: its headers were cut.
    """
    if "ContentLength" not in response:
        raise ConnectionError("the server's answer says no length")
    found = _RANGE.fullmatch(response.get("ContentRange", ""))
    if found is None:
        return Extent(0, response["ContentLength"], response["ContentLength"])
    first, last, size = map(int, found.groups())
    return Extent(first, last + 1, size)


class ObjectReader:
    """A `claimcheck._payload_reader.Reader` of one response.

    The SDK's own ``readinto`` reads into new memory and copies. Where the response is the one that is expected below,
    it is read past that: a part that is not public, and without which reading is only slower.

    Args:
        body: As the SDK gives it; closed at the end, or before it, so that no connection is used with a rest on it.
        size: Bytes that it holds.
    """

    def __init__(self, body: Any, size: int) -> None:
        self._body = body
        self._size = self._left = size
        self._direct = _direct(body)

    def readinto(self, buffer: memoryview, /) -> int:
        """Fill the buffer as far as the body goes.

        Raises:
            IncompleteReadError: Of botocore: the line was cut.
        """
        if not self._left:
            return 0
        count = int((self._direct or self._body).readinto(buffer[: self._left]))
        if not count:
            raise self._incomplete()
        self._left -= count
        return count

    def close(self) -> None:
        """Give the connection back if nothing is left to read, else close it."""
        if not self._left:
            drain = self._body.read if self._direct is None else self._body._raw_stream.drain_conn
            drain()  # there is nothing left, which it must find out by itself
        self._body.close()

    def _incomplete(self) -> Exception:
        kind = import_vendor("botocore.exceptions", extra="s3").IncompleteReadError
        error: Exception = kind(actual_bytes=self._size - self._left, expected_bytes=self._size)
        return error


def _direct(body: Any) -> http.client.HTTPResponse | None:
    """The response of the standard library below botocore's and urllib3's."""
    if type(body) is not import_vendor("botocore.response", extra="s3").StreamingBody:
        return None  # one that checks or decodes on the way
    raw = getattr(body, "_raw_stream", None)
    response = getattr(raw, "_fp", None)
    known = isinstance(response, http.client.HTTPResponse) and hasattr(raw, "drain_conn")
    return response if known else None
