"""The Pulsar client, one per process and broker, the web service, and the errors of both."""

from __future__ import annotations

import contextlib
import os
import ssl
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from claimcheck.errors import ConfigError, TransportError
from claimcheck.spark.sources._errors import AccessError
from claimcheck.spark.sources._pulsar.connection import Connection
from claimcheck.spark.sources._pulsar.handshake import Refusal, refusal
from claimcheck.transports.pulsar._admin import AdminClient, AdminError, topic_path
from claimcheck.transports.pulsar._errors import vendor

__all__ = ["ask_limit", "check_topic", "client_errors", "client_for", "open_client", "retry", "transport_error"]

T = TypeVar("T")

_PAUSE_SECONDS = 0.5

_lock = threading.Lock()
_clients: dict[tuple[int, Connection], Any] = {}


def client_for(connection: Connection) -> Any:
    """Return this process's client; it stays open until the process ends, as Spark keeps its workers for many tasks."""
    place = os.getpid(), connection  # a forked child must not share its parent's sockets
    with _lock:
        if place not in _clients:
            _clients[place] = open_client(connection)
        return _clients[place]


def open_client(connection: Connection) -> Any:
    """Open a client, which the caller closes. It connects at first use.

    Raises:
        AccessError: The broker refuses the token. A client would keep trying, and would not report the reason.
        ConfigError: The token or the certificates are not where the options say.
    """
    pulsar = vendor()
    token = connection.token()
    _check_token(connection)
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


def retry(call: Callable[[], T], *, transient: Callable[[Exception], bool], seconds: float) -> T:
    """Call until it returns, or raises an error that is not transient.

    Args:
        call: Tries once.
        transient: Whether an error may be gone at the next call.
        seconds: For how long; then the last error is raised.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            return call()
        except Exception as error:
            if not transient(error) or time.monotonic() > deadline:
                raise
        time.sleep(_PAUSE_SECONDS)


@contextlib.contextmanager
def client_errors(connection: Connection, topic: str, what: str) -> Iterator[None]:
    """Convert errors of the client into ours, with the topic, the operation, and why access was refused."""
    try:
        yield
    except vendor().exceptions.PulsarException as error:
        raise transport_error(connection, topic, f"{what} failed", error) from error


def transport_error(connection: Connection, topic: str, what: str, error: Exception) -> TransportError:
    """Return our error for an error of the client."""
    kinds = vendor().exceptions
    text = f"{topic}: {what}: {type(error).__name__}"
    if isinstance(error, kinds.AuthorizationError):
        return AccessError(f"{text}. Who the token is for may not do that with this topic", destination=topic)
    if isinstance(error, kinds.Timeout | kinds.ConnectError | kinds.AuthenticationError):
        access = _access_error(connection, text)
        if access is not None:
            access.destination = topic
            return access
    if isinstance(error, kinds.Timeout | kinds.ConnectError):
        text = f"{text}. Is a broker at {connection.hosts}, and could this machine reach it?"
    if isinstance(error, kinds.Timeout):
        text = f"{text} It has one port for pulsar://, one for pulsar+ssl:// and one for its web service"
    wrapped = TransportError(text, destination=topic)
    wrapped.retryable = isinstance(error, kinds.Timeout)
    return wrapped


def _check_token(connection: Connection) -> None:
    """Check that the broker accepts the token; unreachable and untrusted brokers are left to the client.

    Raises:
        AccessError: It does not.
        ConfigError: The token or the certificates are not where the options say.
    """
    found = _ask(connection)
    if found is not None and found[0] is Refusal.TOKEN:
        raise _refused(connection, "authTokenEnv")


def _access_error(connection: Connection, before: str) -> AccessError | None:
    """Return why the broker refuses the connection; ``None`` if it does not.

    Args:
        connection: The client's.
        before: What failed, for the error's text.

    Raises:
        ConfigError: The token or the certificates are not where the options say.
    """
    found = _ask(connection)
    if found is None:
        return None
    if found[0] is Refusal.CERTIFICATE:
        return _not_trusted(connection.hosts, found[1], before)
    return _refused(connection, before)


def _not_trusted(where: str, said: str, before: str) -> AccessError:
    """Return the error for a certificate of ``where``, with the reason and what failed before."""
    return AccessError(
        f"{before}. The certificate of {where} is not trusted: {said}. tlsTrustCertsFilePath names a file with the "
        "certificates to trust, on the driver and on every executor; the URL has to name the host as they do"
    )


def _refused(connection: Connection, before: str) -> AccessError:
    where, name = connection.hosts, connection.token_env
    if name is None:
        return AccessError(
            f"{before}: {where} refuses who has no token. authTokenEnv names the environment variable that holds one, "
            "of the driver and of the executors (spark.executorEnv.NAME)"
        )
    return AccessError(
        f"{before}: {where} refuses the token in {name!r}, the environment variable that authTokenEnv names. It may be "
        f"out of date, or for another broker: set a new one for driver and executors (spark.executorEnv.{name}), and "
        "start them again"
    )


def _ask(connection: Connection) -> tuple[Refusal, str] | None:
    import certifi  # comes with the client, which falls back to it

    wants_tls = connection.service_url.startswith("pulsar+ssl:")
    return refusal(connection.service_url, connection.token(), connection.trust(certifi.where()) if wants_tls else None)


# The web service ----------------------------------------------------------------------------------------------------


def check_topic(connection: Connection, topic: str) -> None:
    """Check that a topic exists, if there is an ``adminUrl``; clients would create it.

    Raises:
        ConfigError: It does not exist.
        AccessError: The web service refuses the token, or its certificate is not trusted.
        TransportError: It did not answer.
    """
    if connection.admin_url is None:
        return
    path = topic_path(topic)
    admin = _admin(connection)
    try:
        metadata = admin.get(f"{path}/partitions")
        missing = metadata is None or (not metadata.get("partitions") and admin.get(f"{path}/stats") is None)
    except AdminError as error:
        raise _explained(connection, error) from error
    if missing:
        raise ConfigError(
            f"topic: found {topic}, which is not there, expected the name of a topic that is",
            path="topic",
            found=topic,
            expected="the name of a topic that is there",
        )


def ask_limit(connection: Connection, topic: str) -> int:
    """Return the limit of one message: the broker's own, or the topic's if that is less.

    Raises:
        AccessError: It refuses the token, or its certificate is not trusted.
        TransportError: It did not answer.
    """
    try:
        return _admin(connection).max_message_bytes(topic)
    except AdminError as error:
        raise _explained(connection, error) from error


def _admin(connection: Connection) -> AdminClient:
    token, url = connection.token(), connection.admin_url or ""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return AdminClient(url, headers=headers, trust=connection.trust(None) if url.startswith("https:") else None)


def _explained(connection: Connection, error: AdminError) -> TransportError:
    text = f"adminUrl: {error}"
    reason: Any = getattr(error.__cause__, "reason", None)
    if isinstance(reason, ssl.SSLCertVerificationError):
        return _not_trusted(
            urllib.parse.urlsplit(connection.admin_url or "").hostname or "", reason.verify_message, text
        )
    if error.status in (401, 403):  # 401 also for a valid token that lacks the permission
        forbidden = AccessError(f"{text}: the token's role lacks the permission. Without adminUrl no request is made")
        return _access_error(connection, text) or forbidden
    return TransportError(text)
