"""A single Redis server: plain, with several protected endpoints, or with settings of a test."""

from __future__ import annotations

import contextlib
import functools
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.real.certificates import make_certificate
from tests.real.process import Location, Server, running

PASSWORD = "open sesame/#?&"  # with every character that a URL must escape
_PASSWORD_IN_URL = "open%20sesame%2F%23%3F%26"
_WORKER = "worker"
_WORKER_PASSWORD = "pw"
# The rights that a store needs: its own keys, and no command that affects other users of the server.
_WORKER_MAY = "~claimcheck:* ~kafka-over-redis-* +@read +@write +@connection -@dangerous"


@dataclass(frozen=True)
class RedisEndpoints:
    """URLs of one server. Only the ACL user writes to database 3."""

    url: str = field(repr=False)
    tls_url: str = field(repr=False)
    unix_url: str = field(repr=False)
    acl_url: str = field(repr=False)


@contextlib.contextmanager
def redis(*arguments: str) -> Iterator[str]:
    """Run a Redis without persistence and yield its URL; `arguments` go to its command line."""
    with redis_server(*arguments) as server:
        yield redis_url(server)


@contextlib.contextmanager
def redis_server(*arguments: str) -> Iterator[Server]:
    """Run a Redis that a test may kill and restart; it loses its data."""
    with running(functools.partial(redis_command, *arguments), answers_ping) as server:
        yield server


def redis_url(server: Server) -> str:
    """Return the URL of a server."""
    return f"redis://127.0.0.1:{server.port}/0"


@contextlib.contextmanager
def redis_endpoints() -> Iterator[RedisEndpoints]:
    """Run a Redis with passwords that listens on a port, a TLS port and a unix socket."""
    with running(_endpoints_command, answers_ping, prepare=make_certificate) as server:
        folder, at = server.location.folder, f"127.0.0.1:{server.port}"
        yield RedisEndpoints(
            url=f"redis://:{_PASSWORD_IN_URL}@{at}/0",
            tls_url=f"rediss://:{_PASSWORD_IN_URL}@127.0.0.1:{server.location.extra_port}/0?ssl_ca_certs={folder}/ca.crt",
            unix_url=f"unix://:{_PASSWORD_IN_URL}@{folder}/redis.sock?db=0",
            acl_url=f"redis://{_WORKER}:{_WORKER_PASSWORD}@{at}/3",
        )


def redis_command(*arguments: str | Location) -> list[str]:
    """Return the command line of a Redis; the location comes last, after arguments for the server."""
    *more, location = arguments
    assert isinstance(location, Location)
    return ["redis-server", "--bind", "127.0.0.1", "--port", str(location.port), "--dir", str(location.folder),
            "--save", "", "--appendonly", "no", *map(str, more)]  # fmt: skip


def answers_ping(location: Location) -> bool:
    """Return whether a server replies; a request for a password is a reply."""
    return ask(location.port, "PING").startswith((b"+PONG", b"-NOAUTH"))


def ask(port: int, *commands: str) -> bytes:
    """Send commands without a client library and return the raw replies."""
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        connection.sendall("".join(f"{command}\r\n" for command in commands).encode())
        connection.shutdown(socket.SHUT_WR)  # the server replies, then disconnects
        return b"".join(iter(functools.partial(connection.recv, 1 << 16), b""))


def _endpoints_command(location: Location) -> list[str]:
    folder = location.folder
    return redis_command(
        "--requirepass", PASSWORD,
        "--user", _WORKER, "on", f">{_WORKER_PASSWORD}", *_WORKER_MAY.split(),
        "--unixsocket", f"{folder}/redis.sock",
        "--tls-port", str(location.extra_port), "--tls-auth-clients", "no",
        "--tls-ca-cert-file", f"{folder}/ca.crt",
        "--tls-cert-file", f"{folder}/server.crt", "--tls-key-file", f"{folder}/server.key",
        location,
    )  # fmt: skip
