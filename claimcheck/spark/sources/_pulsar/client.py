"""The Pulsar client, one per process and broker, the web service, and the errors of both.

The client cannot tell a refused token from a timeout: when a broker refuses a token, or requires one, the client
reconnects until its operation times out, raises ``Timeout`` as for a broker that does not exist, and logs no other
reason at warning level (measured with client 3.13 and broker 4.2). The web service reports the reason, but ``adminUrl``
is optional. So this module sends the first frame of Pulsar's protocol itself. It sends the token only where the client
would send it, with TLS only to a broker whose certificate is trusted.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import ssl
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple, TypeVar, cast

from claimcheck._validation import fail
from claimcheck.errors import TransportError
from claimcheck.spark.sources._errors import AccessError
from claimcheck.spark.sources._pulsar.connection import Connection
from claimcheck.transports.pulsar._admin import AdminClient, AdminError, topic_path
from claimcheck.transports.pulsar._cursors import consumed_position, partitions_of
from claimcheck.transports.pulsar._errors import vendor

if TYPE_CHECKING:
    import pulsar

__all__ = [
    "IN_PARALLEL",
    "ask_limit",
    "check_topic",
    "client_errors",
    "client_for",
    "consumed_positions",
    "in_parallel",
    "ledger_sizes",
    "list_partitions",
    "open_client",
    "retry",
    "similar_topics",
    "transport_error",
]

K = TypeVar("K")
T = TypeVar("T")

IN_PARALLEL = 256  # requests of one client: they wait for the broker, and after a `seek` 100 ms to connect again
_PARTITION = re.compile(r"-partition-\d+$")
_PAUSE_SECONDS = 0.5
_PROBE_SECONDS = 5.0  # for each step; a slower broker is left to the client
_PROTOCOL_VERSION = 19
_MAX_RESPONSE_BYTES = 1 << 16
# `CommandError` (14) with `AuthenticationError` (3) as its second field, after the id of the request.
_TOKEN_REFUSED = re.compile(rb"\x08\x0e\x72[\x80-\xff]*[\x00-\x7f]\x08[\x80-\xff]*[\x00-\x7f]\x10\x03")

_lock = threading.Lock()
_clients: dict[tuple[int, Connection], pulsar.Client] = {}


def client_for(connection: Connection) -> pulsar.Client:
    """Return this process's client; it stays open until the process ends, as Spark keeps its workers for many tasks."""
    place = os.getpid(), connection  # a forked child must not share its parent's sockets
    with _lock:
        if place not in _clients:
            _clients[place] = open_client(connection)
        return _clients[place]


def open_client(connection: Connection) -> pulsar.Client:
    """Open a client, which the caller closes. It connects at first use.

    Raises:
        AccessError: The broker refuses the token. A client would keep trying, and would not report the reason.
        ConfigError: The token or the certificates are not where the options say.
    """
    library = vendor()
    token = connection.token()
    refusal = _probe(connection)
    if refusal is not None and refusal.certificate is None:  # all other problems are left to the client
        raise _refused(connection, "connecting failed")
    return library.Client(
        connection.service_url,
        authentication=library.AuthenticationToken(token) if token else None,
        operation_timeout_seconds=max(1, round(connection.timeout_seconds)),
        io_threads=connection.io_threads,
        tls_trust_certs_file_path=connection.trust_certs,
        tls_allow_insecure_connection=connection.allow_insecure,
        tls_validate_hostname=connection.validate_hostname,
        logger=library.ConsoleLogger(library.LoggerLevel.Error),  # the executor's log; never through Python's own lock
    )


