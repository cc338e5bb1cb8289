"""Several Redis servers that act as one: a cluster of three masters, and a pair that a sentinel watches."""

from __future__ import annotations

import contextlib
import functools
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

from tests.real.process import Server, Spot, running, wait_until
from tests.real.redis_alone import answers_ping, redis_command, redis_server, says

_SERVICE = "mymaster"


@dataclass(frozen=True)
class RedisCluster:
    """Three masters that share the slots; any of them tells a client where the others are."""

    nodes: tuple[Server, ...]

    @property
    def url(self) -> str:
        """As a store takes it; the other nodes are found through these."""
        return f"redis+cluster://{','.join(f'127.0.0.1:{node.port}' for node in self.nodes)}"

    def wait(self) -> None:
        """Until every node finds the cluster complete."""
        wait_until(lambda: all(map(_complete, self.nodes)), "every node of the cluster says that it is complete")


@contextlib.contextmanager
def redis_cluster() -> Iterator[RedisCluster]:
    """Run a cluster; ready when every node finds it complete."""
    with contextlib.ExitStack() as stack:
        nodes = tuple(stack.enter_context(running(_node_command, answers_ping)) for _ in range(3))
        command = ["redis-cli", "--cluster", "create", *(f"127.0.0.1:{node.port}" for node in nodes), "--cluster-yes"]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
        cluster = RedisCluster(nodes)
        cluster.wait()
        yield cluster


def _node_command(spot: Spot) -> list[str]:
    return redis_command("--cluster-enabled", "yes", "--cluster-port", str(spot.spare), spot)


def _complete(node: Server) -> bool:
    told = says(node.port, "CLUSTER INFO")
    return b"cluster_state:ok" in told and b"cluster_known_nodes:3" in told


class RedisSentinel:
    """A master and its replica, watched by a sentinel who can make them change places.

    Attributes:
        sentinel: Who watches.
    """

    def __init__(self, sentinel: Server, data: tuple[Server, Server]) -> None:
        self.sentinel = sentinel
        self._data = data

    @property
    def url(self) -> str:
        """As a store takes it."""
        return f"redis+sentinel://127.0.0.1:{self.sentinel.port}/{_SERVICE}/0"

    @property
    def master(self) -> Server:
        """Who the sentinel says is the master now."""
        told = self._ask("GET-MASTER-ADDR-BY-NAME").split(b"\r\n")
        return next(server for server in self._data if str(server.port).encode() in told)

    @property
    def replica(self) -> Server:
        """The other one."""
        master = self.master
        return next(server for server in self._data if server is not master)

    def wait_for(self, master: Server) -> None:
        """Wait until a server is the master, in its own opinion and in the sentinel's, who has no doubts about it."""
        wait_until(lambda: self.master is master and _leads(master), "the master is who it should be")
        wait_until(lambda: b"\r\nflags\r\n$6\r\nmaster\r\n" in self._ask("MASTER"), "the sentinel has no doubts")

    def settle(self) -> None:
        """Wait until the replica has all that the master has, and the sentinel finds it fit to take over."""
        master, replica = self.master, self.replica
        wait_until(lambda: _follows(replica, master), "the replica has what the master has")
        wait_until(self._knows_the_replica, "the sentinel knows the replica")
        self.wait_for(master)

    def failover(self) -> None:
        """Let master and replica change places; done when both play their new parts.

        The sentinel alone would leave the old master a master for another eight seconds, open to writes that are lost
        later; what it tells the old master then, we tell it at once.
        """
        self.settle()
        old, new = self.master, self.replica
        told = self._ask("FAILOVER")
        assert told.startswith(b"+OK"), told
        wait_until(lambda: self.master is new and _leads(new), "the replica is the master")
        says(old.port, f"REPLICAOF 127.0.0.1 {new.port}", "CLIENT KILL TYPE normal")
        self.wait_for(new)
        wait_until(lambda: _follows(old, new), "the old master has what the new one has")

    def _knows_the_replica(self) -> bool:
        return b"\r\nmaster-link-status\r\n$2\r\nok\r\n" in self._ask("REPLICAS")

    def _ask(self, what: str) -> bytes:
        return says(self.sentinel.port, f"SENTINEL {what} {_SERVICE}")


@contextlib.contextmanager
def redis_sentinel() -> Iterator[RedisSentinel]:
    """Run a master, a replica and a sentinel; ready when the sentinel knows the replica."""
    with contextlib.ExitStack() as stack:
        master = stack.enter_context(redis_server("--repl-diskless-sync-delay", "0"))
        follow = ("--replicaof", f"127.0.0.1 {master.port}", "--repl-diskless-sync-delay", "0")
        replica = stack.enter_context(redis_server(*follow))
        wait_until(lambda: _follows(replica, master), "the replica has what the master has")
        sentinel = stack.enter_context(running(functools.partial(_sentinel_command, master.port), answers_ping))
        group = RedisSentinel(sentinel, (master, replica))
        group.settle()
        yield group


def _sentinel_command(master: int, spot: Spot) -> list[str]:
    file = spot.folder / "sentinel.conf"  # it writes down there what it learns
    file.write_text(
        f"bind 127.0.0.1\nport {spot.port}\ndir {spot.folder}\n"
        f"sentinel monitor {_SERVICE} 127.0.0.1 {master} 1\n"
        f"sentinel down-after-milliseconds {_SERVICE} 1500\n"
        f"sentinel failover-timeout {_SERVICE} 4000\n"
    )
    return ["redis-server", str(file), "--sentinel"]


def _leads(server: Server) -> bool:
    return says(server.port, "ROLE").split(b"\r\n")[2] == b"master"


def _follows(replica: Server, master: Server) -> bool:
    told = says(replica.port, "INFO replication")
    offset = _number(told, b"slave_repl_offset:")
    up = b"master_link_status:up" in told and f"master_port:{master.port}".encode() in told
    return up and offset >= _number(says(master.port, "INFO replication"), b"master_repl_offset:")


def _number(told: bytes, name: bytes) -> int:
    return int(told.partition(name)[2].split(b"\r\n")[0])
