"""The Pulsar client, one per process and broker, the web service, and the errors of both.

The client cannot tell a refused token from a timeout: when a broker refuses a token, or requires one, the client
reconnects until its operation times out, and raises ``Timeout`` as for a broker that does not exist (measured with
client 3.13 and broker 4.2). The web service reports the reason, if there is an ``adminUrl``.
"""

from __future__ import annotations

import contextlib
import os
import re
import ssl
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar, cast

from claimcheck._validation import fail
from claimcheck.errors import TransportError
from claimcheck.spark.sources._errors import AccessError
from claimcheck.spark.sources._pulsar.connection import Connection
from claimcheck.transports.pulsar._admin import AdminClient, AdminError, topic_path
from claimcheck.transports.pulsar._errors import vendor
from claimcheck.transports.pulsar._queries import consumed_position, partitions_of

if TYPE_CHECKING:
    import pulsar

K = TypeVar("K")
T = TypeVar("T")

IN_PARALLEL = 256  # requests of one client: they wait for the broker, and after a `seek` 100 ms to connect again
_PARTITION = re.compile(r"-partition-\d+$")
_PAUSE_SECONDS = 0.5

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
    """Open a client, which the caller closes. It connects at first use."""
    library = vendor()
    token = connection.token()
    if connection.tls:
        connection.trust()  # the client reports no file that it cannot read
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
    """Call for every item, for up to `IN_PARALLEL` of them at once, and return the results in order."""
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
    """Convert errors of the client into `TransportError`, with the topic and the operation."""
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
    if isinstance(error, kinds.AuthenticationError):
        return AccessError(f"{text}. {connection.hosts} refuses the token (authTokenEnv)", destination=topic)
    if isinstance(error, kinds.Timeout | kinds.ConnectError):
        text = (
            f"{text}. Is a broker running at {connection.hosts}, can this machine reach it, does it accept the token "
            "(authTokenEnv), and is its certificate trusted (tlsTrustCertsFilePath)?"
        )
    if isinstance(error, kinds.Timeout):
        text = f"{text} A broker has one port for pulsar://, one for pulsar+ssl:// and one for its web service"
    wrapped = TransportError(text, destination=topic)
    wrapped.retryable = isinstance(error, kinds.Timeout)
    return wrapped


def _not_trusted(where: str, reason: str, before: str) -> AccessError:
    return AccessError(
        f"{before}. The certificate of {where} is not trusted: {reason}. tlsTrustCertsFilePath names a file with the "
        "certificates to trust, on the driver and on every executor; the URL has to name the host as they do"
    )


# The web service ----------------------------------------------------------------------------------------------------


def check_topic(connection: Connection, topic: str) -> None:
    """Check that a topic exists, if there is an ``adminUrl``; clients would create it."""
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
    """Return up to which ledger and entry every durable subscription has acknowledged each partition of topics."""
    admin = _admin(connection)
    try:
        names = [name for topic in topics for name in partitions_of(admin, topic)]
        return {name: consumed_position(admin, name) for name in names}
    except AdminError as error:
        raise _explained(connection, error) from error


def ledger_sizes(connection: Connection, partition: str) -> dict[int, int]:
    """Return the entries of each closed ledger of a partition; nothing without an ``adminUrl``."""
    if connection.admin_url is None:
        return {}
    try:
        stats = _admin(connection).get(f"{topic_path(partition)}/internalStats") or {}
    except AdminError as error:
        raise _explained(connection, error) from error
    return {each["ledgerId"]: each["entries"] for each in stats.get("ledgers", ())}


def ask_limit(connection: Connection, topic: str) -> int:
    """Return the limit of one message: the broker's own, or the topic's if that is less."""
    try:
        return _admin(connection).max_message_bytes(topic)
    except AdminError as error:
        raise _explained(connection, error) from error


def _admin(connection: Connection) -> AdminClient:
    token, url = connection.token(), connection.admin_url or ""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return AdminClient(url, headers=headers, trust=connection.trust() if url.startswith("https:") else None)


def _explained(connection: Connection, error: AdminError) -> TransportError:
    text = f"adminUrl: {error}"
    reason = getattr(error.__cause__, "reason", None)
    if isinstance(reason, ssl.SSLCertVerificationError):
        return _not_trusted(
            urllib.parse.urlsplit(connection.admin_url or "").hostname or "", reason.verify_message, text
        )
    if error.status in (401, 403):  # 401 also for a valid token that lacks the permission
        why = "it refuses the token (authTokenEnv), or the token's role lacks the permission"
        return AccessError(f"{text}: {why}. Without adminUrl no request is made")
    return TransportError(text)
