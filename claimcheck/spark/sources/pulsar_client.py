"""One client per process for each broker, and what its failures are called."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from claimcheck.errors import ConfigError, TransportError
from claimcheck.spark.sources.options import COUNT, SECONDS, TEXT, TRUTH, Kind
from claimcheck.transports.pulsar.errors import vendor
from claimcheck.validation import fail

__all__ = [
    "CONNECTION_OPTIONS",
    "Connection",
    "check_topic",
    "client_for",
    "connection_of",
    "in_our_words",
    "open_client",
]

_ADMIN_SECONDS = 10

_lock = threading.Lock()
_clients: dict[tuple[int, Connection], Any] = {}

CONNECTION_OPTIONS: dict[str, Kind] = {
    "serviceUrl": TEXT,
    "adminUrl": TEXT,
    "authTokenEnv": TEXT,
    "tlsTrustCertsFilePath": TEXT,
    "tlsAllowInsecureConnection": TRUTH,
    "tlsValidateHostname": TRUTH,
    "operationTimeoutSeconds": SECONDS,
    "ioThreads": COUNT,
}
"""What a source and a sink are told alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """Where a broker is and how to get in; of secrets the names only, so that it may travel with a plan.

    Attributes:
        service_url: For clients.
        admin_url: Of the web service, where it may be asked.
        token_env: The environment variable that holds the token, in the process that connects.
        trust_certs: Path of the certificates to trust.
        allow_insecure: Whether a certificate that nobody trusts will do.
        validate_hostname: Whether the certificate has to name the host.
        timeout_seconds: For one request; an outage that is shorter is waited for.
        io_threads: Of the client.
    """

    service_url: str
    admin_url: str | None = None
    token_env: str | None = None
    trust_certs: str | None = None
    allow_insecure: bool = False
    validate_hostname: bool = True
    timeout_seconds: float = 60.0
    io_threads: int = 1

    def token(self) -> str | None:
        """Look the token up, here and now.

        Raises:
            ConfigError: The variable is not set in this process.
        """
        if self.token_env is None:
            return None
        if not os.environ.get(self.token_env):
            fail(
                "authTokenEnv",
                found=f"{self.token_env!r}, which is not set in this process",
                expected="an environment variable of the driver and of the executors (spark.executorEnv.NAME)",
            )
        return os.environ[self.token_env]


def connection_of(values: dict[str, Any]) -> Connection:
    """Make a connection of options that were checked.

    Raises:
        ConfigError: There is no ``serviceUrl``, or it is none.
    """
    url = values.get("serviceUrl")
    if url is None or urllib.parse.urlsplit(url).scheme not in ("pulsar", "pulsar+ssl"):
        fail("serviceUrl", found="text" if url else "nothing", expected="pulsar://host:port or pulsar+ssl://host:port")
    admin = values.get("adminUrl")
    if admin is not None and urllib.parse.urlsplit(admin).scheme not in ("http", "https"):
        fail("adminUrl", found="text", expected="http://host:port or https://host:port")
    return Connection(
        service_url=url,
        admin_url=admin,
        token_env=values.get("authTokenEnv"),
        trust_certs=values.get("tlsTrustCertsFilePath"),
        allow_insecure=values.get("tlsAllowInsecureConnection", False),
        validate_hostname=values.get("tlsValidateHostname", True),
        timeout_seconds=values.get("operationTimeoutSeconds", 60.0),
        io_threads=values.get("ioThreads", 1),
    )


def client_for(connection: Connection) -> Any:
    """Return this process's client; it stays open until the process ends, as Spark keeps its workers for many tasks."""
    place = os.getpid(), connection  # a forked child must not share its parent's sockets
    with _lock:
        if place not in _clients:
            _clients[place] = open_client(connection)
        return _clients[place]


def open_client(connection: Connection) -> Any:
    """Open a client of one's own, to be closed. It connects at first use."""
    pulsar = vendor()
    token = connection.token()
    return pulsar.Client(
        connection.service_url,
        authentication=pulsar.AuthenticationToken(token) if token else None,
        operation_timeout_seconds=max(1, round(connection.timeout_seconds)),
        io_threads=connection.io_threads,
        tls_trust_certs_file_path=connection.trust_certs,
        tls_allow_insecure_connection=connection.allow_insecure,
        tls_validate_hostname=connection.validate_hostname,
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),  # the executor's log; never through Python's own lock
    )


@contextlib.contextmanager
def in_our_words(topic: str, what: str) -> Iterator[None]:
    """Turn an error of the client into ours, with the topic and what was being done."""
    try:
        yield
    except vendor().exceptions.PulsarException as error:
        text = f"{topic}: {what} failed: {type(error).__name__}"
        wrapped = TransportError(text, destination=topic)
        wrapped.retryable = isinstance(error, vendor().exceptions.Timeout)
        raise wrapped from error


def check_topic(connection: Connection, topic: str) -> None:
    """Make sure that a topic is there, where a web service may be asked; clients would create it.

    Raises:
        ConfigError: It is not.
        TransportError: The web service did not answer, or may not be asked.
    """
    if connection.admin_url is None:
        return
    path = urllib.parse.quote(topic.replace("://", "/"))
    metadata = _ask(connection, f"{path}/partitions")
    if metadata is None or (not metadata.get("partitions") and _ask(connection, f"{path}/stats") is None):
        raise ConfigError(
            f"topic: found {topic}, which is not there, expected the name of a topic that is",
            path="topic",
            found=topic,
            expected="the name of a topic that is there",
        )


def _ask(connection: Connection, path: str) -> Any:
    """What the web service says, ``None`` for what is not there."""
    token = connection.token()
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(f"{(connection.admin_url or '').rstrip('/')}/admin/v2/{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=_ADMIN_SECONDS) as response:
            return json.loads(response.read())
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return None
        raise TransportError(f"adminUrl: the web service did not tell {path} ({error.code})") from error
    except (OSError, ValueError) as error:
        raise TransportError(f"adminUrl: the web service did not tell {path}: {type(error).__name__}") from error
