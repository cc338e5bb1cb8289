"""What a Pulsar cluster says: topics, policies, subscriptions, and the messages from one entry to another.

The web service (the admin REST API) has the topics that exist, where they end, and their policies; messages come from
readers. Nothing here acknowledges a message or creates a topic.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import re
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from http.client import HTTPMessage
from pathlib import Path
from types import ModuleType
from typing import IO, TYPE_CHECKING, Any

from claimcheck._registry import made_by
from claimcheck._validation import fail
from claimcheck.errors import TransportError, import_vendor
from claimcheck.transports._common.topics import IncompleteReadError

if TYPE_CHECKING:
    import pulsar

MAX_MESSAGE_BYTES = 5 << 20
"""The broker's default, 5 MiB."""

Entry = tuple[int, int]
"""A ledger, and an entry in it."""

NOTHING: Entry = -1, -1
"""Before the first entry of any topic."""

SECONDS = 30
_TIMEOUT_SECONDS = 10.0
_MAX_BYTES = 16 << 20
_PAUSE_SECONDS = 0.5
_QUEUE = 100
_DISABLED = (405, 412)  # topic-level policies are turned off
_PARTITION = re.compile(r"(.+)-partition-(\d+)")
_quiet = logging.getLogger(__name__)  # the client would write to standard output
_quiet.addHandler(logging.NullHandler())
_quiet.propagate = False


def vendor() -> ModuleType:
    return import_vendor("pulsar", extra="pulsar")


@dataclass(frozen=True, slots=True)
class PulsarTarget:
    """Topics and subscriptions of a Pulsar cluster, and how to connect to it."""

    url: str | None = field(repr=False)
    admin_url: str | None = field(repr=False)
    topics: tuple[str, ...]
    subscriptions: tuple[str, ...] = ()
    token: str | None = field(default=None, repr=False)
    ca_file: str | None = None
    listener_name: str | None = None
    function: str | None = None  # that makes the client

    @property
    def secrets(self) -> list[str]:
        """Words that no text may contain."""
        return (self.token or "").split()

    def admin(self, *, seconds: float = SECONDS) -> AdminClient:
        option = "CLAIMCHECK_PULSAR_TLS_TRUST_CERTS_FILE_PATH"
        trust = trusting(self.ca_file, option=option, function=self.function, path="--client")
        return AdminClient(self.admin_url or "", headers=bearer(self.token), trust=trust, timeout_seconds=seconds)

    def client(self, *, seconds: int = SECONDS) -> pulsar.Client:
        """Return a client for the broker; it connects at first use."""
        return open_client(
            self.url or "",
            self.function,
            path="--client",
            token=self.token,
            operation_timeout_seconds=seconds,
            tls_trust_certs_file_path=self.ca_file,
            listener_name=self.listener_name,
            logger=_quiet,
        )


def open_client(
    url: str, function: str | None, *, path: str, token: str | None, tls_validate_hostname: bool = True, **options: Any
) -> pulsar.Client:
    """Return a client, which connects at first use: that of the function of an option, or one with its arguments."""
    library, made = vendor(), made_by(function, path=path)
    if isinstance(made, library.Client):
        return made
    own = {"authentication": library.AuthenticationToken(token)} if token else {}
    return library.Client(url, **{"tls_validate_hostname": tls_validate_hostname, **options, **own, **made})


# Topics and their policies -------------------------------------------------------------------------------------


def topics_of(admin: AdminClient, namespaces: Iterable[str]) -> list[str]:
    """Return all topics of namespaces, sorted; one with partitions counts once."""
    found: set[str] = set()
    for namespace in sorted(set(namespaces)):
        partitioned = set(admin.get(f"persistent/{namespace}/partitioned") or ())
        single = admin.get(f"persistent/{namespace}") or ()
        found |= partitioned | {name for name in single if split_partition(name)[0] not in partitioned}
    return sorted(found)


def partitions_of(admin: AdminClient, topic: str) -> list[str]:
    """Return the names of a topic's partitions; the topic itself if it has none."""
    count = (admin.get(f"{topic_path(topic)}/partitions") or {}).get("partitions") or 0
    return [f"{topic}-partition-{number}" for number in range(count)] or [topic]


def split_partition(name: str) -> tuple[str, int]:
    """Return the topic of a partition, and its number; -1 for any other name."""
    found = _PARTITION.fullmatch(name)
    return (found[1], int(found[2])) if found else (name, -1)


def topic_stats(admin: AdminClient, topic: str) -> dict[str, Any] | None:
    """Return the statistics of a topic, with the age of each backlog; ``None`` if there is no such topic."""
    path = topic_path(topic)
    partitions = (admin.get(f"{path}/partitions") or {}).get("partitions")
    which = "partitioned-stats?perPartition=true&" if partitions else "stats?"
    stats: dict[str, Any] | None = admin.get(f"{path}/{which}getEarliestTimeInBacklog=true")
    if stats is not None and partitions:
        for name, each in stats.get("subscriptions", {}).items():  # their sum loses some of the times
            parts = [part["subscriptions"].get(name, {}) for part in stats.get("partitions", {}).values()]
            times = [part.get("earliestMsgPublishTimeInBacklog") or 0 for part in parts]
            each["earliestMsgPublishTimeInBacklog"] = min((time for time in times if time > 0), default=0)
    return stats


