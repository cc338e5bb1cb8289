"""A Redis that stands alone: plain, with more than one door, or with whatever settings a test asks for."""

from __future__ import annotations

import contextlib
import functools
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.real.authority import make_certificate
from tests.real.process import Server, Spot, running

PASSWORD = "open sesame/#?&"  # a person's idea of a good password, and every bit of it must be escaped in a URL
_PASSWORD_IN_URL = "open%20sesame%2F%23%3F%26"
_WORKER = "worker"
_WORKER_PASSWORD = "pw"
# No more than a store needs: its own keys, and nothing that would harm other users of the server.
_WORKER_MAY = "~claimcheck:* ~kafka-over-redis-* +@read +@write +@connection -@dangerous"


@dataclass(frozen=True)
class RedisDoors:
    """One server, and the ways in. Everything that is stored in database 3 is the worker's."""

    url: str = field(repr=False)
    tls_url: str = field(repr=False)
    unix_url: str = field(repr=False)
    acl_url: str = field(repr=False)


@contextlib.contextmanager
def redis(*arguments: str) -> Iterator[str]:
    """Run a Redis that keeps nothing on disk, with further arguments if given; gives its URL."""
    with redis_server(*arguments) as server:
        yield redis_url(server)


@contextlib.contextmanager
def redis_server(*arguments: str) -> Iterator[Server]:
    """The same, as a process that may be killed and started again; it has forgotten everything then."""
    with running(functools.partial(redis_command, *arguments), answers_ping) as server:
        yield server


def redis_url(server: Server) -> str:
    """Where a client finds it."""
    return f"redis://127.0.0.1:{server.port}/0"


@contextlib.contextmanager
def redis_doors() -> Iterator[RedisDoors]:
    """Run a Redis behind passwords that listens at a port, at a port with TLS and at a unix socket."""
    with running(_doors_command, answers_ping, prepare=make_certificate) as server:
        folder, at = server.spot.folder, f"127.0.0.1:{server.port}"
        yield RedisDoors(
            url=f"redis://:{_PASSWORD_IN_URL}@{at}/0",
            tls_url=f"rediss://:{_PASSWORD_IN_URL}@127.0.0.1:{server.spot.spare}/0?ssl_ca_certs={folder}/ca.crt",
            unix_url=f"unix://:{_PASSWORD_IN_URL}@{folder}/redis.sock?db=0",
            acl_url=f"redis://{_WORKER}:{_WORKER_PASSWORD}@{at}/3",
        )


def redis_command(*arguments: str | Spot) -> list[str]:
    """The command line of a Redis at a spot, which is the last argument, after arguments for the server."""
    *more, spot = arguments
    assert isinstance(spot, Spot)
    return ["redis-server", "--bind", "127.0.0.1", "--port", str(spot.port), "--dir", str(spot.folder),
            "--save", "", "--appendonly", "no", *map(str, more)]  # fmt: skip


def answers_ping(spot: Spot) -> bool:
    """Whether a server is there; that it wants a password first is an answer, too."""
    return says(spot.port, "PING").startswith((b"+PONG", b"-NOAUTH"))


def says(port: int, *commands: str) -> bytes:
    """Ask a server, without any client library; gives its answers as they came."""
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        connection.sendall("".join(f"{command}\r\n" for command in commands).encode())
        connection.shutdown(socket.SHUT_WR)  # it answers what it was asked and then hangs up
        return b"".join(iter(functools.partial(connection.recv, 1 << 16), b""))


def _doors_command(spot: Spot) -> list[str]:
    folder = spot.folder
    return redis_command(
        "--requirepass", PASSWORD,
        "--user", _WORKER, "on", f">{_WORKER_PASSWORD}", *_WORKER_MAY.split(),
        "--unixsocket", f"{folder}/redis.sock",
        "--tls-port", str(spot.spare), "--tls-auth-clients", "no",
        "--tls-ca-cert-file", f"{folder}/ca.crt",
        "--tls-cert-file", f"{folder}/server.crt", "--tls-key-file", f"{folder}/server.key",
        spot,
    )  # fmt: skip
