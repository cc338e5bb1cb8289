"""Connections to Redis: one server, the master that sentinels monitor, or a cluster; and the keys that are there.

redis-py makes the connections (addresses, logins, TLS, database, protocol), keeps them in pools and finds the nodes.
"""

from __future__ import annotations

import functools
import os
import re
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Literal, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

from claimcheck._texts import split_url
from claimcheck._wire.buffers import Buffer
from claimcheck._wire.pointer import Pointer
from claimcheck.errors import ConfigError, import_vendor
from claimcheck.stores._common import check_ca_file

_SCHEME = re.compile(r"(rediss?)(?:\+(cluster|sentinel))?")
_HOST = re.compile(r"(?P<host>\[[^\]\s]+\]|[^:\[\]@,\s]+)(?::(?P<port>\d{1,5}))?")
_DATABASE = re.compile(r"/?\d*/?")
_SERVICE = re.compile(r"/(?P<service>[^/]+)(?P<database>/\d+)?")
_PORTS = {"cluster": 6379, "sentinel": 26379}
_MAX_KEPT = 16
_MAX_CONNECTIONS = 1 << 16  # the threads of the caller are the limit; redis-py raises an error from 100 on
_SCAN_KEYS = 1000
_WINDOW = 100
_SPECIAL = "\\*?[]"
_BY_REFERENCE = 6000  # arguments over this size are not copied into a command

SMALL_BYTES = 1 << 17
"""Up to this many bytes, copying a value takes less time than another system call."""


@dataclass(frozen=True, slots=True)
class Address:
    """A parsed address; its repr has no credentials."""

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
        """Parse an address; a ``/`` or ``#`` in a password has to be percent-encoded."""
        parts = split_url(text)
        if parts.fragment or not text.startswith(f"{parts.scheme}://"):
            raise ValueError("not a Redis address")
        if parts.scheme == "unix" and parts.path:
            path = "(unreadable url)" if "@" in parts.path + parts.query else parts.path
            return cls("single", text, (), "", path)
        scheme = _SCHEME.fullmatch(parts.scheme)
        if scheme is None:
            raise ValueError("not a Redis scheme")
        login, at, places = parts.netloc.rpartition("@")
        query = f"?{parts.query}" if parts.query else ""
        kind, tls = scheme[2] or "single", scheme[1]
        if kind == "single":
            return cls._single(text, places, parts.path)
        hosts = tuple(_host(place, _PORTS[kind]) for place in places.split(","))
        service, database = ("", parts.path) if kind == "cluster" else _service(parts.path)
        if not _DATABASE.fullmatch(database):
            raise ValueError("not a database number")
        first, port = hosts[0]
        name = f"[{first}]" if ":" in first else first
        url = f"{tls}://{login}{at}{name}:{port}{database}{query}"
        return cls("cluster" if kind == "cluster" else "sentinel", url, hosts, service, f"{places}{parts.path}")

    @classmethod
    def _single(cls, text: str, place: str, path: str) -> Address:
        if place:
            _host(place, 6379)
        if not _DATABASE.fullmatch(path):
            raise ValueError("not a database number")
        return cls("single", text, (), "", f"{place}{path}")


def _host(place: str, port: int) -> tuple[str, int]:
    match = _HOST.fullmatch(place)
    if match is None or int(match["port"] or port) > 65535:
        raise ValueError("not a host and port")
    return unquote(match["host"].strip("[]")), int(match["port"] or port)


def _service(path: str) -> tuple[str, str]:
    match = _SERVICE.fullmatch(path.rstrip("/"))
    if match is None:
        raise ValueError("not the name of a service")
    return unquote(match["service"]), match["database"] or ""


def segment_key(pointer: Pointer, i: int) -> str:
    """Return the key of one segment."""
    return f"{pointer.key}-{i}"


def tls_options(address: Address, *, ca_file: str | None) -> dict[str, Any]:
    """Return redis-py's options for TLS. Its defaults differ between versions: some do not check host names."""
    unverified = parse_qs(urlsplit(address.url).query).get("ssl_cert_reqs") == ["none"]
    options = {} if unverified else {"ssl_check_hostname": True}
    return options if ca_file is None else {**options, "ssl_ca_certs": ca_file}


