"""From a URL to one of obstore's own stores, with patience in the measure of ours."""

from __future__ import annotations

import functools
import os
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from claimcheck.errors import StoreError
from claimcheck.keys import is_key_prefix
from claimcheck.registry import import_vendor
from claimcheck.validation import Check

from .objects import folder

__all__ = ["URL", "Place", "Timeouts", "check_process", "connect"]

_CLASSES = {
    "s3": "S3Store",
    "gs": "GCSStore",
    "az": "AzureStore",
    "file": "LocalStore",
    "memory": "MemoryStore",
}
# The environment may name an address, too, and the second of these would win over the first.
_ENDPOINT_KEYS = {"s3": ("endpoint", "aws_endpoint_url_s3"), "gs": ("base_url",), "az": ("endpoint",)}
_RETRIES = 2

_used_by: int | None = None  # the process in which obstore's threads run


class Timeouts(NamedTuple):
    """In seconds."""

    answer: float
    connect: float


class Place(NamedTuple):
    """Where objects are.

    Attributes:
        scheme: Of the URL.
        bucket: Or container; empty where there is none.
        prefix: What keys begin with.
        path: Of the folder, for ``file``.
    """

    scheme: str
    bucket: str = ""
    prefix: str = ""
    path: str = ""

    @classmethod
    def parse(cls, url: str) -> Place:
        """Read a URL.

        Raises:
            ValueError: It is none of those that are known.
        """
        parts = urlsplit(url)
        plain = not (parts.query or parts.fragment or "@" in parts.netloc or ":" in parts.netloc)
        if not plain or parts.scheme not in _CLASSES or bool(parts.netloc) == (parts.scheme in ("file", "memory")):
            raise ValueError("not a place of objects")
        if parts.scheme == "file":
            if not parts.path.startswith("/"):
                raise ValueError("not an absolute path")
            return cls("file", path=unquote(parts.path))
        prefix = folder(parts.path)
        if not is_key_prefix(prefix) or "//" in prefix:
            raise ValueError("not the beginning of a key")
        return cls(parts.scheme, parts.netloc, prefix)

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}/{self.path.lstrip('/') or self.prefix}"

    @property
    def takes_endpoint(self) -> bool:
        """Whether it is reached through a server that may have another address."""
        return self.scheme in _ENDPOINT_KEYS


def connect(
    place: Place, endpoint_url: str | None, region_name: str | None, tls_ca_file: str | None, timeouts: Timeouts
) -> Any:
    """Make one of obstore's stores for this process.

    Raises:
        StoreError: The process was forked from one that had used obstore.
    """
    kind = getattr(import_vendor("obstore.store", extra="obstore"), _CLASSES[place.scheme])
    check_process()
    if place.scheme == "memory":
        return _memory()
    if place.scheme == "file":
        return kind(place.path)
    config = _config(place, endpoint_url, region_name)
    return kind(
        place.bucket, config=config, client_options=_client(timeouts, tls_ca_file), retry_config=_retries(timeouts)
    )


@functools.cache
def _memory() -> Any:
    """One for the process, so that all of its stores see the same."""
    return import_vendor("obstore.store", extra="obstore").MemoryStore()


def _config(place: Place, endpoint_url: str | None, region_name: str | None) -> dict[str, Any]:
    config: dict[str, Any] = {}
    if place.scheme == "s3":
        # Our checksum covers every byte: a SHA-256 of each body for its signature would take ten times as long.
        config |= {"unsigned_payload": True, "disable_bulk_delete": True}
        config |= {"region": region_name} if region_name else {}
    if endpoint_url:
        config |= dict.fromkeys(_ENDPOINT_KEYS[place.scheme], endpoint_url)
        config |= {"virtual_hosted_style_request": False} if place.scheme == "s3" else {}
    return config


def _client(timeouts: Timeouts, tls_ca_file: str | None) -> dict[str, Any]:
    authorities = {"root_certificate": Path(tls_ca_file).read_bytes()} if tls_ca_file else {}
    return {
        **authorities,
        "allow_http": True,
        "connect_timeout": timedelta(seconds=timeouts.connect),
        "read_timeout": timedelta(seconds=timeouts.answer),
        "timeout": timedelta(days=1),  # of a whole request: a reader may take its time
        "user_agent": "claimcheck",
    }


def _retries(timeouts: Timeouts) -> dict[str, Any]:
    """Its own ten retries in three minutes would hide for long that a server is gone."""
    backoff = {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=2), "base": 2}
    return {"max_retries": _RETRIES, "retry_timeout": timedelta(seconds=timeouts.answer), "backoff": backoff}


def check_process() -> None:
    """Refuse to wait for ever: obstore's threads, of which a process has one set, are not there after a fork."""
    global _used_by
    _used_by = _used_by or os.getpid()
    if _used_by != os.getpid():
        raise StoreError(
            "obstore was used by the process that this one was forked from, and does not work any more: use the store "
            "in the new processes only, or start them with the method 'spawn' or 'forkserver'"
        )


def _is_url(url: str) -> bool:
    try:
        Place.parse(url)
    except ValueError:
        return False
    return True


URL = Check(
    _is_url, "s3://bucket/prefix, gs://bucket/prefix, az://container/prefix, file:///folder or memory:///prefix"
)
"""For an option that names a place of objects."""
