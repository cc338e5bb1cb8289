"""Connections to Redis: one server, the master that sentinels monitor, or a cluster; and the replies on them.

redis-py makes the connections (addresses, logins, TLS, database, protocol), keeps them in pools and finds the nodes.
"""

from __future__ import annotations

import functools
import os
import re
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Literal
from urllib.parse import parse_qs, unquote, urlsplit

from claimcheck._registry import made_by
from claimcheck._texts import split_url
from claimcheck._validation import fail
from claimcheck._wire.buffers import Buffer
from claimcheck._wire.pointer import Pointer
from claimcheck.errors import import_vendor
from claimcheck.stores._common import check_ca_file

_SCHEME = re.compile(r"(rediss?)(?:\+(cluster|sentinel))?")
_HOST = re.compile(r"(?P<host>\[[^\]\s]+\]|[^:\[\]@,\s]+)(?::(?P<port>\d{1,5}))?")
_DATABASE = re.compile(r"/?\d*/?")
_SERVICE = re.compile(r"/(?P<service>[^/]+)(?P<database>/\d+)?")
_PORTS = {"single": 6379, "cluster": 6379, "sentinel": 26379}
_MAX_KEPT = 16
_MAX_CONNECTIONS = 1 << 16  # the threads of the caller are the limit; redis-py raises an error from 100 on
_BY_REFERENCE = 6000  # arguments over this size are not copied into a command

_LINE_BYTES = 64  # the longest line that is expected; as much of a large value is copied
_EXPECTED = b"$+:\r"  # what such a line begins with

_OVERHEAD_BYTES = 16  # the most bytes of a reply beside its value
_CLOSED = "the server closed the connection in the middle of a reply"

NOT_REACHED = "_claimcheck_not_reached"
"""An attribute of the error of a first connection: nothing was written, and `_delete` would only wait again."""

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
        kind: Any = scheme[2] or "single"
        names = places.split(",") if scheme[2] else [places] if places else []
        hosts = tuple(_host(place, _PORTS[kind]) for place in names)
        service, database = _service(parts.path) if kind == "sentinel" else ("", parts.path)
        if not _DATABASE.fullmatch(database):
            raise ValueError("not a database number")
        if kind != "single":
            name = f"[{hosts[0][0]}]" if ":" in hosts[0][0] else hosts[0][0]
            query = f"?{parts.query}" if parts.query else ""
            text = f"{scheme[1]}://{login}{at}{name}:{hosts[0][1]}{database}{query}"
        return cls(kind, text, hosts, service, f"{places}{parts.path}")


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
    return f"{pointer.key}-{i}"


def tls_options(address: Address, *, ca_file: str | None) -> dict[str, Any]:
    """Return redis-py's options for TLS. Its defaults differ between versions: some do not check host names."""
    unverified = parse_qs(urlsplit(address.url).query).get("ssl_cert_reqs") == ["none"]
    options = {} if unverified else {"ssl_check_hostname": True}
    return options if ca_file is None else {**options, "ssl_ca_certs": ca_file}


class RedisServer:
    """A Redis server, a sentinel's master or a cluster; connects at first use."""

    def __init__(
        self, address: Address, options: dict[str, Any], *, make: str | None = None, name: Callable[[], str]
    ) -> None:
        self._make, self._name = make, name
        self._address = address
        self._options = options
        self._lock = threading.Lock()
        self._connected: Any = None
        self._kept: list[Borrowed] = []
        self._process = 0  # that opened the kept connections

    @property
    def is_cluster(self) -> bool:
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
        path = f"stores.{self._name()}"
        made = made_by(self._make, path=f"{path}.client")
        if not isinstance(made, Mapping):
            return self._checked(redis, made, f"{path}.client")
        with suppress(ValueError, TypeError):  # the vendor's text may quote a part of the password
            return self._client(redis, {**self._options, "retry": _retry_once(redis), **made})
        found = "an address, or arguments, that redis-py cannot use"
        return fail(f"{path}.url", found=found, expected="a valid query, and arguments of redis-py")

    def _checked(self, redis: ModuleType, client: Any, path: str) -> object:
        """Check a caller's client, which has to fit the address, and to return bytes."""
        kind = redis.cluster.RedisCluster if self.is_cluster else redis.Redis
        if not isinstance(client, kind) or client.get_connection_kwargs().get("decode_responses"):
            fail(path, found=f"a {type(client).__name__}", expected=f"a {kind.__name__} without decode_responses")
        return client

    def _client(self, redis: ModuleType, common: dict[str, Any]) -> object:
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

    @functools.cached_property
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
    """Return a command as it is sent; its arguments are views, text or numbers."""
    parts: list[Buffer] = [b"*%d" % len(command)]
    for argument in command:
        data = argument if type(argument) is memoryview else str(argument).encode()
        parts += (b"\r\n$%d\r\n" % len(data), data)
    return b"".join((*parts, b"\r\n"))


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


# Replies with few copies --------------------------------------------------------------------------------------------


def is_lost(error: BaseException) -> bool:
    """Whether a connection was lost: what had no reply may be sent again. After a time-out that would take as long."""
    kinds = (OSError, import_vendor("redis.exceptions", extra="redis").ConnectionError)
    return isinstance(error, kinds) and not isinstance(error, TimeoutError)


class OtherReplyError(Exception):
    """An unexpected reply, or a connection without a usable socket; redis-py has to repeat the command."""


