"""Stores payloads in a separate Pulsar topic, as proposed by PIP-37, for users of Pulsar without another store.

A payload goes to the side topic in chunks; its pointer, which contains the position of the first chunk, goes to the
main topic. Consumers of any subscription type resolve it with a reader of the side topic.

Pulsar deletes messages only by age and size. So `rollback` deletes nothing: the chunks stay, unreachable, until the
topic's retention ends. Without a retention policy nothing is kept.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from types import ModuleType
from typing import TYPE_CHECKING, Annotated

from claimcheck._content.source import Source
from claimcheck._store.store import Store
from claimcheck._validation import MAX_SECONDS, Check, Function, Range, Timeout, check_arguments, fail
from claimcheck._wire.envelope import Envelope
from claimcheck._wire.pointer import Pointer
from claimcheck.errors import PayloadTooLargeError, StoreError, StoreUnavailableError, import_vendor
from claimcheck.stores._common import ENDPOINT, CaFile, check_ca_file
from claimcheck.transports.pulsar._queries import AdminClient, AdminError, bearer, open_client, policy, trusting
from claimcheck.transports.pulsar._send import BoundedProducer, InFlightWindow, SendDeadlineError

if TYPE_CHECKING:
    import pulsar

__all__ = ["PulsarTopicStore"]

_log = logging.getLogger(__name__)
_PLACE = re.compile(r"@(-1|\d{1,9})\.(\d{1,18})\.(\d{1,18})$")  # partition, ledger, entry
_CHUNK = re.compile(r"[0-9]{1,9}")
_READ_AHEAD = 16  # chunks
_UUID, _NUMBER = "claimcheck-uuid", "claimcheck-chunk"

_URL = Check(
    lambda url: re.match(r"pulsar(\+ssl)?://[^\s/@]+(/[^@]*)?$", url) is not None,
    "pulsar://host:port or pulsar+ssl://..., without credentials: use token",
)
_ADMIN_URL = Check(lambda url: ENDPOINT.allows(url) and "@" not in url, f"{ENDPOINT.expected} (without credentials)")
_TOPIC = Check(lambda topic: bool(topic) and topic.isprintable() and " " not in topic, "the name of a topic")


class PulsarTopicStore(Store):
    """Stores payloads as chunks on a side topic, whose retention must be at least as long as the payloads' lifetime.

    Set the retention with ``pulsar-admin topics set-retention --time 7d --size -1`` (or on the namespace). With
    ``admin_url`` it is checked before the first write, and a shorter retention raises `ConfigError`. Without
    ``admin_url`` a warning is logged.

    Args:
        url: The broker's address, ``pulsar://`` or ``pulsar+ssl://``.
        topic: A topic for these chunks only; partitioned or not.
        ttl_seconds: How long payloads are kept, at least 1; the topic's retention must not be shorter.
        segment_bytes: Size of one chunk; at least 1 KiB below the broker's message size limit.
        token: Authentication token.
        admin_url: The broker's web service.
        tls_ca_file: CA certificates (PEM) to trust instead of the system's, for ``pulsar+ssl://`` and an ``admin_url``
            with ``https://``. Certificates must name the host.
        client: ``module:function``, which returns the client of Pulsar, or a dict of arguments for it.
        timeout_seconds: For each response of the broker, and for finding a payload's next chunk.
    """

    # Between two chunks; beyond it a payload counts as missing. Gaps come from writers that pause in its middle.
    _max_gap_messages = 10_000
    _max_gap_bytes = 256 << 20

    def __init__(
        self,
        *,
        url: Annotated[str, _URL],
        topic: Annotated[str, _TOPIC],
        ttl_seconds: Annotated[float, Range(1, MAX_SECONDS)] = 604_800,
        segment_bytes: Annotated[int, Range(1, 1 << 30)] = (1 << 20) - 1024,
        token: str | None = None,
        admin_url: Annotated[str, _ADMIN_URL] | None = None,
        tls_ca_file: CaFile | None = None,
        client: Function | None = None,
        timeout_seconds: Timeout = 30,
    ) -> None:
        check_arguments(PulsarTopicStore, url=url, admin_url=admin_url)
        if tls_ca_file and not url.startswith("pulsar+ssl:") and not (admin_url or "").startswith("https:"):
            fail("tls_ca_file", found="addresses without TLS", expected="pulsar+ssl:// or https://")
        self._tls_ca_file = tls_ca_file
        self._partitions: tuple[str, ...] = ()
        self._url, self._topic, self._token, self.admin_url = url, topic, token, admin_url
        self._timeout_seconds, self._make = timeout_seconds, client
        self._lock = threading.Lock()
        self._opened: tuple[pulsar.Client, BoundedProducer] | None = None
        self._known_retention: float = -1  # seconds; at least that long, or it cannot be checked
        self.ttl_seconds = ttl_seconds
        self.segment_bytes = segment_bytes

    def __repr__(self) -> str:
        return f"<PulsarTopicStore {self.name!r} on {self._topic}>"

    def close(self) -> None:
        """Close producer and client; the next use opens new ones."""
        with self._lock:
            opened, self._opened = self._opened, None
            self._partitions = ()
        if opened is not None:
            for each in reversed(opened):
                with suppress(Exception):
                    each.close()

    # Writing ---------------------------------------------------------------------------------------------------

    def _reach(self) -> None:
        self._producer()
        self._check_retention(self.ttl_seconds or 0)

    def _write(self, pointer: Pointer, source: Source) -> str:
        self._check_retention(((pointer.expires_ms or 0) - (pointer.created_ms or 0)) / 1000)
        window = InFlightWindow(self._producer())
        first = None
        for number, piece in enumerate(self._pieces(source)):
            headers = {_UUID: pointer.key, _NUMBER: str(number)}
            envelope = Envelope(bytes(piece), headers, pointer.key)
            if first is None:  # the pointer has its position; messages that the client sends again come after it
                first = self._first(envelope)
            else:
                window.launch(envelope)
        window.wait()
        return f"{pointer.key}@{_text(first)}"

    def _stored_as(self, key: str) -> str:
        return _PLACE.sub("", key)

    def _pieces(self, source: Source) -> Iterator[memoryview]:
        yield from source.pieces(self.segment_bytes or 1)
        if not source.taken:
            yield memoryview(b"")

    def _first(self, envelope: Envelope) -> pulsar.MessageId:
        """Send the first chunk until the broker returns its position; for a duplicate it returns none."""
        for _ in range(3):
            window = InFlightWindow(self._producer())
            window.launch(envelope)
            (message_id,) = window.wait()
            if message_id.ledger_id() >= 0:
                return message_id
        raise StoreError(f"store {self.name!r}: the broker returned no position for the first chunk")

    # Reading ---------------------------------------------------------------------------------------------------

    def _read(self, pointer: Pointer) -> Iterable[bytes]:
        place = _PLACE.search(pointer.key)
        if place is None:
            raise self.missing(pointer)
        partition, ledger, entry = map(int, place.groups())
        first = self._vendor().MessageId(partition, ledger, entry, -1)
        with closing(self._reading(pointer, first)) as reader:
            yield from self._chunks(pointer, reader, first, pointer.key[: place.start()])

    def _topic_of(self, pointer: Pointer, partition: int) -> str:
        """Return the topic of a partition. Checks that it exists, since the broker would create it."""
        topic = self._topic if partition < 0 else f"{self._topic}-partition-{partition}"
        if not _names(topic, self._partitions):
            self._partitions = tuple(self._client().get_topic_partitions(self._topic))
        if not _names(topic, self._partitions):
            self.reject(pointer, "scope", "names a partition that the topic does not have")
        return topic

    def _chunks(self, pointer: Pointer, reader: pulsar.Reader, first: pulsar.MessageId, key: str) -> Iterator[bytes]:
        """Yield the payload's chunks in order. Skips duplicates and chunks of other payloads."""
        early: dict[int, bytes] = {}  # chunks after the one that is next
        for wanted in range(pointer.segments):
            messages, size, deadline = 0, 0, time.monotonic() + self._timeout_seconds
            while wanted not in early:
                if messages > self._max_gap_messages or size > self._max_gap_bytes or time.monotonic() > deadline:
                    gap = (
                        f"not within {self._max_gap_messages} messages, {self._max_gap_bytes} bytes and timeout_seconds"
                    )
                    raise self.missing(pointer, f"chunk {wanted} of {pointer.segments} ({gap} after the previous one)")
                message = self._next(pointer, reader, wanted)
                number = _number(message, key)
                if wanted == 0 and (number != 0 or _place(message.message_id()) != _place(first)):
                    raise self.missing(pointer)
                if wanted <= number < pointer.segments:
                    early.setdefault(number, message.data())
                messages, size = messages + 1, size + len(message.data())
            yield early.pop(wanted)

    def _next(self, pointer: Pointer, reader: pulsar.Reader, wanted: int) -> pulsar.Message:
        if not reader.has_message_available():
            raise self.missing(pointer, f"chunk {wanted} of {pointer.segments}")
        return reader.read_next(int(self._timeout_seconds * 1000))

    def _reading(self, pointer: Pointer, first: pulsar.MessageId) -> pulsar.Reader:
        topic, queue = self._topic_of(pointer, first.partition()), min(pointer.segments, _READ_AHEAD)
        return self._client().create_reader(topic, first, start_message_id_inclusive=True, receiver_queue_size=queue)

    def _delete(self, pointer: Pointer) -> None:
        """Do nothing: the topic's retention deletes the chunks."""

    # Internals -----------------------------------------------------------------------------------------------------

    def _client(self) -> pulsar.Client:
        return self._connected()[0]

    def _producer(self) -> BoundedProducer:
        return self._connected()[1]

    def _connected(self) -> tuple[pulsar.Client, BoundedProducer]:
        with self._lock:
            if self._opened is None:
                check_ca_file(self._tls_ca_file, store=self.name)
                client = self._make_client()
                self._opened = client, self._make_producer(client)
            return self._opened

    def _make_client(self) -> pulsar.Client:
        with suppress(ValueError):  # not chained: it quotes the address
            return open_client(
                self._url,
                self._make,
                path=f"stores.{self.name}.client",
                token=self._token,
                operation_timeout_seconds=max(1, int(self._timeout_seconds)),
                logger=logging.getLogger(f"{__name__}.client"),
                tls_trust_certs_file_path=self._tls_ca_file,
            )
        return fail(f"stores.{self.name}.url", found="an address that the client cannot read", expected=_URL.expected)

    def _make_producer(self, client: pulsar.Client) -> BoundedProducer:
        try:
            native = client.create_producer(
                self._topic, block_if_queue_full=True, send_timeout_millis=int(self._timeout_seconds * 1000)
            )
            return BoundedProducer(native, self._timeout_seconds)
        except BaseException:
            client.close()
            raise

    def _vendor(self) -> ModuleType:
        return import_vendor("pulsar", extra="pulsar")

    def _check_retention(self, seconds: float) -> None:
        """Check, once, that the topic retains messages for as long as a payload has to be readable."""
        if seconds <= self._known_retention:
            return
        if self.admin_url:
            policy = self._retention(self.admin_url)
            minutes, megabytes = policy.get("retentionTimeInMinutes", 0), policy.get("retentionSizeInMB", 0)
            if not megabytes or (minutes != -1 and minutes * 60 < seconds):
                found = f"a retention of {minutes} minutes and {megabytes} MB"
                fail(f"stores.{self.name}.topic", found=found, expected=f"at least {seconds:g} s, and -1 MB")
        else:
            text = "store %r: cannot check that topic %s retains messages for %g s; set admin_url to check it"
            _log.warning(text, self.name, self._topic, seconds)
        self._known_retention = seconds

    def _retention(self, admin_url: str) -> dict[str, int]:
        path = f"stores.{self.name}.client"
        trust = trusting(self._tls_ca_file, option="tls_ca_file", function=self._make, path=path)
        admin = AdminClient(admin_url, headers=bearer(self._token), trust=trust, timeout_seconds=self._timeout_seconds)
        try:
            return policy(admin, self._topic, "retention") or {}
        except AdminError as error:
            cause = error.__cause__
            kind = StoreUnavailableError if isinstance(cause, ConnectionError | TimeoutError) else StoreError
            raise kind(f"store {self.name!r}: {error}: {cause}") from error

    def _translate(self, error: Exception) -> type[StoreError] | None:
        name = type(error).__name__
        if name == "MessageTooBig":
            return PayloadTooLargeError
        refused = ("AuthenticationError", "AuthorizationError", "InvalidTopicName", "TopicTerminated", "InvalidUrl")
        if isinstance(error, SendDeadlineError) or (type(error).__module__ == "_pulsar" and name not in refused):
            return StoreUnavailableError
        return super()._translate(error)


def _number(message: pulsar.Message, key: str) -> int:
    """Return the number of a chunk, or -1 if the message is not a chunk of this payload."""
    properties = message.properties()
    text = properties.get(_NUMBER, "")
    return int(text) if properties.get(_UUID) == key and _CHUNK.fullmatch(text) else -1


def _names(topic: str, partitions: tuple[str, ...]) -> bool:
    """Return whether a topic, with or without tenant and namespace, is one of these partitions."""
    return any(name == topic or name.endswith(f"/{topic}") for name in partitions)


def _text(message_id: pulsar.MessageId) -> str:
    return f"{message_id.partition()}.{message_id.ledger_id()}.{message_id.entry_id()}"


def _place(message_id: pulsar.MessageId) -> tuple[int, int]:
    return message_id.ledger_id(), message_id.entry_id()
