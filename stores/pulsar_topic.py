"""Payloads in a topic of their own, as Apache Pulsar's PIP-37 once thought of it: for whoever has Pulsar and no store.

A payload goes to the side topic in chunks; its pointer, with the place of the first one, goes over the main topic. Any
consumer of any subscription type resolves it, with a reader of its own.

A log forgets by age and size only. So `rollback` removes nothing: what it is asked to undo stays, unreachable once the
pointer is gone, until the topic's retention ends. And without a retention nothing is kept at all.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from typing import Annotated, Any

from claimcheck.envelope import Envelope
from claimcheck.errors import ConfigError, PayloadTooLargeError, StoreError, StoreUnavailableError
from claimcheck.payload import Source
from claimcheck.pointer import Pointer
from claimcheck.registry import import_vendor
from claimcheck.store import Store
from claimcheck.transports.pulsar.errors import SendDeadlineError
from claimcheck.transports.pulsar.flight import Flight
from claimcheck.validation import MAX_SECONDS, Check, Range, Timeout

__all__ = ["PulsarTopicStore"]

_log = logging.getLogger(__name__)
_PLACE = re.compile(r"@(-1|\d{1,9})\.(\d{1,18})\.(\d{1,18})$")  # partition, ledger, entry
_WINDOW_BYTES = 16 << 20
_READ_AHEAD = 16  # chunks
_UUID, _NUMBER = "claimcheck-uuid", "claimcheck-chunk"

_URL = Check(
    lambda url: re.match(r"pulsar(\+ssl)?://[^\s/]", url) is not None, "pulsar://host:port or pulsar+ssl://..."
)
_TOPIC = Check(lambda topic: bool(topic) and topic.isprintable() and " " not in topic, "the name of a topic")


class PulsarTopicStore(Store):
    """Chunks on a side topic, which needs a retention that is as long as the payloads' life.

    Set it with ``pulsar-admin topics set-retention --time 7d --size -1`` (or on the namespace). Where ``admin_url`` is
    given it is checked before the first write, and a topic that would forget payloads is refused; else a line in the
    log says that nobody has looked.

    Args:
        url: Of the broker.
        topic: For chunks of this library only; partitioned or not.
        ttl_seconds: How long payloads live, at least 1; the topic's retention must not be shorter.
        segment_bytes: Of one chunk; 1 KiB less than the broker takes in one message, at most.
        token: For brokers that want one.
        admin_url: Of the broker's web service.
        timeout_seconds: For one answer of the broker.
    """

    def __init__(
        self,
        *,
        url: Annotated[str, _URL],
        topic: Annotated[str, _TOPIC],
        ttl_seconds: Annotated[float, Range(1, MAX_SECONDS)] = 604_800,
        segment_bytes: Annotated[int, Range(1, 1 << 30)] = (1 << 20) - 1024,
        token: str | None = None,
        admin_url: str | None = None,
        timeout_seconds: Timeout = 30,
    ) -> None:
        self._url, self._topic, self._token, self._admin_url = url, topic, token, admin_url
        self._timeout_seconds = timeout_seconds
        self._lock = threading.Lock()
        self._opened: tuple[Any, Any] | None = None
        self._retention_known = False
        self.ttl_seconds = ttl_seconds
        self.segment_bytes = segment_bytes

    def __repr__(self) -> str:
        return f"<PulsarTopicStore {self.name!r} on {self._topic}>"

    def close(self) -> None:
        """Close producer and client; the next use makes new ones."""
        with self._lock:
            opened, self._opened = self._opened, None
        if opened is not None:
            with suppress(Exception):
                opened[0].close()

    # Writing ---------------------------------------------------------------------------------------------------

    def _reach(self) -> None:
        self._producer()
        if not self._retention_known:
            self._check_retention()
            self._retention_known = True

    def _write(self, pointer: Pointer, source: Source) -> str:
        flight = Flight(
            self._send, topic=self._topic, window_bytes=_WINDOW_BYTES, deadline_seconds=self._timeout_seconds
        )
        first = None
        for number, piece in enumerate(self._pieces(source)):
            headers = {_UUID: pointer.key, _NUMBER: str(number)}
            envelope = Envelope(bytes(piece), headers, pointer.key)
            if first is None:  # its place is the pointer's; and whatever the client sends again comes behind it
                first = self._first(envelope)
            else:
                flight.launch(envelope)
        flight.wait()
        return f"{pointer.key}@{_text(first)}"

    def _pieces(self, source: Source) -> Iterator[memoryview]:
        yield from source.pieces(self.segment_bytes or 1)
        if not source.taken:
            yield memoryview(b"")

    def _first(self, envelope: Envelope) -> Any:
        """Send the first chunk until the broker says where it is, which after a deduplication it does not."""
        for _ in range(3):
            alone = Flight(self._send, topic=self._topic, window_bytes=1, deadline_seconds=self._timeout_seconds)
            alone.launch(envelope)
            (place,) = alone.wait()
            if place.ledger_id() >= 0:
                return place
        raise StoreError(f"store {self.name!r}: the broker does not say where it stores")

    def _send(self, envelope: Envelope, callback: Callable[[Any, Any], None]) -> None:
        self._producer().send_async(envelope.data, callback, properties=envelope.headers, partition_key=envelope.key)

    # Reading ---------------------------------------------------------------------------------------------------

    def _read(self, pointer: Pointer) -> Iterable[bytes]:
        place = _PLACE.search(pointer.key)
        if place is None:
            raise self.missing(pointer)
        partition, ledger, entry = map(int, place.groups())
        topic = self._topic if partition < 0 else f"{self._topic}-partition-{partition}"
        first = self._vendor().MessageId(partition, ledger, entry, -1)
        with closing(self._reading(topic, first, pointer.segments)) as reader:
            yield from self._chunks(pointer, reader, first, pointer.key[: place.start()])

    def _chunks(self, pointer: Pointer, reader: Any, first: Any, key: str) -> Iterator[bytes]:
        """The payload's own chunks, in order; what others sent lies between them, and perhaps some of them twice."""
        early: dict[int, bytes] = {}
        for wanted in range(pointer.segments):
            while wanted not in early:
                message = self._next(pointer, reader, wanted)
                if wanted == 0 and _place(message.message_id()) != _place(first):  # it begins where there is something
                    raise self.missing(pointer)
                about = message.properties()
                number = int(about.get(_NUMBER, "-1")) if about.get(_UUID) == key else -1
                if number >= wanted:
                    early.setdefault(number, message.data())
            yield early.pop(wanted)

    def _next(self, pointer: Pointer, reader: Any, wanted: int) -> Any:
        if not reader.has_message_available():
            raise self.missing(pointer, f"chunk {wanted} of {pointer.segments}")
        return reader.read_next(int(self._timeout_seconds * 1000))

    def _reading(self, topic: str, first: Any, chunks: int) -> Any:
        return self._client().create_reader(
            topic, first, start_message_id_inclusive=True, receiver_queue_size=min(chunks, _READ_AHEAD)
        )

    # Undoing ---------------------------------------------------------------------------------------------------

    def _delete(self, pointer: Pointer) -> None:
        """A log forgets by itself."""

    # Within ----------------------------------------------------------------------------------------------------

    def _client(self) -> Any:
        return self._open()[0]

    def _producer(self) -> Any:
        return self._open()[1]

    def _open(self) -> tuple[Any, Any]:
        with self._lock:
            if self._opened is None:
                pulsar = self._vendor()
                client = pulsar.Client(
                    self._url,
                    authentication=pulsar.AuthenticationToken(self._token) if self._token else None,
                    operation_timeout_seconds=max(1, int(self._timeout_seconds)),
                    logger=logging.getLogger(f"{__name__}.client"),
                )
                self._opened = client, self._make_producer(client)
            return self._opened

    def _make_producer(self, client: Any) -> Any:
        try:
            return client.create_producer(
                self._topic, block_if_queue_full=True, send_timeout_millis=int(self._timeout_seconds * 1000)
            )
        except BaseException:
            client.close()
            raise

    def _vendor(self) -> Any:
        return import_vendor("pulsar", extra="pulsar")

    def _check_retention(self) -> None:
        if self._admin_url is None:
            _log.warning(
                "store %r: nobody has checked that the topic %s keeps its messages for %g s; admin_url would",
                self.name,
                self._topic,
                self.ttl_seconds,
            )
            return
        policy = self._retention()
        minutes, megabytes = policy.get("retentionTimeInMinutes", 0), policy.get("retentionSizeInMB", 0)
        if not megabytes or (minutes != -1 and minutes * 60 < (self.ttl_seconds or 0)):
            raise ConfigError(
                f"stores.{self.name}.topic: {self._topic} keeps messages for {minutes} minutes and {megabytes} MB, "
                f"payloads are to live {self.ttl_seconds:g} s: set a retention, or a shorter ttl_seconds",
                path=f"stores.{self.name}.topic",
                found=f"{minutes} minutes, {megabytes} MB",
                expected=f"at least {self.ttl_seconds:g} s, and -1 MB",
            )

    def _retention(self) -> dict[str, int]:
        scheme, found, rest = self._topic.partition("://")
        name = f"{scheme}/{rest}" if found else f"persistent/public/default/{self._topic}"
        namespace = "/".join(name.split("/")[1:3])
        for path in (f"{name}/retention", f"namespaces/{namespace}/retention"):
            if policy := self._ask(path):
                return policy
        return {}

    def _ask(self, path: str) -> dict[str, int]:
        request = urllib.request.Request(f"{(self._admin_url or '').rstrip('/')}/admin/v2/{urllib.parse.quote(path)}")
        if self._token:
            request.add_header("Authorization", f"Bearer {self._token}")
        with urllib.request.urlopen(request, timeout=self._timeout_seconds) as response:
            text = response.read()
        found: dict[str, int] = json.loads(text) if text.strip() else {}
        return found

    def _translate(self, error: Exception) -> type[StoreError] | None:
        name = type(error).__name__
        if name == "MessageTooBig":
            return PayloadTooLargeError
        refused = ("AuthenticationError", "AuthorizationError", "InvalidTopicName", "TopicTerminated", "InvalidUrl")
        if isinstance(error, SendDeadlineError) or (type(error).__module__ == "_pulsar" and name not in refused):
            return StoreUnavailableError
        return super()._translate(error)


def _text(message_id: Any) -> str:
    return f"{message_id.partition()}.{message_id.ledger_id()}.{message_id.entry_id()}"


def _place(message_id: Any) -> tuple[int, int]:
    return message_id.ledger_id(), message_id.entry_id()