class Replies:
    """Replies on one connection, in order: values of known sizes, received directly into the caller's memory.

    redis-py's parsers copy a large reply two to four times. Any other reply than the expected is an `OtherReplyError`.
    """

    def __init__(self, borrowed: Borrowed, *, at_once: int = _LINE_BYTES) -> None:
        sock = borrowed.socket
        if sock is None:
            raise OtherReplyError
        self._socket = sock
        self._at_once = at_once  # except into the memory of a caller
        self._received, self._next = b"", 0  # what was received, and how much of it was returned
        self._owes_end = False  # the line end of a value, which arrives with the next reply
        self.left = 0  # bytes of the current value still to come

    @property
    def is_idle(self) -> bool:
        """Whether the last reply was read to its end, and nothing came after it."""
        return self._next == len(self._received) and not self.left and not self._owes_end

    def send(self, commands: bytes) -> None:
        self._socket.sendall(commands)

    def expect(self, line: bytes) -> None:
        """Read the next line, which has to be this one."""
        if self.is_idle:
            self._received, self._next = self._socket.recv(self._at_once), 0
            if self._received == line + b"\r\n":
                self._next = len(self._received)
                return
        if self._line() != line:
            raise OtherReplyError

    def begin(self, size: int) -> bool:
        """Read the beginning of a value of ``size`` bytes; returns false for an empty one, and reads it to its end."""
        self.end()
        line = self._line()
        self._owes_end = True
        if line == b"$0":
            self.end()
            return False
        if line != b"$%d" % size:
            raise OtherReplyError
        self.left = size
        return True

    def fill(self, view: memoryview) -> int:
        """Read into a buffer until it is full or the value ends; returns the number of bytes."""
        wanted = min(len(view), self.left)
        done = min(wanted, len(self._received) - self._next)
        view[:done] = self._received[self._next : self._next + done]
        self._next += done
        while done < wanted:
            count = self._socket.recv_into(view[done:wanted])
            if not count:
                raise ConnectionError(_CLOSED)
            done += count
        self.left -= done
        return done

    def value(self, size: int) -> bytes:
        """Return a small value; an empty one if it does not exist."""
        head = b"$%d\r\n" % size
        if self._next == len(self._received):  # between two values
            self._received, self._next = self._socket.recv(self._at_once), 0
        start = self._next + len(head)
        if self._received.startswith(head, self._next) and self._received.startswith(b"\r\n", start + size):
            self._next = start + size + 2
            return self._received[start : start + size]
        if not self.begin(size):
            return b""
        value = bytearray(size)
        self.fill(memoryview(value))
        self.end()
        return bytes(value)

    def end(self) -> None:
        """Read the end of the last value, after which the connection has nothing to read."""
        if self._owes_end:
            self.expect(b"")
            self._owes_end = False

    def _line(self) -> bytes:
        """Return the next line; raises an error as soon as it turns out not to be an expected one."""
        while True:
            start = self._next
            end = self._received.find(b"\r\n", start, start + _LINE_BYTES)
            if end >= 0:
                self._next = end + 2
                return self._received[start:end]
            more = len(self._received) - start
            if more >= _LINE_BYTES or (more and self._received[start] not in _EXPECTED):
                raise OtherReplyError
            self._receive()

    def _receive(self) -> None:
        more = self._socket.recv(self._at_once)
        if not more:
            raise ConnectionError(_CLOSED)
        self._received, self._next = self._received[self._next :] + more, 0


class SmallCommands:
    """Commands for small values, sent together on one connection; ``sizes`` has 0 for one that writes."""

    def __init__(self, server: RedisServer, commands: Sequence[bytes], sizes: Sequence[int]) -> None:
        self._sizes = sizes
        self._borrowed: Borrowed | None = None
        self._error: BaseException | None = None
        self.answered = 0
        try:
            self._borrowed = server.borrow_kept()
        except Exception as error:
            setattr(error, NOT_REACHED, True)
            self._error = error
            return
        try:
            at_once = sum(sizes) + _OVERHEAD_BYTES * len(sizes)
            self._replies = Replies(self._borrowed, at_once=min(at_once, 2 * SMALL_BYTES))
            self._replies.send(b"".join(commands))
        except BaseException as error:
            self._lose(error)

    def receive(self, number: int) -> bytes | None:
        """Return a value, empty if it does not exist, or ``b"OK"``; ``None`` if the command has to be sent again."""
        reply = None
        try:
            while self._borrowed is not None and self.answered <= number:  # some before this one may not be wanted
                reply = self._receive()
        except BaseException as error:
            if not isinstance(error, Exception) and not self._sizes[self.answered]:
                with suppress(Exception):  # so that the write does not arrive after its deletion
                    self._receive()
            self._lose(error)
            reply = None  # not that of a command before this one
        if self._error is not None:
            raise self._error.with_traceback(None)  # after a time-out, for each: they waited at the same time
        if self.answered == len(self._sizes):
            self.close()
        return reply

    def close(self) -> None:
        """Give the connection back, or discard it if a reply is still to come."""
        borrowed, self._borrowed = self._borrowed, None
        if borrowed is not None:
            is_idle = self.answered == len(self._sizes) and self._replies.is_idle
            (borrowed.give_back if is_idle else borrowed.discard)()

    def _receive(self) -> bytes:
        size, reply = self._sizes[self.answered], b"OK"
        if size:
            reply = self._replies.value(size)
        else:
            self._replies.expect(b"+OK")
        self.answered += 1
        return reply

    def _lose(self, error: BaseException) -> None:
        """Discard the connection; an error after which commands must not be sent again is that of all."""
        borrowed, self._borrowed = self._borrowed, None
        if borrowed is not None:
            borrowed.discard()
        if not is_lost(error) and not isinstance(error, OtherReplyError):
            self._error = error
