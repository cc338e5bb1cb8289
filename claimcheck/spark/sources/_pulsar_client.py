"""The Pulsar client, one per process and broker, its subscriptions, the web service, and the errors of all.

The client cannot tell a refused token from a timeout: when a broker refuses a token, or requires one, the client
reconnects until its operation times out, and raises ``Timeout`` as for a broker that does not exist (measured with
client 3.13 and broker 4.2). The web service reports the reason, if there is an ``adminUrl``.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import ssl
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar

from claimcheck._validation import SECRET, Check, Function, Timeout, fail
from claimcheck.errors import TransportError
from claimcheck.spark.sources._options import TEXT, AccessError, SubscriptionBusyError, Values, by_field, require
from claimcheck.transports.pulsar._queries import (
    NOTHING,
    AdminClient,
    AdminError,
    bearer,
    split_partition,
    topic_path,
    trusting,
    vendor,
)
from claimcheck.transports.pulsar._queries import open_client as open_pulsar

if TYPE_CHECKING:
    import pulsar

_log = logging.getLogger(__name__)

K = TypeVar("K")
T = TypeVar("T")

_BUSY_SECONDS = 10.0  # the broker notices within a second or two that a process was killed
IN_PARALLEL = 256  # requests of one client: they wait for the broker, and after a `seek` 100 ms to connect again
_PAUSE_SECONDS = 0.5
_PORT = r"(?:[1-5]?\d{1,4}|6[0-4]\d{3}|65[0-4]\d\d|655[0-2]\d|6553[0-5])"
_HOST = rf"(?:[\w.-]+|\[[0-9a-fA-F:.]+\])(?::{_PORT})?"
_ADMIN = re.compile(rf"https?://{_HOST}(?:/[^@?#\s]*)?")
_SERVICE = re.compile(rf"pulsar(?:\+ssl)?://{_HOST}(?:,{_HOST})*/?")
_ADMIN_URL = "http://host:port or https://host:port, without a user"
_SERVICE_URL = "pulsar://host:port or pulsar+ssl://host:port, without a user; for tokens there is authTokenEnv"


Position = tuple[int, int]
"""Ledger and entry, both from 0. A batch is one entry: it is read as a whole."""

NativeId: TypeAlias = Any  # of the client's C++ core
NativeMessage: TypeAlias = Any

CONNECTION_OPTIONS: dict[str, object] = {
    "serviceUrl": Annotated[str, SECRET, Check(lambda url: _SERVICE.fullmatch(url) is not None, _SERVICE_URL)],
    "adminUrl": Annotated[str, SECRET, Check(lambda url: _ADMIN.fullmatch(url) is not None, _ADMIN_URL)],
    "authTokenEnv": TEXT,
    "client": Function,
    "tlsTrustCertsFilePath": TEXT,
    "tlsValidateHostname": bool,
    "operationTimeoutSeconds": Timeout,
}
"""The options of the source that also serve the garbage collection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """A broker's addresses and credentials; the name of the token's variable only, so that it can be part of a plan."""

    service_url: str
    admin_url: str | None = None
    auth_token_env: str | None = None
    client: str | None = None  # the function that makes it
    tls_trust_certs_file_path: str | None = None
    tls_validate_hostname: bool = True
    operation_timeout_seconds: float = 60.0

    @classmethod
    def of(cls, values: Values) -> Connection:
        require(values, "serviceUrl", _SERVICE_URL)
        return cls(**{"operation_timeout_seconds": values.get("readTimeoutSeconds", 60.0)} | by_field(cls, values))

    def token(self) -> str | None:
        if self.auth_token_env is None:
            return None
        if not (token := os.environ.get(self.auth_token_env)):
            expected = "a variable that driver and executors have when Spark starts (spark.executorEnv.NAME)"
            fail("authTokenEnv", found=f"{self.auth_token_env!r}, which is not set in this process", expected=expected)
        return token

    def trust(self) -> ssl.SSLContext:
        """Return an SSL context that trusts the named certificates, or else the machine's own."""
        file = self.tls_trust_certs_file_path
        context = trusting(file, option="tlsTrustCertsFilePath", function=self.client, path="client")
        context.check_hostname = self.tls_validate_hostname
        return context


# The client ---------------------------------------------------------------------------------------------------------

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
    if connection.service_url.startswith("pulsar+ssl:"):
        connection.trust()  # the client reports no file that it cannot read
    return open_pulsar(
        connection.service_url,
        connection.client,
        path="client",
        token=connection.token(),
        operation_timeout_seconds=max(1, round(connection.operation_timeout_seconds)),
        tls_trust_certs_file_path=connection.tls_trust_certs_file_path,
        tls_validate_hostname=connection.tls_validate_hostname,
        logger=library.ConsoleLogger(library.LoggerLevel.Error),  # the executor's log; never through Python's own lock
    )


