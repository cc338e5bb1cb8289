"""Redis servers: a single one, Redis Cluster with three masters, and a master with a replica under Redis Sentinel."""

from __future__ import annotations

import contextlib
import functools
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.real.process import Location, Server, make_certificate, running, wait_until

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


# Groups ---------------------------------------------------------------------------------------------------------------


_SERVICE = "mymaster"


@dataclass(frozen=True)
class RedisCluster:
    """Three masters that share the slots."""

    nodes: tuple[Server, ...]

    @property
    def url(self) -> str:
        """URL of all nodes, as a store takes it."""
        return f"redis+cluster://{','.join(f'127.0.0.1:{node.port}' for node in self.nodes)}"

    def wait(self) -> None:
        """Wait until every node reports the cluster as complete."""
        wait_until(lambda: all(map(_complete, self.nodes)), "every node reports the cluster as complete")


@contextlib.contextmanager
def redis_cluster() -> Iterator[RedisCluster]:
    """Run a cluster, which is ready when every node reports it as complete."""
    with contextlib.ExitStack() as stack:
        nodes = tuple(stack.enter_context(running(_node_command, answers_ping)) for _ in range(3))
        command = ["redis-cli", "--cluster", "create", *(f"127.0.0.1:{node.port}" for node in nodes), "--cluster-yes"]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
        cluster = RedisCluster(nodes)
        cluster.wait()
        yield cluster


def _node_command(location: Location) -> list[str]:
    return redis_command("--cluster-enabled", "yes", "--cluster-port", str(location.extra_port), location)


def _complete(node: Server) -> bool:
    reply = ask(node.port, "CLUSTER INFO")
    return b"cluster_state:ok" in reply and b"cluster_known_nodes:3" in reply


class RedisSentinel:
    """A master and its replica, monitored by a sentinel.

    Attributes:
        sentinel: The monitoring process.
    """

    def __init__(self, sentinel: Server, data: tuple[Server, Server]) -> None:
        self.sentinel = sentinel
        self._data = data

    @property
    def url(self) -> str:
        """URL, as a store takes it."""
        return f"redis+sentinel://127.0.0.1:{self.sentinel.port}/{_SERVICE}/0"

    @property
    def master(self) -> Server:
        """The current master according to the sentinel."""
        reply = self._ask("GET-MASTER-ADDR-BY-NAME").split(b"\r\n")
        return next(server for server in self._data if str(server.port).encode() in reply)

    @property
    def replica(self) -> Server:
        """The server that is not the master."""
        master = self.master
        return next(server for server in self._data if server is not master)

    def wait_for(self, master: Server) -> None:
        """Wait until both the server and the sentinel report it as the master, without any down flag."""
        wait_until(lambda: self.master is master and _leads(master), "the expected server is the master")
        wait_until(lambda: b"\r\nflags\r\n$6\r\nmaster\r\n" in self._ask("MASTER"), "the sentinel sees it as up")

    def settle(self) -> None:
        """Wait until the replica has caught up and the sentinel can promote it."""
        master, replica = self.master, self.replica
        wait_until(lambda: _follows(replica, master), "the replica has caught up")
        wait_until(self._knows_the_replica, "the sentinel knows the replica")
        self.wait_for(master)

    def failover(self) -> None:
        """Switch master and replica, and wait until both have their new roles.

        The sentinel demotes the old master only after eight seconds, and writes to it would be lost. This demotes it
        at once.
        """
        self.settle()
        old, new = self.master, self.replica
        reply = self._ask("FAILOVER")
        assert reply.startswith(b"+OK"), reply
        wait_until(lambda: self.master is new and _leads(new), "the replica is the master")
        ask(old.port, f"REPLICAOF 127.0.0.1 {new.port}", "CLIENT KILL TYPE normal")
        self.wait_for(new)
        wait_until(lambda: _follows(old, new), "the old master has caught up")

    def _knows_the_replica(self) -> bool:
        return b"\r\nmaster-link-status\r\n$2\r\nok\r\n" in self._ask("REPLICAS")

    def _ask(self, what: str) -> bytes:
        return ask(self.sentinel.port, f"SENTINEL {what} {_SERVICE}")


@contextlib.contextmanager
def redis_sentinel() -> Iterator[RedisSentinel]:
    """Run a master, a replica and a sentinel, which are ready when the sentinel knows the replica."""
    with contextlib.ExitStack() as stack:
        master = stack.enter_context(redis_server("--repl-diskless-sync-delay", "0"))
        follow = ("--replicaof", f"127.0.0.1 {master.port}", "--repl-diskless-sync-delay", "0")
        replica = stack.enter_context(redis_server(*follow))
        wait_until(lambda: _follows(replica, master), "the replica has caught up")
        sentinel = stack.enter_context(running(functools.partial(_sentinel_command, master.port), answers_ping))
        group = RedisSentinel(sentinel, (master, replica))
        group.settle()
        yield group


def _sentinel_command(master: int, location: Location) -> list[str]:
    file = location.folder / "sentinel.conf"  # the sentinel stores its state in this file
    file.write_text(
        f"bind 127.0.0.1\nport {location.port}\ndir {location.folder}\n"
        f"sentinel monitor {_SERVICE} 127.0.0.1 {master} 1\n"
        f"sentinel down-after-milliseconds {_SERVICE} 1500\n"
        f"sentinel failover-timeout {_SERVICE} 4000\n"
    )
    return ["redis-server", str(file), "--sentinel"]


def _leads(server: Server) -> bool:
    return ask(server.port, "ROLE").split(b"\r\n")[2] == b"master"


def _follows(replica: Server, master: Server) -> bool:
    reply = ask(replica.port, "INFO replication")
    offset = _number(reply, b"slave_repl_offset:")
    up = b"master_link_status:up" in reply and f"master_port:{master.port}".encode() in reply
    return up and offset >= _number(ask(master.port, "INFO replication"), b"master_repl_offset:")


def _number(reply: bytes, name: bytes) -> int:
    return int(reply.partition(name)[2].split(b"\r\n")[0])