class RedisServer:
    """A Redis server, a sentinel's master or a cluster; connects at first use."""

    def __init__(self, address: Address, options: dict[str, Any], *, name: Callable[[], str]) -> None:
        self._name = name
        self._address = address
        self._options = options
        self._lock = threading.Lock()
        self._connected: Any = None
        self._kept: list[Borrowed] = []
        self._process = 0  # that opened the kept connections

    @property
    def is_cluster(self) -> bool:
        """Whether keys are on several nodes, and may move."""
        return self._address.kind == "cluster"

    @property
    def client(self) -> Any:
        """redis-py's client, for commands that need not be fast; it finds nodes and follows redirects."""
        with self._lock:
            if self._connected is None:
                self._connected = self._connect(import_vendor("redis", extra="redis"))
            return self._connected

    def borrow(self, key: str) -> Borrowed:
        """Take a connection with nothing to read from the pool of the node that has a key."""
        client = self.client
        if self.is_cluster:
            client = client.get_redis_connection(client.get_node_from_key(key))
        return Borrowed(client.connection_pool)

    def borrow_kept(self) -> Borrowed:
        """Take a connection for one small command, which may have been lost: then repeat the command with `borrow`."""
        if self._address.kind != "single":  # elsewhere the pool notices that another server took over
            return self.borrow("")
        if self._process != os.getpid():
            self._kept, self._process = [], os.getpid()
        kept = self._kept
        try:
            return kept.pop()
        except IndexError:
            pass
        pool = self.client.connection_pool
        return Borrowed(pool, kept if pool.max_connections >= _MAX_CONNECTIONS else None)

    def nodes(self) -> list[tuple[str, Any]]:
        """Return the name and the client of each server that has keys, by name; a single server has no name."""
        client = self.client
        if not self.is_cluster:
            return [("", client)]
        primaries = {node.name: client.get_redis_connection(node) for node in client.get_primaries()}
        return sorted(primaries.items())

    def close(self) -> None:
        """Close all connections; the next use makes new ones."""
        with self._lock:
            client, self._connected, self._kept = self._connected, None, []
        if client is None:
            return
        for pool in self._pools(client):  # redis-py does not close the pools of a client made from an address
            pool.disconnect()
        client.close()

    def _pools(self, client: Any) -> list[Any]:
        if self.is_cluster:
            clients = [node.redis_connection for node in client.get_nodes()]
        else:
            sentinel = getattr(client.connection_pool, "sentinel_manager", None)
            clients = [client, *(sentinel.sentinels if sentinel else ())]
        return [one.connection_pool for one in clients if one is not None]

    def _connect(self, redis: ModuleType) -> object:
        check_ca_file(self._options.get("ssl_ca_certs"), store=self._name())
        with suppress(ValueError, TypeError):  # the vendor's text may quote a part of the password
            return self._client(redis)
        path = f"stores.{self._name()}.url"
        raise ConfigError(f"{path}: redis-py cannot read this address; check its query", path=path)

    def _client(self, redis: ModuleType) -> object:
        common = {**self._options, "retry": _retry_once(redis)}
        if self.is_cluster:
            nodes = [redis.cluster.ClusterNode(host, port) for host, port in self._address.hosts]
            return redis.cluster.RedisCluster.from_url(self._address.url, startup_nodes=nodes, **common)
        pool = redis.ConnectionPool.from_url(self._address.url, max_connections=_MAX_CONNECTIONS, **common)
        pool.connection_class(**pool.connection_kwargs)  # does not connect, but raises for unknown options
        if self._address.kind == "single":
            return redis.Redis(connection_pool=pool)
        return self._master(redis, pool.connection_kwargs)

    def _master(self, redis: ModuleType, options: dict[str, Any]) -> object:
        tls = {name: value for name, value in options.items() if name.startswith("ssl_")}
        if self._address.tls:
            tls["ssl"] = True
        own = {name: value for name, value in options.items() if name not in ("host", "port")}
        sentinel_options = {**self._options, **tls, "retry": _retry_once(redis)}
        sentinel = redis.sentinel.Sentinel(self._address.hosts, sentinel_kwargs=sentinel_options)
        return sentinel.master_for(self._address.service, **{**own, **tls})


class Borrowed:
    """A connection taken from a pool, for exclusive use until it is returned or discarded."""

    def __init__(self, pool: Any, kept: list[Borrowed] | None = None) -> None:
        self._pool = pool
        self._kept = kept
        self._connection = pool.get_connection()

    @property
    def socket(self) -> socket.socket | None:
        """Its socket, plain or TLS, to read large replies without a copy; ``None`` if redis-py has another kind."""
        sock = getattr(self._connection, "_sock", None)
        return sock if isinstance(sock, socket.socket) else None

    def send(self, *command: object) -> None:
        """Send one command; a large value in it is not copied."""
        self._connection.send_packed_command((_packer() or self._connection.pack_command)(*command))

    def send_small(self, *command: object) -> None:
        """Send one command with all its values at once."""
        self._connection.send_packed_command([packed(command)])

    def receive(self) -> object:
        """Return the reply to the oldest unanswered command; raises the server's error."""
        return self._connection.read_response()

    def give_back(self) -> None:
        """Return it to its pool, or keep it; nothing may be left to read."""
        if self._kept is not None and len(self._kept) < _MAX_KEPT:
            self._kept.append(self)
        else:
            self._pool.release(self._connection)

    def discard(self) -> None:
        """Close it, because replies that no longer matter may still arrive."""
        with suppress(Exception):
            self._connection.disconnect()
        self._pool.release(self._connection)
        while self._kept:  # probably lost, too; the pool checks them
            with suppress(IndexError):
                other = self._kept.pop()
                self._pool.release(other._connection)


