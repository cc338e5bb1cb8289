"""A standalone Pulsar broker, from its jars, and what an operator can ask of it."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.real.process import Server, Spot, free_ports, running, wait_until

JARS = "CLAIMCHECK_TEST_PULSAR_JARS"
"""Names the folder that holds the jars; tests/real/pulsar.xml says which."""

MAX_MESSAGE_BYTES = 102_400
"""So little that small payloads make many chunks."""

_READY_WITHIN_SECONDS = 120.0
_OPENED = ("java.io", "java.util.zip", "java.nio", "jdk.internal.misc", "sun.net", "jdk.internal.platform")
_METADATA = "org.apache.pulsar.metadata.bookkeeper.PulsarMetadata"
_CONFIGURATION = """\
bindAddress=127.0.0.1
advertisedAddress=127.0.0.1
brokerServicePort={port}
webServicePort={spare}
clusterName=standalone
maxMessageSize={max_message_bytes}
nettyMaxFrameSizeBytes={frame_bytes}
managedLedgerDefaultEnsembleSize=1
managedLedgerDefaultWriteQuorum=1
managedLedgerDefaultAckQuorum=1
managedLedgerCacheSizeMB=64
dbStorage_writeCacheMaxSizeMb=16
dbStorage_readAheadCacheMaxSizeMb=16
diskUsageThreshold=0.99
diskUsageWarnThreshold=0.98
journalSyncData={durable}
journalWriteBufferSizeKB=4096
allowAutoTopicCreation=true
brokerDeduplicationEnabled=false
transactionCoordinatorEnabled=false
brokerDeleteInactiveTopicsEnabled=false
allowLoopback=true
allowEphemeralPorts=true
listeningInterface={loopback}
topicLevelPoliciesEnabled=true
systemTopicEnabled=true
ledgerStorageClass=org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage
"""


@dataclass(frozen=True)
class PulsarBroker:
    """Where it is, and its web service by name. Topics may be named without tenant and namespace.

    Attributes:
        service_url: For clients.
        admin_url: Of its web service.
        server: The process, where it is our own, to be killed and started again; it keeps its data.
        token: Of somebody who may do everything, where it wants one.
    """

    service_url: str
    admin_url: str
    server: Server | None = None
    token: str | None = field(default=None, repr=False)

    def request(self, method: str, path: str, body: object = None) -> Any:
        """Ask the web service, below ``/admin/v2/``; gives what its JSON says, or ``None`` for no answer's body."""
        data = None if body is None else json.dumps(body).encode()
        text = self._answer(method, path, data, 30)
        return json.loads(text) if text.strip() else None

    def is_well(self) -> bool:
        """Whether it takes requests, by its own word, and has the namespace of topics that are named without one.

        A standalone broker makes that one after it has said that it is well; until then there is no such topic.
        """
        is_healthy = self._answer("GET", "brokers/health", None, 5) == b"ok"
        return is_healthy and "public/default" in self.request("GET", "namespaces/public")

    def _answer(self, method: str, path: str, data: bytes | None, timeout: float) -> bytes:
        asked = urllib.request.Request(f"{self.admin_url}/admin/v2/{path}", data, method=method)
        asked.add_header("Content-Type", "application/json")
        if self.token:
            asked.add_header("Authorization", f"Bearer {self.token}")
        with urllib.request.urlopen(asked, timeout=timeout) as response:
            return bytes(response.read())

    def create_partitioned(self, topic: str, partitions: int) -> None:
        """Create a topic of several partitions."""
        self.request("PUT", f"{_path(topic)}/partitions", partitions)

    def stats(self, topic: str) -> Any:
        """Subscriptions, backlogs, consumers."""
        return self.request("GET", f"{_path(topic)}/stats")

    def internal_stats(self, topic: str) -> Any:
        """Ledgers and cursors."""
        return self.request("GET", f"{_path(topic)}/internalStats")

    def unload(self, topic: str) -> None:
        """Let the broker drop the topic and take it up again, which delivers anew what is not acknowledged."""
        self.request("PUT", f"{_path(topic)}/unload")

    def trim(self, topic: str) -> None:
        """Remove what nobody wants any more."""
        self.request("POST", f"{_path(topic)}/trim")

    def set_policy(self, topic: str, policy: str, value: object) -> None:
        """Set a policy of the topic's own and wait until the broker knows it."""
        self.request("POST", f"{_path(topic)}/{policy}", value)
        wait_until(lambda: self.request("GET", f"{_path(topic)}/{policy}") == value, f"the topic has its {policy}")


@contextlib.contextmanager
def pulsar(
    max_message_bytes: int = MAX_MESSAGE_BYTES,
    *,
    durable: bool = False,
    furnish: Callable[[Path], str] = lambda folder: "",
    token: str | None = None,
) -> Iterator[PulsarBroker]:
    """Run a broker; ready when it says that it is well.

    Args:
        max_message_bytes: What it takes in one message.
        durable: Whether it says yes only to what is on the disk. One that does not may be killed only together with
            its data: it says yes to what is in its memory, and a topic may be unreadable after that.
        furnish: Puts what it needs besides into its folder, and gives the lines of its configuration about it.
        token: To ask it with.
    """

    def command(spot: Spot) -> list[str]:
        frame = max(max_message_bytes + 10_240, 5_253_120)
        text = _CONFIGURATION.format(
            port=spot.port,
            spare=spot.spare,
            max_message_bytes=max_message_bytes,
            frame_bytes=frame,
            loopback=_loopback(),
            durable=str(durable).lower(),
        )
        (spot.folder / "broker.conf").write_text(text + furnish(spot.folder))
        return _command(spot.folder, *free_ports(1))

    def broker(spot: Spot, server: Server | None = None) -> PulsarBroker:
        return PulsarBroker(f"pulsar://127.0.0.1:{spot.port}", f"http://127.0.0.1:{spot.spare}", server, token)

    with running(command, lambda spot: broker(spot).is_well(), ready_within=_READY_WITHIN_SECONDS) as server:
        yield broker(server.spot, server)


def _command(folder: Path, bookie_port: int) -> list[str]:
    opened = [part for name in _OPENED for part in ("--add-opens", f"java.base/{name}=ALL-UNNAMED")]
    return [
        "java", *opened, "--add-opens", "java.management/sun.management=ALL-UNNAMED",
        "-Xmx512m", "-XX:MaxDirectMemorySize=768m",
        "-Dio.netty.tryReflectionSetAccessible=true", "-Djava.net.preferIPv4Stack=true",
        f"-Dbookkeeper.metadata.bookie.drivers={_METADATA}BookieDriver",
        f"-Dbookkeeper.metadata.client.drivers={_METADATA}ClientDriver",
        "-cp", f"{os.environ[JARS]}/*", "org.apache.pulsar.PulsarStandaloneStarter",
        "--config", str(folder / "broker.conf"), "--no-functions-worker", "--no-stream-storage",
        "--advertised-address", "127.0.0.1",
        # Its own choice is a port that the kernel may give to any client while a killed broker is away.
        "--bookkeeper-port", str(bookie_port),
        "--metadata-dir", str(folder / "metadata"), "--bookkeeper-dir", str(folder / "bookkeeper"),
    ]  # fmt: skip


def _loopback() -> str:
    """The interface that only this machine reaches; the bookie asks for a name, and it is not the same everywhere."""
    return next((name for _, name in socket.if_nameindex() if name.startswith("lo")), "lo")


def _path(topic: str) -> str:
    return topic.replace("://", "/") if "://" in topic else f"persistent/public/default/{topic}"