def retry(call: Callable[[], T], transient: type[Exception], *, seconds: float) -> T:
    """Call until it returns, or raises an error that is not transient; after ``seconds`` raise the last error."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return call()
        except transient:
            if time.monotonic() > deadline:
                raise
        time.sleep(_PAUSE_SECONDS)


def in_parallel(call: Callable[[K], T], items: Iterable[K]) -> list[T]:
    """Call for every item, for up to `IN_PARALLEL` of them at once, and return the results in order."""
    with ThreadPoolExecutor(IN_PARALLEL, thread_name_prefix="claimcheck-pulsar") as threads:
        return list(threads.map(call, items))  # after an error, those that did not start are cancelled


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
    kinds, hosts = vendor().exceptions, connection.service_url.partition("://")[2].rstrip("/").replace(",", ", ")
    text = f"{topic}: {what}: {type(error).__name__}"
    if isinstance(error, kinds.AuthorizationError | kinds.AuthenticationError):
        why = "refuses the token (authTokenEnv), or its role lacks the permission"
        return AccessError(f"{text}. {hosts} {why}", destination=topic)
    if isinstance(error, kinds.Timeout | kinds.ConnectError):
        text = (
            f"{text}. Is a broker running at {hosts}, can this machine reach it, does it accept the token "
            "(authTokenEnv), and is its certificate trusted (tlsTrustCertsFilePath)? A broker has one port for "
            "pulsar://, one for pulsar+ssl:// and one for its web service"
        )
    wrapped = TransportError(text, destination=topic)
    wrapped.retryable = isinstance(error, kinds.Timeout)
    return wrapped


# Reading from one partition -------------------------------------------------------------------------------------------


def message_id_at(partition: str, position: Position) -> pulsar.MessageId:
    """Return the id of an entry; the earliest one for `NOTHING`."""
    if position == NOTHING:
        return vendor().MessageId.earliest
    return vendor().MessageId(split_partition(partition)[1], *position, -1)


def position_of(message: NativeMessage) -> Position:
    message_id: NativeId = message.message_id()
    return message_id.ledger_id(), message_id.entry_id()


def open_reader(client: pulsar.Client, partition: str, start: Position | None, *, queue: int) -> pulsar.Reader:
    """Return a reader that begins with an entry, or with the topic's last one; it skips nothing."""
    first = vendor().MessageId.latest if start is None else message_id_at(partition, start)
    return client.create_reader(
        partition, first, start_message_id_inclusive=True, receiver_queue_size=queue, **unfiltered()
    )


def unfiltered() -> dict[str, object]:
    """Return arguments for a reader or consumer that does not skip messages that it cannot decrypt."""
    return {"crypto_failure_action": vendor().ConsumerCryptoFailureAction.CONSUME}


# The web service ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def web_service(connection: Connection) -> Iterator[AdminClient]:
    url = connection.admin_url or ""
    try:
        yield AdminClient(
            url, headers=bearer(connection.token()), trust=connection.trust() if url.startswith("https:") else None
        )
    except AdminError as error:
        raise _explained(connection, error) from error


def check_topic(connection: Connection, topic: str) -> None:
    """Check that a topic exists, if there is an ``adminUrl``; clients would create it."""
    if connection.admin_url is None:
        return
    path = topic_path(topic)
    with web_service(connection) as admin:
        metadata = admin.get(f"{path}/partitions")
        missing = metadata is None or (not metadata.get("partitions") and admin.get(f"{path}/stats") is None)
    if missing:
        fail("topic", found=f"{topic}, which does not exist", expected="the name of an existing topic")


def ledger_sizes(connection: Connection, partition: str) -> dict[int, int]:
    """Return the entries of each closed ledger of a partition; nothing without an ``adminUrl``."""
    if connection.admin_url is None:
        return {}
    with web_service(connection) as admin:
        stats = admin.get(f"{topic_path(partition)}/internalStats") or {}
    return {each["ledgerId"]: each["entries"] for each in stats.get("ledgers", ())}


def _explained(connection: Connection, error: AdminError) -> TransportError:
    text, reason = f"adminUrl: {error}", getattr(error.__cause__, "reason", None)
    if isinstance(reason, ssl.SSLCertVerificationError):
        return AccessError(
            f"{text}. The certificate of {urllib.parse.urlsplit(connection.admin_url or '').hostname} is not trusted: "
            f"{reason.verify_message}. tlsTrustCertsFilePath names a file with the certificates to trust, on the "
            "driver and on every executor; the URL has to name the host as they do"
        )
    if error.status in (401, 403):  # 401 also for a valid token that lacks the permission
        why = "it refuses the token (authTokenEnv), or the token's role lacks the permission"
        return AccessError(f"{text}: {why}. Without adminUrl no request is made")
    return TransportError(text)


