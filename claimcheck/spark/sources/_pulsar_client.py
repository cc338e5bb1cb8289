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
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, TypeVar, cast

from claimcheck._validation import SECRET, Check, Timeout, fail
from claimcheck.errors import TransportError
from claimcheck.spark.sources._options import TEXT, AccessError, Values, require
from claimcheck.transports.pulsar._queries import AdminClient, AdminError, topic_path, vendor

if TYPE_CHECKING:
    import pulsar

K = TypeVar("K")
T = TypeVar("T")

IN_PARALLEL = 256  # requests of one client: they wait for the broker, and after a `seek` 100 ms to connect again
_PAUSE_SECONDS = 0.5
_HOST = r"(?:[\w.-]+|\[[0-9a-fA-F:.]+\])(?::\d{1,5})?"
_ADMIN = re.compile(rf"https?://{_HOST}(?:/[^@?#\s]*)?")
_SERVICE = re.compile(rf"pulsar(?:\+ssl)?://{_HOST}(?:,{_HOST})*/?")
_ADMIN_URL = "http://host:port or https://host:port, without a user"
_SERVICE_URL = "pulsar://host:port or pulsar+ssl://host:port, without a user; for tokens there is authTokenEnv"


def _is_service_url(url: str) -> bool:
    return _SERVICE.fullmatch(url) is not None and all(int(port) < 65536 for port in re.findall(r":(\d+)", url))


CONNECTION_OPTIONS: dict[str, object] = {
    "serviceUrl": Annotated[str, SECRET, Check(_is_service_url, _SERVICE_URL)],
    "adminUrl": Annotated[str, SECRET, Check(lambda url: _ADMIN.fullmatch(url) is not None, _ADMIN_URL)],
    "authTokenEnv": TEXT,
    "tlsTrustCertsFilePath": TEXT,
    "tlsValidateHostname": bool,
    "operationTimeoutSeconds": Timeout,
}
"""The options that sources and sinks share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """A broker's addresses and credentials; the name of the token's variable only, so that it can be part of a plan."""

    service_url: str
    admin_url: str | None = None
    token_env: str | None = None
    trust_certs: str | None = None
    validate_hostname: bool = True
    timeout_seconds: float = 60.0

    @classmethod
    def of(cls, values: Values, *, timeout_seconds: float) -> Connection:
        return cls(
            service_url=require(values, "serviceUrl", _SERVICE_URL),
            admin_url=values.get("adminUrl"),
            token_env=values.get("authTokenEnv"),
            trust_certs=values.get("tlsTrustCertsFilePath"),
            validate_hostname=values.get("tlsValidateHostname", True),
            timeout_seconds=values.get("operationTimeoutSeconds", timeout_seconds),
        )

    @property
    def hosts(self) -> str:
        return self.service_url.partition("://")[2].rstrip("/").replace(",", ", ")

    @property
    def tls(self) -> bool:
        return self.service_url.startswith("pulsar+ssl:")

    def token(self) -> str | None:
        if self.token_env is None:
            return None
        if not (token := os.environ.get(self.token_env)):
            expected = "a variable that driver and executors have when Spark starts (spark.executorEnv.NAME)"
            fail("authTokenEnv", found=f"{self.token_env!r}, which is not set in this process", expected=expected)
        return token

    def trust(self) -> ssl.SSLContext:
        """Return an SSL context that trusts the named certificates, or else the machine's own."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            if self.trust_certs is None:
                context.load_default_certs()
            else:
                context.load_verify_locations(self.trust_certs)
        except OSError as error:  # errors of TLS are among them
            found = f"{self.trust_certs!r}, in which this process finds no certificates ({type(error).__name__})"
            expected = "a file of certificates (PEM), on the driver and on every executor"
            fail("tlsTrustCertsFilePath", found=found, expected=expected)
        context.check_hostname = self.validate_hostname
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
    token = connection.token()
    if connection.tls:
        connection.trust()  # the client reports no file that it cannot read
    return library.Client(
        connection.service_url,
        authentication=library.AuthenticationToken(token) if token else None,
        operation_timeout_seconds=max(1, round(connection.timeout_seconds)),
        tls_trust_certs_file_path=connection.trust_certs,
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
    kinds = vendor().exceptions
    text = f"{topic}: {what}: {type(error).__name__}"
    if isinstance(error, kinds.AuthorizationError | kinds.AuthenticationError):
        why = "refuses the token (authTokenEnv), or its role lacks the permission"
        return AccessError(f"{text}. {connection.hosts} {why}", destination=topic)
    if isinstance(error, kinds.Timeout | kinds.ConnectError):
        text = (
            f"{text}. Is a broker running at {connection.hosts}, can this machine reach it, does it accept the token "
            "(authTokenEnv), and is its certificate trusted (tlsTrustCertsFilePath)? A broker has one port for "
            "pulsar://, one for pulsar+ssl:// and one for its web service"
        )
    wrapped = TransportError(text, destination=topic)
    wrapped.retryable = isinstance(error, kinds.Timeout)
    return wrapped


# The web service ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def web_service(connection: Connection) -> Iterator[AdminClient]:
    token, url = connection.token(), connection.admin_url or ""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        yield AdminClient(url, headers=headers, trust=connection.trust() if url.startswith("https:") else None)
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
