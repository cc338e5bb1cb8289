"""Sends payloads of any size through a producer of the Pulsar client."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypedDict

from claimcheck import _hints as hints
from claimcheck._envelope import Envelope
from claimcheck._validation import check_cc, check_int, check_seconds
from claimcheck._wire_size import WireLimit
from claimcheck.transports._common.rollback_worker import RollbackWorker
from claimcheck.transports.pulsar._admin import MAX_MESSAGE_BYTES, ask_limit
from claimcheck.transports.pulsar._deadlines import BoundedProducer, SendCallback, Ticket, no_id
from claimcheck.transports.pulsar._errors import classify, error_of, vendor
from claimcheck.transports.pulsar._send import PayloadSend, SendSettings, without_schema
from claimcheck.transports.pulsar._send_options import given_options, wire_limit

if TYPE_CHECKING:
    from claimcheck._client import ClaimCheck

__all__ = ["ProducerOptions", "PulsarProducer"]

_WINDOW_BYTES = 16 << 20
_DEADLINE_SECONDS = 60.0


class ProducerOptions(TypedDict, total=False):
    """The options of a `PulsarProducer`, which describes them."""

    max_message_bytes: int
    admin_url: str | None
    admin_headers: Mapping[str, str] | None
    admin_ca_file: str | None
    window_bytes: int
    deadline_seconds: float


class PulsarProducer:
    """Wraps a `pulsar.Producer`, has its methods, and sends payloads of any size. Thread-safe.

    Batching, compression, encryption, routing and schema are those of the wrapped producer. Encryption covers messages
    only: the payload that a pointer names is stored unencrypted. Leave ``chunking_enabled`` off. A custom router must
    send messages with one key to one partition.

    Args:
        producer: A `pulsar.Producer`.
        cc: A `claimcheck.ClaimCheck`.
        max_message_bytes: The broker's limit of one message, if it is not Pulsar's default. If the producer encrypts,
            1 KiB less: its keys travel with every message.
        admin_url: The broker's web service. It is asked for the limit, and for that of the topic.
        admin_headers: Sent with that request, for example a token; never to another host.
        admin_ca_file: Certificates (PEM) of the authorities to trust for an ``admin_url`` with https; by default the
            machine's own.
        window_bytes: The most bytes of one payload's chunks that are in flight at once.
        deadline_seconds: For the answer to one message; more than the producer's ``send_timeout_millis``.

    Raises:
        TransportError: The web service did not answer.
        ConfigError: An argument is out of range or of the wrong type; for an object also a `TypeError`.
    """

    def __init__(
        self,
        producer: Any,
        cc: ClaimCheck,
        *,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        admin_url: str | None = None,
        admin_headers: Mapping[str, str] | None = None,
        admin_ca_file: str | None = None,
        window_bytes: int = _WINDOW_BYTES,
        deadline_seconds: float = _DEADLINE_SECONDS,
    ) -> None:
        check_cc(cc)
        check_int("max_message_bytes", max_message_bytes, minimum=1)
        check_int("window_bytes", window_bytes, minimum=1)
        check_seconds("deadline_seconds", deadline_seconds)
        self._native = producer
        self._cc = cc
        self._raw = without_schema(producer)
        self._schema = producer._schema
        self._topic: str = producer.topic()
        # Read once: partitioned producers read it under a lock, with which a router in Python waits for the GIL.
        self._name: str = producer.producer_name()
        self._max_message_bytes = max_message_bytes
        if admin_url:
            self._max_message_bytes = ask_limit(admin_url, self._topic, headers=admin_headers, ca_file=admin_ca_file)
        self._limit = self._limit_for({})
        self._header = cc.config.header
        self._threshold = cc.threshold(self._topic, self._limit)
        self._plain_bytes = self._threshold - self._limit.overhead(None, None)  # with no key and no properties
        self._is_encoded = isinstance(self._schema, vendor().schema.BytesSchema)
        self._undoing = RollbackWorker()
        self._closed = False
        self._bounded = BoundedProducer(producer, deadline_seconds)
        self._watch = self._bounded.watch
        self._settings = SendSettings(
            raw=self._raw,
            topic=self._topic,
            window_bytes=window_bytes,
            deadline_seconds=deadline_seconds,
            undoing=self._undoing,
            late=self._bounded.lose,
        )

    def send(
        self,
        content: Any,
        properties: dict[str, str] | None = None,
        partition_key: str | None = None,
        ordering_key: str | None = None,
        sequence_id: int | None = None,
        replication_clusters: list[str] | None = None,
        disable_replication: bool = False,
        event_timestamp: int | None = None,
        deliver_at: int | None = None,
        deliver_after: timedelta | None = None,
    ) -> Any:
        """Send one payload and wait until the broker has it; arguments as for `pulsar.Producer.send`.

        Args:
            content: A value for the producer's schema; without a schema bytes-like, or a readable binary file. ``None``
                is a tombstone.
            properties: Names beginning with ``claimcheck-`` are reserved.
            partition_key: Chunks of a payload without one have its uuid as their key, which readers remove.
            ordering_key: See `pulsar.Producer.send`.
            sequence_id: Not with chunks: the broker would filter all but one.
            replication_clusters: See `pulsar.Producer.send`.
            disable_replication: See `pulsar.Producer.send`.
            event_timestamp: See `pulsar.Producer.send`.
            deliver_at: Not with chunks.
            deliver_after: Not with chunks.

        Returns:
            A native id; a `WholeMessageId` for chunks.

        Raises:
            ChunkArgumentError: An argument that chunks cannot have. Nothing was sent.
            PartialSendError: Some chunks are or may be in the topic; an abort envelope followed if it could be sent.
            SendDeadlineError: No answer in time; the message may be in the topic. Close this producer: until then the
                broker keeps dropping the connection that it shares with the client's other producers. For chunks it is
                the ``__cause__`` of the `PartialSendError`.
            pulsar.AlreadyClosed: This producer was closed; nothing was stored.
            Exception: The client's own, unchanged; what was stored is deleted if the send definitely failed.
            ClaimCheckError: The payload could not be offloaded; nothing was sent.
        """
        options = given_options(
            ordering_key, sequence_id, replication_clusters, disable_replication, event_timestamp, deliver_at,
            deliver_after,
        )  # fmt: skip
        if not options and (plain := self._plain(content, properties, partition_key)) is not None:
            return self._send_plain(Envelope(plain, properties, partition_key))
        sending = self._prepared(content, properties, partition_key, options)
        sending.launch()
        return sending.wait()

    def send_async(
        self,
        content: Any,
        callback: SendCallback,
        properties: dict[str, str] | None = None,
        partition_key: str | None = None,
        ordering_key: str | None = None,
        sequence_id: int | None = None,
        replication_clusters: list[str] | None = None,
        disable_replication: bool = False,
        event_timestamp: int | None = None,
        deliver_at: int | None = None,
        deliver_after: timedelta | None = None,
    ) -> None:
        """Send one payload and return before the broker has it; arguments as for `send`.

        The payload is stored before this returns; chunks are passed to the client one by one as earlier ones land. The
        callback is called once, by the client's thread, with a `pulsar.Result` and the id; an exception in it is
        logged. If the broker does not answer, it is called with ``Result.Timeout`` after ``deadline_seconds``.

        Raises:
            ChunkArgumentError: As `send`. After this and any other `ClaimCheckError` nothing was sent, and the callback
                is not called.
        """
        options = given_options(
            ordering_key, sequence_id, replication_clusters, disable_replication, event_timestamp, deliver_at,
            deliver_after,
        )  # fmt: skip
        ticket = Ticket(callback)
        if not options and (plain := self._plain(content, properties, partition_key)) is not None:
            self._raw.send_async(plain, ticket, properties=properties, partition_key=partition_key)
            self._watch(ticket)
            return
        if self._closed:
            ticket(vendor().Result.AlreadyClosed, no_id())
            return
        self._prepared(content, properties, partition_key, options).launch_for(ticket)
        self._watch(ticket)

    def prepare(
        self,
        content: Any,
        properties: dict[str, str] | None,
        partition_key: str | None,
        *options: Any,
    ) -> PayloadSend:
        """Store or cut one payload, for the caller to launch; arguments in the order of `send`. Raises as `send`."""
        return self._prepared(content, properties, partition_key, given_options(*options))

    def sends_plain(self, content: Any, properties: dict[str, str] | None, partition_key: str | None) -> bool:
        """Whether this payload would go unchanged, without any I/O of ours."""
        return self._plain(content, properties, partition_key) is not None

    def flush(self) -> None:
        """Wait until everything that was sent is in the topic, and what failed is rolled back.

        Raises:
            SendDeadlineError: A message has no answer; the client sends nothing after it.
            Exception: The client's own.
        """
        self._bounded.flush()
        self._undoing.wait()

    def close(self) -> None:
        """Flush and close: if messages were in flight, the client would report failures for what is in the topic.

        A producer that is lost, because a message has had no answer in time, is not flushed.
        """
        self._closed = True
        try:
            self._bounded.close()
        finally:
            self._undoing.close()

    def topic(self) -> Any:
        """The topic's whole name."""
        return self._native.topic()

    def producer_name(self) -> Any:
        """The producer's name, chosen by the application or by the broker."""
        return self._name

    def last_sequence_id(self) -> Any:
        """The sequence id of the last message in the topic; each chunk has one."""
        return self._native.last_sequence_id()

    def is_connected(self) -> Any:
        """Whether the producer is connected at the moment."""
        return self._native.is_connected()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<PulsarProducer of {self._topic}, messages up to {self._max_message_bytes} bytes>"

    def _plain(self, content: Any, properties: Any, key: Any) -> bytes | None:
        """Return the message of a small payload that does not look like an envelope; ``None`` for all others."""
        data = content if self._is_encoded else self._encode(content)
        if type(data) is not bytes or data.startswith(self._header):
            return None
        if key is None and not properties:
            return data if len(data) <= self._plain_bytes else None
        small = len(data) + self._limit.overhead(key, properties) <= self._threshold
        return data if small and not hints.is_ours(properties) else None

    def _send_plain(self, envelope: Envelope) -> Any:
        window = self._settings.window({})
        window.launch(envelope)
        return window.wait()[0]

    def _encode(self, content: Any) -> Any:
        return content if content is None or self._is_encoded else self._schema.encode(content)

    def _prepared(self, content: Any, properties: Any, key: Any, options: Mapping[str, Any]) -> PayloadSend:
        """Store or cut a payload, so that it only remains to launch it."""
        if self._closed:  # a definite refusal, where the client's own error leaves the outcome unknown
            raise error_of(vendor().Result.AlreadyClosed)
        block = self._cc.outbound(
            self._encode(content),
            destination=self._topic,
            key=key,
            headers=properties,
            limit=self._limit_for(options) if options else self._limit,
            text_key=True,
            classify=classify,
        )
        return PayloadSend(self._settings, block.__enter__(), options)

    def _limit_for(self, options: Mapping[str, Any]) -> WireLimit:
        return wire_limit(self._max_message_bytes, producer_name=self._name, options=options)
