"""A standalone Pulsar broker, started from its jars, and its admin API; also one that requires tokens, with TLS."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import json
import os
import secrets
import socket
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.real.process import Location, Server, free_ports, java, make_certificate, running, wait_until

JARS = "CLAIMCHECK_TEST_PULSAR_JARS"
"""Variable that names the folder with the jars listed in tests/real/pulsar.xml."""

MAX_MESSAGE_BYTES = 102_400
"""A low limit, so that small payloads make many chunks."""

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
    """Address of a broker, and calls of its admin API. Topics may be named without tenant and namespace.

    Attributes:
        service_url: For clients.
        admin_url: For the admin API.
        server: The process, if the tests started it. A test may kill and restart it; its data survives.
        token: Token of a superuser, if the broker requires authentication.
    """

    service_url: str
    admin_url: str
    server: Server | None = None
    token: str | None = field(default=None, repr=False)

    def request(self, method: str, path: str, body: object = None) -> Any:
        """Send a request to ``/admin/v2/`` and return the parsed JSON, or ``None`` for an empty response."""
        data = None if body is None else json.dumps(body).encode()
        text = self._answer(method, path, data, 30)
        return json.loads(text) if text.strip() else None

    def is_ready(self) -> bool:
        """Return whether the broker is healthy and has the namespace ``public/default``.

        A standalone broker creates that namespace after it reports itself as healthy.
        """
        is_healthy = self._answer("GET", "brokers/health", None, 5) == b"ok"
        return is_healthy and "public/default" in self.request("GET", "namespaces/public")

    def _answer(self, method: str, path: str, data: bytes | None, timeout: float) -> bytes:
        request = urllib.request.Request(f"{self.admin_url}/admin/v2/{path}", data, method=method)
        request.add_header("Content-Type", "application/json")
        if self.token:
            request.add_header("Authorization", f"Bearer {self.token}")
        with urllib.request.urlopen(request, timeout=timeout) as response:
            return bytes(response.read())

    def create_partitioned(self, topic: str, partitions: int) -> None:
        """Create a topic of several partitions."""
        self.request("PUT", f"{_path(topic)}/partitions", partitions)

    def stats(self, topic: str) -> Any:
        """Return subscriptions, backlogs and consumers of a topic."""
        return self.request("GET", f"{_path(topic)}/stats")

    def internal_stats(self, topic: str) -> Any:
        """Return ledgers and cursors of a topic."""
        return self.request("GET", f"{_path(topic)}/internalStats")

    def unload(self, topic: str) -> None:
        """Unload a topic, which makes the broker redeliver unacknowledged messages."""
        self.request("PUT", f"{_path(topic)}/unload")

    def trim(self, topic: str) -> None:
        """Delete ledgers that are consumed and beyond the retention."""
        self.request("POST", f"{_path(topic)}/trim")

    def set_policy(self, topic: str, policy: str, value: object) -> None:
        """Set a topic-level policy and wait until the broker applies it."""
        self.request("POST", f"{_path(topic)}/{policy}", value)
        wait_until(lambda: self.request("GET", f"{_path(topic)}/{policy}") == value, f"the topic has its {policy}")


@contextlib.contextmanager
def pulsar(
    max_message_bytes: int = MAX_MESSAGE_BYTES,
    *,
    durable: bool = False,
    prepare: Callable[[Path], str] = lambda folder: "",
    token: str | None = None,
    proxy_port: int | None = None,
) -> Iterator[PulsarBroker]:
    """Run a broker, which is ready when it reports itself as healthy.

    Args:
        max_message_bytes: Size limit of a message.
        durable: Sync the journal before a write is confirmed. Without it a topic may be unreadable after a kill.
        prepare: Writes further files into the broker's folder and returns further lines of its configuration.
        token: Token for the admin API.
        proxy_port: Where clients reach it if they ask for the listener ``proxy``.
    """

    def command(location: Location) -> list[str]:
        frame = max(max_message_bytes + 10_240, 5_253_120)
        text = _CONFIGURATION.format(
            port=location.port,
            spare=location.extra_port,
            max_message_bytes=max_message_bytes,
            frame_bytes=frame,
            # BookKeeper needs a name, which differs between systems
            loopback=next((name for _, name in socket.if_nameindex() if name.startswith("lo")), "lo"),
            durable=str(durable).lower(),
        )
        if proxy_port is not None:
            own, proxy = (f"pulsar://127.0.0.1:{port}" for port in (location.port, proxy_port))
            text += f"advertisedListeners=own:{own},proxy:{proxy}\ninternalListenerName=own\n"
        (location.folder / "broker.conf").write_text(text + prepare(location.folder))
        return _command(location.folder, *free_ports(1))

    def broker(location: Location, server: Server | None = None) -> PulsarBroker:
        urls = f"pulsar://127.0.0.1:{location.port}", f"http://127.0.0.1:{location.extra_port}"
        return PulsarBroker(*urls, server, token)

    with running(command, lambda location: broker(location).is_ready(), ready_within=_READY_WITHIN_SECONDS) as server:
        yield broker(server.location, server)


def _command(folder: Path, bookie_port: int) -> list[str]:
    opened = [part for name in _OPENED for part in ("--add-opens", f"java.base/{name}=ALL-UNNAMED")]
    return [
        *java(os.environ[JARS]), *opened, "--add-opens", "java.management/sun.management=ALL-UNNAMED",
        "-Xmx512m", "-XX:MaxDirectMemorySize=768m",
        "-Dio.netty.tryReflectionSetAccessible=true", "-Djava.net.preferIPv4Stack=true",
        f"-Dbookkeeper.metadata.bookie.drivers={_METADATA}BookieDriver",
        f"-Dbookkeeper.metadata.client.drivers={_METADATA}ClientDriver",
        "org.apache.pulsar.PulsarStandaloneStarter",
        "--config", str(folder / "broker.conf"), "--no-functions-worker", "--no-stream-storage",
        "--advertised-address", "127.0.0.1",
        # The default is in the ephemeral range: a client could take the port while a killed broker is down.
        "--bookkeeper-port", str(bookie_port),
        "--metadata-dir", str(folder / "metadata"), "--bookkeeper-dir", str(folder / "bookkeeper"),
    ]  # fmt: skip


def _path(topic: str) -> str:
    return topic.replace("://", "/") if "://" in topic else f"persistent/public/default/{topic}"


# Tokens and TLS -------------------------------------------------------------------------------------------------------


_SUPER_USER = "operator"
_SECURE = """\
authenticationEnabled=true
authenticationProviders=org.apache.pulsar.broker.authentication.AuthenticationProviderToken,\
  org.apache.pulsar.broker.authentication.AuthenticationProviderTls
