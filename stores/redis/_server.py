"""Connections to a Redis, whatever kind it is: always to the node where a payload's segments live.

redis-py makes the connections (addresses, logins, TLS, database, protocol), keeps them in pools and finds the nodes.
"""

from __future__ import annotations

import functools
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from types import ModuleType
from typing import Any
from urllib.parse import parse_qs, urlsplit

from claimcheck._pointer import Pointer
from claimcheck._registry import import_vendor
from claimcheck.errors import ConfigError
from claimcheck.stores._tls import check_ca_file
from claimcheck.stores.redis._address import Address

__all__ = ["Borrowed", "RedisServer", "segment_key", "tls_options"]

_BY_REFERENCE = 6000  # arguments over this size are sent as they are, not copied into a command


def segment_key(pointer: Pointer, i: int) -> str:
    """The key of one segment, in every version of the pointer."""
    return f"{pointer.key}-{i}"


def tls_options(address: Address, *, ca_file: str | None, validate_hostname: bool) -> dict[str, Any]:
    """Return redis-py's options for TLS. Its own defaults differ between versions: some do not check host names.

    Args:
        address: With TLS.
        ca_file: Certificates of authorities; ``None`` for the system's.
        validate_hostname: Whether the certificate has to be for the host.
    """
    unverified = parse_qs(urlsplit(address.url).query).get("ssl_cert_reqs") == ["none"]  # there is nothing to check
    options = {} if unverified else {"ssl_check_hostname": validate_hostname}
    return options if ca_file is None else {**options, "ssl_ca_certs": ca_file}


class RedisServer:
    """One Redis, a sentinel's master or a cluster; connects at first use.

    Args:
        address: Which one.
        options: Of redis-py's connections: time-outs, and those of `tls_options`.
        name: Returns the name of the store in the configuration.
    """

    def __init__(self, address: Address, options: dict[str, Any], *, name: Callable[[], str]) -> None:
        self._name = name
        self._address = address
        self._options = options
        self._lock = threading.Lock()
        self._made: Any = None

    @property
    def is_cluster(self) -> bool:
        """Whether keys live on several nodes, and may move."""
        return self._address.kind == "cluster"

    @property
    def client(self) -> Any:
        """redis-py's client for commands where speed is not what counts; finds nodes and follows redirects itself."""
        with self._lock:
            if self._made is None:
                self._made = self._connect(import_vendor("redis", extra="redis"))
            return self._made

    def borrow(self, key: str) -> Borrowed:
        """Take a connection out of the pool of the node that has a key; it is connected, and has nothing to read."""
        client = self.client
        if self.is_cluster:
            client = client.get_redis_connection(client.get_node_from_key(key))
        return Borrowed(client.connection_pool)

    def close(self) -> None:
        """Close all connections; the next use makes new ones."""
        with self._lock:
            client, self._made = self._made, None
        if client is None:
            return
        for pool in self._pools(client):  # redis-py itself leaves the pools of a client that was made from an address
            pool.disconnect()
        client.close()

    def _pools(self, client: Any) -> list[Any]:
        if self.is_cluster:
            clients = [node.redis_connection for node in client.get_nodes()]
        else:
            sentinel = getattr(client.connection_pool, "sentinel_manager", None)
            clients = [client, *(sentinel.sentinels if sentinel else ())]
        return [one.connection_pool for one in clients if one is not None]

    def _connect(self, redis: ModuleType) -> Any:
        check_ca_file(self._options.get("ssl_ca_certs"), store=self._name())
        with suppress(ValueError, TypeError):  # the vendor's text may quote a part of the password
            return self._client(redis)
        path = f"stores.{self._name()}.url"
        raise ConfigError(f"{path}: redis-py cannot read this address; is its query right?", path=path)

    def _client(self, redis: ModuleType) -> Any:
        common = {**self._options, "retry": _retry_once(redis)}
        if self.is_cluster:
            nodes = [redis.cluster.ClusterNode(host, port) for host, port in self._address.hosts]
            return redis.cluster.RedisCluster.from_url(self._address.url, startup_nodes=nodes, **common)
        pool = redis.ConnectionPool.from_url(self._address.url, **common)
        pool.connection_class(**pool.connection_kwargs)  # connects to nothing, and says what it does not know
        if self._address.kind == "single":
            return redis.Redis(connection_pool=pool)
        return self._master(redis, pool.connection_kwargs)

    def _master(self, redis: ModuleType, options: dict[str, Any]) -> Any:
        tls = {name: value for name, value in options.items() if name.startswith("ssl_")}
        if self._address.tls:
            tls["ssl"] = True
        own = {name: value for name, value in options.items() if name not in ("host", "port")}
        asking = {**self._options, **tls, "retry": _retry_once(redis)}
        sentinel = redis.sentinel.Sentinel(self._address.hosts, sentinel_kwargs=asking)
        return sentinel.master_for(self._address.service, **{**own, **tls})


class Borrowed:
    """A connection that is in nobody else's hands until it is given back or discarded."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self._connection = pool.get_connection()

    @property
    def socket(self) -> socket.socket | None:
        """Its socket, plain or TLS, to read large replies from without a copy; ``None`` where redis-py hides it."""
        found = getattr(self._connection, "_sock", None)
        return found if isinstance(found, socket.socket) else None

    def send(self, *command: Any) -> None:
        """Send one command, a big value in it from where it lies."""
        self._connection.send_packed_command((_packer() or self._connection.pack_command)(*command))

    def receive(self) -> Any:
        """Return the reply to the oldest command that has none yet; raises the server's refusal."""
        return self._connection.read_response()

    def give_back(self) -> None:
        """Return it to its pool, with nothing left to read."""
        self._pool.release(self._connection)

    def discard(self) -> None:
        """Close it: what it would say next belongs to a question that nobody asks any more."""
        with suppress(Exception):
            self._connection.disconnect()
        self._pool.release(self._connection)


@functools.cache
def _packer() -> Callable[..., Any] | None:
    """What takes big values by reference. With hiredis installed, redis-py itself would copy each command whole."""
    connection = import_vendor("redis.connection", extra="redis")
    serializer = getattr(connection, "PythonRespSerializer", None)
    if serializer is None:
        return None
    pack: Callable[..., Any] = serializer(_BY_REFERENCE, connection.Encoder("utf-8", "strict", False).encode).pack
    return pack


def _retry_once(redis: ModuleType) -> Any:
    """For connections that died in the pool; every command that is sent here may safely be sent twice."""
    return redis.retry.Retry(redis.backoff.NoBackoff(), 1, supported_errors=(redis.exceptions.ConnectionError,))