def packed(command: tuple[object, ...]) -> bytes:
    """Return a command as it is sent; its arguments are bytes, text or numbers."""
    parts: list[Buffer] = [b"*%d\r\n" % len(command)]
    for argument in command:
        data = argument if isinstance(argument, (bytes, memoryview)) else str(argument).encode()
        parts += (b"$%d\r\n" % len(data), data, b"\r\n")
    return b"".join(parts)


@functools.cache
def _packer() -> Callable[..., Any] | None:
    """Return a packer that takes large values by reference; redis-py with hiredis would copy each command."""
    connection = import_vendor("redis.connection", extra="redis")
    serializer = getattr(connection, "PythonRespSerializer", None)
    if serializer is None:
        return None
    pack: Callable[..., Any] = serializer(_BY_REFERENCE, connection.Encoder("utf-8", "strict", False).encode).pack
    return pack


def _retry_once(redis: ModuleType) -> object:
    """Retry on connections that died in the pool; every command sent here may safely be sent twice."""
    return redis.retry.Retry(redis.backoff.NoBackoff(), 1, supported_errors=(redis.exceptions.ConnectionError,))


class FirstSegment(NamedTuple):
    """The first segment of a payload."""

    key: str
    size: int
    ttl_ms: int | None
    position: str


class Keyspace:
    """The keys below a prefix."""

    def __init__(self, server: RedisServer, prefix: str) -> None:
        self._server = server
        self._pattern = "".join(f"\\{each}" if each in _SPECIAL else each for each in prefix) + "*-0"

    def first_segments(self, after: str | None) -> Iterator[FirstSegment]:
        """Yield the first segment of each payload, some perhaps twice, as SCAN does."""
        start, _, cursor = (after or "").rpartition(" ")
        for name, client in self._server.nodes():
            if name >= start:
                yield from self._scan_node(name, client, int(cursor or 0) if name == start else 0)

    def _scan_node(self, name: str, client: Any, cursor: int) -> Iterator[FirstSegment]:
        while True:
            following, names = client.scan(cursor, match=self._pattern, count=_SCAN_KEYS)
            yield from self._described(client, list(names), f"{name} {cursor}")
            cursor = int(following)
            if not cursor:
                return

    def _described(self, client: Any, names: list[bytes], position: str) -> Iterator[FirstSegment]:
        pipeline = client.pipeline(transaction=False)
        for name in names:
            pipeline.strlen(name)
            pipeline.pttl(name)
        replies = iter(pipeline.execute(raise_on_error=False) if names else ())
        for name, size, ttl in zip(names, replies, replies, strict=False):
            if isinstance(size, int) and isinstance(ttl, int) and ttl != -2:  # -2: it is gone; errors: no segment
                key = _text(name).removesuffix("-0")
                yield FirstSegment(key, size, None if ttl < 0 else ttl, position)

    def first_segment(self, key: str) -> FirstSegment | None:
        """Return the first segment of one payload; ``None`` if it is gone."""
        return next(self._described(self._server.client, [f"{key}-0".encode()], ""), None)

    def unlink_first_segments(self, keys: Sequence[str]) -> list[object]:
        """Delete the first segment of each payload; return the number of deleted entries, or an error, for each."""
        pipeline = self._server.client.pipeline(transaction=False)
        for key in keys:
            pipeline.unlink(f"{key}-0")
        return list(pipeline.execute(raise_on_error=False))

    def segments(self, keys: Sequence[str]) -> list[int]:
        """Return the number of segments of each payload: that of the last one that exists, plus one."""
        return [self._count(key) for key in keys]

    def _count(self, key: str) -> int:
        count = first = 0
        while True:
            pipeline = self._server.client.pipeline(transaction=False)
            for i in range(first, first + _WINDOW):
                pipeline.exists(f"{key}-{i}")
            found = pipeline.execute()
            if not any(found):
                return count
            count = first + _WINDOW - found[::-1].index(1)
            first += _WINDOW


def _text(name: bytes | str) -> str:
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else name
