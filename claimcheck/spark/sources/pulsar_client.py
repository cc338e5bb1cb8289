"""One client per process for each broker, and what its failures are called."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from claimcheck.errors import TransportError
from claimcheck.spark.sources.errors import AccessError
from claimcheck.spark.sources.pulsar_access import check_token, why
from claimcheck.spark.sources.pulsar_connection import Connection
from claimcheck.transports.pulsar.errors import vendor

__all__ = ["again", "client_for", "in_our_words", "open_client", "our_words"]

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