# Subscriptions ------------------------------------------------------------------------------------------------------


class Subscriptions:
    """The subscriptions of one query, on the driver."""

    def __init__(self, connection: Connection, subscription: str, partitions: Callable[..., list[str]]) -> None:
        self._connection, self._subscription, self._partitions = connection, subscription, partitions
        self.client = open_client(self._connection)
        self._names = partitions(self.client)
        self._consumers: dict[str, pulsar.Consumer] = {}
        self._committed: dict[str, Position] = {}
        self._known: set[str] = set()  # partitions whose subscription is where it was left

    def last(self) -> dict[str, Position]:
        self._names = self._partitions(self.client, known=True)
        return dict(zip(self._names, in_parallel(self._last, self._names), strict=True))

    def begin(self, start_of: Callable[[pulsar.Client, str, Position], Position]) -> dict[str, Position]:
        """Move the subscription to where the query starts, and return these positions."""
        ends = {name: end for name, end in self.last().items() if end != NOTHING}
        starts = dict(zip(ends, in_parallel(lambda name: start_of(self.client, name, ends[name]), ends), strict=True))
        in_parallel(lambda name: self._seek(name, starts[name]), starts)
        return {name: start for name, start in starts.items() if start != NOTHING}

    def was_moved(self, name: str) -> bool:
        """Whether the subscription was moved in a partition of which this query has read nothing."""
        if name in self._known:
            return False
        millis = round(self._connection.operation_timeout_seconds * 1000)
        with client_errors(self._connection, name, "reading its first message"):
            with contextlib.closing(open_reader(self.client, name, NOTHING, queue=1)) as reader:
                first = position_of(reader.read_next(millis))
            try:
                moved = position_of(self._consumer(name).receive(millis)) != first
            except vendor().exceptions.Timeout:
                self._consumer(name).get_last_message_id()  # raises if no broker answers
                moved = True  # it has no message, but the partition has
        self._known.add(name)
        return moved

    def release(self, offsets: dict[str, Position]) -> None:
        """Acknowledge what is committed, except the last entry: while it exists, nothing after it was deleted."""
        read = {name: position for name, position in offsets.items() if name in self._names}
        new = read.items() - self._committed.items()
        self._committed.update(read)
        # -1, before the first entry of a ledger, acknowledges all ledgers before it.
        in_parallel(lambda each: self._acknowledge(each[0], (each[1][0], each[1][1] - 1)), new)

    def close(self) -> None:
        with contextlib.suppress(vendor().exceptions.PulsarException):
            self.client.close()

    def _seek(self, name: str, position: Position) -> None:
        # The last entry is kept, too: it will prove that nothing after it was deleted.
        place = message_id_at(name, position)
        with client_errors(self._connection, name, "moving the subscription"):
            self._consumer(name).seek(place)
        self._known.add(name)

    def _last(self, name: str) -> Position:
        consumer = self._consumer(name)
        with client_errors(self._connection, name, "reading its last message id"):
            pending = vendor().exceptions.BrokerMetadataError
            last = retry(consumer.get_last_message_id, pending, seconds=_BUSY_SECONDS)
        ledger, entry = last.ledger_id(), last.entry_id()
        return (ledger, entry) if ledger >= 0 and entry >= 0 else NOTHING

    def _consumer(self, name: str) -> pulsar.Consumer:
        if name not in self._consumers:
            subscribe = partial(self._subscribe, name)
            self._consumers[name] = retry(subscribe, SubscriptionBusyError, seconds=_BUSY_SECONDS)
        return self._consumers[name]

    def _subscribe(self, name: str) -> pulsar.Consumer:
        library = vendor()
        with client_errors(self._connection, name, "subscribing"):
            try:
                return self.client.subscribe(
                    name,
                    self._subscription,
                    consumer_type=library.ConsumerType.Exclusive,
                    initial_position=library.InitialPosition.Earliest,
                    receiver_queue_size=1,  # `was_moved` needs one message
                    start_message_id_inclusive=True,
                    **unfiltered(),
                )
            except library.exceptions.ConsumerBusy as error:
                text = (
                    f"{name}: another query, or another run of this one, holds the subscription {self._subscription!r}."
                    " Each query needs a subscription of its own, and one run at a time"
                )
                raise SubscriptionBusyError(text, destination=name) from error

    def _acknowledge(self, name: str, position: Position) -> None:
        try:
            self._consumer(name).acknowledge_cumulative(message_id_at(name, position))
        except Exception as error:
            _log.warning("%s: could not acknowledge what was read: %s", name, type(error).__name__)
