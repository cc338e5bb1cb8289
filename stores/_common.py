"""What several stores share: options, error codes of object stores, and sizes of parts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from claimcheck._content.source import Source
from claimcheck._store.listing import KEY_PREFIX
from claimcheck._validation import Check, fail
from claimcheck._wire.pointer import is_key_prefix
from claimcheck.errors import PayloadNotFoundError, StoreError, StoreUnavailableError

_MAX_PARTS = 10_000
_NOT_FOUND = (
    *("NoSuchKey", "NotFound", "404"),
    *("KeyTooLongError", "InvalidObjectName", "XMinioInvalidObjectName"),  # rejected names: nothing can be stored there
)
_UNAVAILABLE = (
    *("ConditionalRequestConflict", "InternalError", "OperationAborted", "RequestTimeout", "ServiceUnavailable"),
    *("SlowDown", "Throttling", "ThrottlingException", "TooManyRequests", "429", "500", "502", "503", "504"),
)

_ERROR_CODES: dict[str, type[StoreError]] = {
    **dict.fromkeys(_NOT_FOUND, PayloadNotFoundError),
    **dict.fromkeys(_UNAVAILABLE, StoreUnavailableError),
}

NOT_ADMITTED = {
    *("403", "AccessDenied", "ExpiredToken", "InvalidAccessKeyId", "InvalidToken", "NoSuchBucket"),
    "SignatureDoesNotMatch",
}
"""Codes after which there is nothing to delete, and no way to."""

NOT_KNOWN = {"NotImplemented", "501"}
"""Codes of servers that do not support a request."""

CaFile = Annotated[str, Check(bool, "the path of a file with certificates in PEM format")]
"""An option: the certificates of the authorities that may sign a server's certificate."""


def kind_of_code(code: str, status: str) -> type[StoreError] | None:
    """Return the error class for a service's error code, or for the HTTP status of an answer whose code is unknown."""
    return _ERROR_CODES.get(code) or (StoreUnavailableError if status in _UNAVAILABLE else None)


def check_ca_file(path: str | None, *, store: str) -> None:
    """Check that the file exists; a driver's error would be less clear."""
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

ENDPOINT = Check(_is_endpoint, "http://host[:port] or https://host[:port]")


def part_size(source: Source, limit: int, *, part: int) -> int:
    largest = limit if source.size is None else source.size
    return max(part, -(-largest // _MAX_PARTS))


def whole(source: Source) -> memoryview:
    """Return a payload of known size as one piece, which a file is read into."""
    pieces = list(source.pieces(max(1, source.size or 0)))
    return pieces[0] if pieces else memoryview(b"")


def ranges(names: Sequence[str], count: int) -> list[str]:
    """Divide all names into up to ``count`` ranges, each as one text."""
    starts = sorted({names[len(names) * i // count] for i in range(1, count)} - {""}) if names else []
    return [f"{start}\n{stop}" for start, stop in pairwise(["", *starts, ""])]


def bounds(text: str) -> tuple[str, str]:
    """Return the names between which a range of `ranges` lies; an empty one is no bound."""
    start, _, stop = text.partition("\n")
    return start, stop
