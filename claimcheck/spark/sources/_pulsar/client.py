"""One client per process for each broker, and what its failures are called."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from claimcheck.errors import TransportError
from claimcheck.spark.sources._errors import AccessError
from claimcheck.spark.sources._pulsar.connection import Connection
from claimcheck.spark.sources._pulsar.handshake import Refusal, refusal
from claimcheck.transports.pulsar._errors import vendor

__all__ = [
    "again",
    "check_token",
    "client_for",
    "in_our_words",
    "not_trusted",
    "open_client",
    "our_words",
    "why",
]

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
    """Open a client of one's own, to be closed. It connects at first use.

    Raises:
        AccessError: The broker refuses the token. A client would go on trying, and would not say why.
        ConfigError: There is no token, or no certificates, where they were said to be.
    """
    pulsar = vendor()
    token = connection.token()
    check_token(connection)
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


def again(asked: Callable[[], T], *, passing: Callable[[Exception], bool], seconds: float) -> T:
    """Ask until there is an answer, or an error that does not pass.

    Args:
        asked: Asks once.
        passing: Whether an error may be gone the next time.
        seconds: For how long; then the last error is raised.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            return asked()
        except Exception as error:
            if not passing(error) or time.monotonic() > deadline:
                raise
        time.sleep(_PAUSE_SECONDS)


@contextlib.contextmanager
def in_our_words(connection: Connection, topic: str, what: str) -> Iterator[None]:
    """Turn an error of the client into ours, with the topic, what was being done, and why nobody got in."""
    try:
        yield
    except vendor().exceptions.PulsarException as error:
        raise our_words(connection, topic, f"{what} failed", error) from error


def our_words(connection: Connection, topic: str, what: str, error: Exception) -> TransportError:
    """Make an error of ours of one of the client."""
    kinds = vendor().exceptions
    text = f"{topic}: {what}: {type(error).__name__}"
    if isinstance(error, kinds.AuthorizationError):
        return AccessError(f"{text}. Who the token is for may not do that with this topic", destination=topic)
    if isinstance(error, kinds.Timeout | kinds.ConnectError | kinds.AuthenticationError):
        access = why(connection, text)
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


def check_token(connection: Connection) -> None:
    """Make sure that the broker takes the token; who is not there, or not trusted, is left to the client.

    Raises:
        AccessError: It does not.
        ConfigError: There is no token, or no certificates, where they were said to be.
    """
    found = _ask(connection)
    if found is not None and found[0] is Refusal.TOKEN:
        raise _refused(connection, "authTokenEnv")


def why(connection: Connection, before: str) -> AccessError | None:
    """Find out why the client did not get in; ``None`` where it could have.

    Args:
        connection: As the client has it.
        before: What went wrong.

    Raises:
        ConfigError: There is no token, or no certificates, where they were said to be.
    """
    found = _ask(connection)
    if found is None:
        return None
    if found[0] is Refusal.CERTIFICATE:
        return not_trusted(connection.hosts, found[1], before)
    return _refused(connection, before)


def not_trusted(where: str, said: str, before: str) -> AccessError:
    """Make the error for a certificate.

    Args:
        where: Whose it is.
        said: What is wrong with it.
        before: What went wrong.
    """
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