def retention_seconds(admin: AdminClient, topic: str) -> float | None:
    """Return how long acknowledged messages are kept; ``None`` for no limit."""
    minutes = (policy(admin, topic, "retention") or {}).get("retentionTimeInMinutes", 0)
    return minutes * 60.0 if minutes >= 0 else None


def ttl_seconds(admin: AdminClient, topic: str) -> float | None:
    """Return the time after which unacknowledged messages are dropped; ``None`` for never."""
    return float(policy(admin, topic, "messageTTL") or 0) or None


def policy(admin: AdminClient, topic: str, name: str) -> Any:
    """Return the policy in effect: that of the topic, else of its namespace, else of the broker."""
    path = topic_path(topic)
    try:
        return admin.get(f"{path}/{name}?applied=true")
    except AdminError as error:
        if error.status not in _DISABLED:
            raise
        return admin.get(f"namespaces/{'/'.join(path.split('/')[1:3])}/{name}")


# Entries and messages ------------------------------------------------------------------------------------------


def internal_stats(admin: AdminClient, name: str) -> Mapping[str, Any]:
    """Return the ledgers, the last entry and the cursors of a partition."""
    stats: Mapping[str, Any] | None = admin.get(f"{topic_path(name)}/internalStats")
    if stats is None:
        raise IncompleteReadError(f"topic {name} cannot be read: it has no statistics", destination=name)
    return stats


def entry_of(text: str) -> Entry:
    """Return ledger and entry of a position as the web service writes it."""
    ledger, _, entry = text.partition(":")
    return int(ledger), int(entry)


def consumed_position(admin: AdminClient, name: str) -> Entry:
    """Return the position up to which every durable subscription has acknowledged everything."""
    known = (admin.get(f"{topic_path(name)}/stats") or {}).get("subscriptions", {})
    marks = [
        entry_of(cursor["markDeletePosition"])
        for subscription, cursor in internal_stats(admin, name).get("cursors", {}).items()
        if known.get(urllib.parse.unquote(subscription), {}).get("durable", True)
    ]
    return min(marks, default=NOTHING)


def read(client: pulsar.Client, admin: AdminClient, name: str, start: Entry, end: Entry) -> Iterator[Any]:
    """Yield the messages of a partition after ``start`` up to ``end``."""
    at, deadline, is_last = start, time.monotonic() + SECONDS, False
    try:
        with contextlib.closing(_reader(client, name, start)) as reader:
            while at < end:
                while reader.has_message_available() and at <= end:
                    message = reader.read_next(SECONDS * 1000)
                    at = message.message_id().ledger_id(), message.message_id().entry_id()
                    yield message
                if is_last:
                    return
                is_last = _is_quiet(admin, name, deadline)
    except vendor().PulsarException as error:
        text = f"topic {name} cannot be read ({type(error).__name__})"
        raise IncompleteReadError(text, destination=name) from error


def _reader(client: pulsar.Client, name: str, start: Entry) -> pulsar.Reader:
    message_id = vendor().MessageId
    first = message_id.earliest if start[1] < 0 else message_id(split_partition(name)[1], *start, -1)
    return client.create_reader(name, first, receiver_queue_size=_QUEUE)


def _is_quiet(admin: AdminClient, name: str, deadline: float) -> bool:
    """Whether no transaction is open; until it ends, no reader receives what was appended after it began."""
    if not (admin.get(f"{topic_path(name)}/stats") or {}).get("ongoingTxnCount"):
        return True
    if time.monotonic() > deadline:
        text = f"topic {name} cannot be read to its end because of an open transaction: run it again"
        raise IncompleteReadError(text, destination=name)
    time.sleep(_PAUSE_SECONDS)
    return False


# The web service -----------------------------------------------------------------------------------------------------


class AdminError(TransportError):
    """The web service did not answer a request, or refused it."""

    def __init__(self, text: str, *, status: int | None = None) -> None:
        super().__init__(text)
        self.status = status