def retry(call: Callable[[], T], *, transient: Callable[[Exception], bool], seconds: float) -> T:
    """Call until it returns, or raises an error that is not transient; after ``seconds`` raise the last error."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return call()
        except Exception as error:
            if not transient(error) or time.monotonic() > deadline:
                raise
        time.sleep(_PAUSE_SECONDS)


def in_parallel(call: Callable[[K], T], items: Iterable[K]) -> list[T]:
    """Call for every item, for up to `IN_PARALLEL` of them at once, and return the results in order.

    Raises the first error of a call. Calls that have not begun by then are skipped; the others are waited for.
    """
    errors: list[Exception] = []

    def run(item: K) -> T | None:
        try:
            return None if errors else call(item)
        except Exception as error:
            errors.append(error)
            return None

    with ThreadPoolExecutor(IN_PARALLEL, thread_name_prefix="claimcheck-pulsar") as threads:
        results = list(threads.map(run, items))
    if errors:
        raise errors[0]
    return cast("list[T]", results)


def list_partitions(client: pulsar.Client, connection: Connection, topics: Iterable[str]) -> list[str]:
    """Return the names of all partitions of topics; a topic without partitions is its own."""

    def names(topic: str) -> list[str]:
        with client_errors(connection, topic, "listing its partitions"):
            return list(client.get_topic_partitions(topic))

    return [name for each in in_parallel(names, topics) for name in each]


@contextlib.contextmanager
def client_errors(connection: Connection, topic: str, what: str) -> Iterator[None]:
    """Convert errors of the client into `TransportError`, with the topic, the operation, and why access was refused."""
    try:
        yield
    except vendor().exceptions.PulsarException as error:
        raise transport_error(connection, topic, f"{what} failed", error) from error


def transport_error(connection: Connection, topic: str, what: str, error: Exception) -> TransportError:
    """Return the `TransportError` for an error of the client."""
    kinds = vendor().exceptions
    text = f"{topic}: {what}: {type(error).__name__}"
    if isinstance(error, kinds.AuthorizationError):
        return AccessError(f"{text}. The token's role may not do that with this topic", destination=topic)
    if isinstance(error, kinds.Timeout | kinds.ConnectError | kinds.AuthenticationError):
        access = _access_error(connection, text)
        if access is not None:
            access.destination = topic
            return access
    if isinstance(error, kinds.Timeout | kinds.ConnectError):
        text = f"{text}. Is a broker running at {connection.hosts}, and can this machine reach it?"
    if isinstance(error, kinds.Timeout):
        text = f"{text} A broker has one port for pulsar://, one for pulsar+ssl:// and one for its web service"
    wrapped = TransportError(text, destination=topic)
    wrapped.retryable = isinstance(error, kinds.Timeout)
    return wrapped


def _access_error(connection: Connection, before: str) -> AccessError | None:
    """Return why the broker refuses the connection, after the text ``before``; ``None`` if it does not."""
    refusal = _probe(connection)
    if refusal is None:
        return None
    if refusal.certificate is None:
        return _refused(connection, before)
    return _not_trusted(connection.hosts, refusal.certificate, before)


def _not_trusted(where: str, reason: str, before: str) -> AccessError:
    return AccessError(
        f"{before}. The certificate of {where} is not trusted: {reason}. tlsTrustCertsFilePath names a file with the "
        "certificates to trust, on the driver and on every executor; the URL has to name the host as they do"
    )


def _refused(connection: Connection, before: str) -> AccessError:
    where, name = connection.hosts, connection.token_env
    if name is None:
        return AccessError(
            f"{before}: {where} requires a token. authTokenEnv names the environment variable that holds one, of the "
            "driver and of the executors (spark.executorEnv.NAME)"
        )
    return AccessError(
        f"{before}: {where} refuses the token in {name!r}, the environment variable that authTokenEnv names. It may "
        f"have expired, or be for another broker: set a new one for driver and executors (spark.executorEnv.{name}), "
        "and start them again"
    )


# The probe ----------------------------------------------------------------------------------------------------------


class _Refusal(NamedTuple):
    certificate: str | None  # why it is not trusted; ``None`` if the broker refuses the token


def _probe(connection: Connection) -> _Refusal | None:
    """Connect to the first host that answers; return ``None`` if it accepts the connection, or no host answers."""
    import certifi  # comes with the client, which falls back to it

    token, trust = connection.token(), connection.trust(certifi.where()) if connection.tls else None
    for host, port in connection.addresses:
        try:
            with socket.create_connection((host, port), _PROBE_SECONDS) as plain:
                if trust is None:
                    return _connect(plain, token)
                with trust.wrap_socket(plain, server_hostname=host) as encrypted:
                    return _connect(encrypted, token)
        except ssl.SSLCertVerificationError as error:
            return _Refusal(error.verify_message)
        except (OSError, ValueError):
            continue
    return None


def _connect(connected: socket.socket, token: str | None) -> _Refusal | None:
    """Send `CommandConnect` (2): client version, protocol version and token."""
    fields = _field(1, b"claimcheck") + _varint(4 << 3) + _varint(_PROTOCOL_VERSION)
    if token is not None:
        fields += _field(3, token.encode()) + _field(5, b"token")
    command = _varint(1 << 3) + _varint(2) + _field(2, fields)
    connected.sendall((len(command) + 4).to_bytes(4) + len(command).to_bytes(4) + command)
    size = int.from_bytes(_receive(connected, 4))
    response = _receive(connected, size)[4:] if size <= _MAX_RESPONSE_BYTES else b""
    return _Refusal(None) if _TOKEN_REFUSED.match(response) else None


def _field(number: int, value: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    return bytes([*encoded, value])


def _receive(connected: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        more = connected.recv(size - len(received))
        if not more:
            raise ConnectionError("the broker closed the connection")
        received += more
    return received


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
        fail("topic", found=f"{topic}, which does not exist", expected="the name of an existing topic")


def similar_topics(connection: Connection, topics: Iterable[str]) -> list[str]:
    """Return all topics in the namespaces of these topics, without their partitions. Raises as `ask_limit` does."""
    admin, found = _admin(connection), set[str]()
    try:
        for namespace in sorted({topic_path(topic).rpartition("/")[0] for topic in topics}):
            found |= {*(admin.get(namespace) or ()), *(admin.get(f"{namespace}/partitioned") or ())}
    except AdminError as error:
        raise _explained(connection, error) from error
    return sorted({_PARTITION.sub("", name) for name in found})


def cluster_name(connection: Connection) -> str:
    """Return the name of the cluster. Raises as `ask_limit` does."""
    try:
        return _admin(connection).cluster()
    except AdminError as error:
        raise _explained(connection, error) from error


def consumed_positions(connection: Connection, topics: Iterable[str]) -> dict[str, tuple[int, int]]:
    """Return up to which ledger and entry every durable subscription has acknowledged each partition of topics.

    Raises:
        AccessError: The web service refuses the token, or its certificate is not trusted.
        TransportError: It did not answer, or does not know the subscriptions.
    """
    admin = _admin(connection)
    try:
        names = [name for topic in topics for name in partitions_of(admin, topic)]
        return {name: consumed_position(admin, name) for name in names}
    except AdminError as error:
        raise _explained(connection, error) from error


def ledger_sizes(connection: Connection, partition: str) -> dict[int, int]:
    """Return the entries of each closed ledger of a partition; nothing without an ``adminUrl``.

    Raises as `ask_limit` does.
    """
    if connection.admin_url is None:
        return {}
    try:
        stats = _admin(connection).get(f"{topic_path(partition)}/internalStats") or {}
    except AdminError as error:
        raise _explained(connection, error) from error
    return {each["ledgerId"]: each["entries"] for each in stats.get("ledgers", ())}


def ask_limit(connection: Connection, topic: str) -> int:
    """Return the limit of one message: the broker's own, or the topic's if that is less.

    Raises:
        AccessError: The web service refuses the token, or its certificate is not trusted.
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
    reason = getattr(error.__cause__, "reason", None)
    if isinstance(reason, ssl.SSLCertVerificationError):
        return _not_trusted(
            urllib.parse.urlsplit(connection.admin_url or "").hostname or "", reason.verify_message, text
        )
    if error.status in (401, 403):  # 401 also for a valid token that lacks the permission
        forbidden = AccessError(f"{text}: the token's role lacks the permission. Without adminUrl no request is made")
        return _access_error(connection, text) or forbidden
    return TransportError(text)