tokenSecretKey=data:;base64,{secret}
authorizationEnabled=true
superUserRoles={super_user},claimcheck-test-server
brokerClientAuthenticationPlugin=org.apache.pulsar.client.impl.auth.AuthenticationToken
brokerClientAuthenticationParameters=token:{token}
brokerServicePortTls={tls_port}
webServicePortTls={tls_web_port}
tlsCertificateFilePath={folder}/server.crt
tlsKeyFilePath={folder}/server.key
tlsTrustCertsFilePath={folder}/ca.crt
"""


@dataclass(frozen=True)
class SecurePulsar:
    """Addresses of the broker; all of them require a token.

    Attributes:
        open: The endpoints without TLS, with the superuser's token.
        tls_url: For clients.
        tls_admin_url: For the admin API.
        authority: File with the certificate of the authority.
        secret: Key that signs tokens.
    """

    open: PulsarBroker
    tls_url: str
    tls_admin_url: str
    authority: Path
    secret: bytes = field(repr=False)

    def token(self, role: str) -> str:
        """Make a token for a role."""
        return _token(self.secret, role)


@contextlib.contextmanager
def secure_pulsar() -> Iterator[SecurePulsar]:
    """Run a broker, which is ready when it reports itself as healthy."""
    secret = secrets.token_bytes(32)
    token = _token(secret, _SUPER_USER)
    ports: dict[Path, list[int]] = {}

    def prepare(folder: Path) -> str:
        make_certificate(folder)
        ports[folder] = free_ports(2)
        return _SECURE.format(
            secret=base64.b64encode(secret).decode(),
            super_user=_SUPER_USER,
            token=token,
            tls_port=ports[folder][0],
            tls_web_port=ports[folder][1],
            folder=folder,
        )

    with pulsar(prepare=prepare, token=token) as broker:
        assert broker.server is not None
        folder = broker.server.location.folder
        port, web_port = ports[folder]
        urls = f"pulsar+ssl://127.0.0.1:{port}", f"https://127.0.0.1:{web_port}"
        yield SecurePulsar(broker, *urls, folder / "ca.crt", secret)


def _token(secret: bytes, role: str) -> str:
    """Return a JSON Web Token signed with HS256."""
    text = ".".join(_base64(json.dumps(part).encode()) for part in ({"alg": "HS256"}, {"sub": role}))
    return f"{text}.{_base64(hmac.digest(secret, text.encode(), hashlib.sha256))}"


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