class AdminClient:
    """Reads from one web service. Certificates and host names are verified."""

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        trust: ssl.SSLContext | None = None,
        timeout_seconds: float = _TIMEOUT_SECONDS,
    ) -> None:
        try:
            parts = urllib.parse.urlsplit(url)
        except ValueError as error:
            raise AdminError(f"admin_url is not a URL: {error}") from error
        if parts.scheme not in ("http", "https"):
            raise AdminError("admin_url must begin with http:// or https://")
        if "@" in parts.netloc:  # urllib takes them for a host, and its errors quote them
            raise AdminError("admin_url must have no credentials: use the headers")
        self._url = url.rstrip("/")
        self._headers = dict(headers or {})
        self._timeout_seconds = timeout_seconds
        self.date: str | None = None
        """The ``Date`` header of the last response."""
        secure = urllib.request.HTTPSHandler(context=trust or ssl.create_default_context())
        self._opener = urllib.request.build_opener(secure, _Redirects())

    def __repr__(self) -> str:
        return f"<AdminClient of {urllib.parse.urlsplit(self._url).hostname}>"

    def get(self, path: str) -> Any:
        """Return the decoded JSON at a path below ``/admin/v2/``; ``None`` for an empty response or a 404."""
        request = urllib.request.Request(f"{self._url}/admin/v2/{path}", headers=self._headers)
        try:
            with self._opener.open(request, timeout=self._timeout_seconds) as response:
                self.date = response.headers["Date"]
                body = response.read(_MAX_BYTES)
            return json.loads(body) if body.strip() else None
        except urllib.error.HTTPError as error:
            error.close()
            self.date = error.headers["Date"]
            if error.code == 404:
                return None
            raise AdminError(self._refused(path, error), status=error.code) from error
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise AdminError(f"the web service did not answer {path}: {type(error).__name__}") from error

    def max_message_bytes(self, topic: str) -> int:
        """Return the limit of one message: the broker's, or the topic's if that is less. Raises as `get`."""
        settings = self.get("brokers/configuration/runtime")
        if settings is None:
            raise AdminError("the web service does not know the broker's configuration (404)", status=404)
        broker = int(settings["maxMessageSize"])
        return min(broker, int(self.get(f"{topic_path(topic)}/maxMessageSize") or broker))

    def cluster(self) -> str:
        """Return the name of the broker's cluster, with ``pulsar:`` before it. Raises as `get`."""
        names = [name for name in self.get("clusters") or () if name != "global"]
        if len(names) != 1:
            settings = self.get("brokers/configuration/runtime") or {}
            names = [name for name in (settings.get("clusterName"),) if name]
        if not names:
            raise AdminError("the web service does not name its cluster")
        return f"pulsar:{names[0]}"

    def _refused(self, path: str, error: urllib.error.HTTPError) -> str:
        text = f"the web service did not answer {path} ({error.code})"
        if self._headers and _origin(error.url) != _origin(self._url):
            host = urllib.parse.urlsplit(error.url).hostname
            text += f": it redirected to {host}, where the headers (a token, for example) are not sent"
        return text


def ask_limit(
    admin_url: str, topic: str, *, headers: Mapping[str, str] | None = None, ca_file: str | None = None
) -> int:
    """Return a broker's limit for one message, in bytes: its own, or the topic's if that is less.

    Args:
        admin_url: The web service, for example ``http://localhost:8080``.
        topic: With or without its ``persistent://tenant/namespace/``.
        headers: For example ``{"Authorization": "Bearer ..."}``; never sent to another host, even after a redirect.
        ca_file: CA certificates (PEM) to trust; by default the system's.

    Raises:
        TransportError: The broker did not answer, or refused the request.
        ConfigError: ``ca_file`` cannot be used.
    """
    trust = trusting(ca_file, option="ca_file")
    return AdminClient(admin_url, headers=headers, trust=trust).max_message_bytes(topic)


def full_name(topic: str) -> str:
    """Return the complete name of a topic: ``orders`` is ``persistent://public/default/orders``."""
    if "://" in topic:
        return topic
    return f"persistent://{topic}" if topic.count("/") == 2 else f"persistent://public/default/{topic}"


def topic_path(topic: str) -> str:
    return urllib.parse.quote(full_name(topic).replace("://", "/"))


def bearer(token: str | None) -> dict[str, str]:
    """Return the headers that the web service needs with each request."""
    return {"Authorization": f"Bearer {token}"} if token else {}


def trusting(ca_file: str | Path | None, *, option: str, function: str | None = None, path: str = "") -> ssl.SSLContext:
    """Return an SSL context that verifies certificates and host names, with the certificate of a caller's client."""
    made = made_by(function, path=path)
    if not isinstance(made, Mapping):  # a client does not tell its certificate
        made = made.close() or {}
    try:
        context = ssl.create_default_context(cafile=ca_file)
        if certificate := made.get("tls_certificate_file_path"):
            context.load_cert_chain(certificate, made.get("tls_private_key_file_path"))
        return context
    except OSError as error:  # includes SSLError
        found = f"{str(ca_file)!r}, in which no certificates can be read ({type(error).__name__})"
        fail(option, found=found, expected="the path of a PEM file with certificates")


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects, but not from https to http, and without the caller's headers to another origin."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> urllib.request.Request | None:
        allowed = ("https",) if req.full_url.startswith("https:") else ("http", "https")
        if urllib.parse.urlsplit(newurl).scheme not in allowed:
            raise urllib.error.HTTPError(req.full_url, code, "redirected from https to http", headers, fp)
        redirected = super().redirect_request(req, fp, code, msg, headers, newurl)
        if redirected is not None and _origin(newurl) != _origin(req.full_url):
            redirected.headers = {}
        return redirected


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urllib.parse.urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)
