"""Which Redis an address names: one server, the master that sentinels watch over, or a cluster."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import unquote, urlsplit

__all__ = ["Address"]

_SCHEME = re.compile(r"(rediss?)(?:\+(cluster|sentinel))?")
_HOST = re.compile(r"(?P<host>\[[^\]\s]+\]|[^:\[\]@,\s]+)(?::(?P<port>\d{1,5}))?")
_DATABASE = re.compile(r"/?\d*/?")
_SERVICE = re.compile(r"/(?P<service>[^/]+)(?P<database>/\d+)?")
_PORTS = {"cluster": 6379, "sentinel": 26379}


@dataclass(frozen=True, slots=True)
class Address:
    """A parsed address; its repr has no credentials.

    Attributes:
        kind: What kind of deployment it names.
        url: For redis-py, with the first host, credentials, database, TLS and options.
        hosts: Nodes of a cluster or sentinels; empty for a single server.
        service: The name of the master that sentinels monitor.
        location: Hosts and database, without credentials, for errors and logs.
    """

    kind: Literal["single", "cluster", "sentinel"]
    url: str = field(repr=False)
    hosts: tuple[tuple[str, int], ...]
    service: str
    location: str

    @property
    def tls(self) -> bool:
        """Whether connections are encrypted."""
        return self.url.startswith("rediss:")

    @classmethod
    def parse(cls, text: str) -> Address:
        """Parse an address; a ``/`` or ``#`` in a password has to be percent-encoded.

        Raises:
            ValueError: Not an address of Redis; the text is not quoted, since it may hold a password.
        """
        parts = urlsplit(text)
        if parts.fragment or not text.startswith(f"{parts.scheme}://"):
            raise ValueError("no address of a Redis")
        if parts.scheme == "unix" and parts.path:
            path = "(unreadable url)" if "@" in parts.path + parts.query else parts.path
            return cls("single", text, (), "", path)
        scheme = _SCHEME.fullmatch(parts.scheme)
        if scheme is None:
            raise ValueError("no scheme of a Redis")
        login, at, places = parts.netloc.rpartition("@")
        query = f"?{parts.query}" if parts.query else ""
        kind, tls = scheme[2] or "single", scheme[1]
        if kind == "single":
            return cls._single(text, places, parts.path)
        hosts = tuple(_host(place, _PORTS[kind]) for place in places.split(","))
        service, database = ("", parts.path) if kind == "cluster" else _service(parts.path)
        if not _DATABASE.fullmatch(database):
            raise ValueError("no database number")
        first, port = hosts[0]
        name = f"[{first}]" if ":" in first else first
        url = f"{tls}://{login}{at}{name}:{port}{database}{query}"
        return cls("cluster" if kind == "cluster" else "sentinel", url, hosts, service, f"{places}{parts.path}")

    @classmethod
    def _single(cls, text: str, place: str, path: str) -> Address:
        if place:
            _host(place, 6379)
        if not _DATABASE.fullmatch(path):
            raise ValueError("no database number")
        return cls("single", text, (), "", f"{place}{path}")


def _host(place: str, port: int) -> tuple[str, int]:
    found = _HOST.fullmatch(place)
    if found is None or int(found["port"] or port) > 65535:
        raise ValueError("no host and port")
    return unquote(found["host"].strip("[]")), int(found["port"] or port)


def _service(path: str) -> tuple[str, str]:
    found = _SERVICE.fullmatch(path.rstrip("/"))
    if found is None:
        raise ValueError("no name of a service")
    return unquote(found["service"]), found["database"] or ""
