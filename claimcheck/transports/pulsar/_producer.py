"""Sends payloads of any size through a producer of the Pulsar client."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, TypedDict, Unpack, cast

from claimcheck._content.source import Payload
from claimcheck._validation import check_cc, check_int, check_seconds
from claimcheck._wire import headers as hints
from claimcheck._wire.envelope import Envelope
from claimcheck._wire.headers import WireLimit, byte_length
from claimcheck.errors import import_vendor
from claimcheck.transports._common.delegation import Closing, Delegated, RollbackWorker
from claimcheck.transports.pulsar._message import nowhere
from claimcheck.transports.pulsar._queries import MAX_MESSAGE_BYTES, vendor
from claimcheck.transports.pulsar._send import (
    BoundedProducer,
    InFlightWindow,
    PayloadSend,
    Ticket,
    classify,
    error_of,
    without_schema,
)

if TYPE_CHECKING:
    import pulsar

    from claimcheck._client import ClaimCheck
    from claimcheck.transports.pulsar._message import WholeMessageId
    from claimcheck.transports.pulsar._send import SendCallback

_DEADLINE_SECONDS = 60.0
_KEY_FIELD_BYTES = 6  # at most, beside the key itself
_CHUNK_BYTES = 1 << 20  # large enough to be fast, and small enough for receiver queues that count messages
_SPARE_BYTES = 1024  # less in each chunk, for the properties that a dead letter adds
_FIXED_BYTES = 10 + 7 + 7 + 3 + 12  # sequence id, publish time, uncompressed size, compression, schema version


class ProducerOptions(TypedDict, total=False):
    """See `PulsarProducer`."""

    max_message_bytes: int
    deadline_seconds: float


class SendOptions(TypedDict, total=False):
    """Options of a send, as in `pulsar.Producer.send`. Chunks cannot have a sequence id or a delivery time."""

    ordering_key: str | None
    sequence_id: int | None
    replication_clusters: list[str] | None
    disable_replication: bool | None
    event_timestamp: int | None
    deliver_at: int | None
    deliver_after: timedelta | None


class PulsarProducer(Delegated, Closing):
    """Wraps a `pulsar.Producer`, has its methods, and sends payloads of any size. Thread-safe.

    Batching, compression, encryption, routing and schema are those of the wrapped producer. Encryption covers messages
    only: the payload that a pointer names is stored unencrypted. Leave ``chunking_enabled`` off. A custom router must
    send messages with one key to one partition.

    Args:
        producer: A `pulsar.Producer`.
        cc: A `claimcheck.ClaimCheck`.
        max_message_bytes: The limit of the broker or the topic for one message, if it is not Pulsar's default of 5 MiB;
            `ask_limit` returns it. Subtract 1 KiB if the producer encrypts.
        deadline_seconds: For the broker's answer to one message; more than the producer's ``send_timeout_millis``.

    Raises:
        ConfigError: An argument is out of range or of the wrong type; for an object also a `TypeError`.
    """

    delegated = frozenset({"is_connected", "last_sequence_id"})

    def __init__(
        self,
        producer: pulsar.Producer,
        cc: ClaimCheck,
        *,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        deadline_seconds: float = _DEADLINE_SECONDS,
    ) -> None:
        check_cc(cc)
        check_int("max_message_bytes", max_message_bytes, minimum=1)
        check_seconds("deadline_seconds", deadline_seconds)
        self._native = producer
        self._cc = cc
        self._raw = without_schema(producer)
        self._schema = producer._schema
        self._new_message = import_vendor("_pulsar", extra="pulsar").MessageBuilder
        self._send_message = producer._producer.send_async
        self._topic: str = producer.topic()
        # Read once: partitioned producers read it under a lock, with which a router in Python waits for the GIL.
        self._name: str = producer.producer_name()
        self._max_message_bytes = max_message_bytes
        self._limit = self._limit_for({})
        self._header = cc.config.header
        self._threshold = cc.threshold(self._topic, self._limit)
        self._plain_bytes = self._threshold - self._limit.overhead(None, None)  # with no key and no properties
        self._is_encoded = isinstance(self._schema, vendor().schema.BytesSchema)
        self._rollbacks = RollbackWorker()
        self._closed = False
        self._bounded = BoundedProducer(self._raw, deadline_seconds)
        self._watch = self._bounded.watch

    def send(
        self,
        content: object,
        properties: dict[str, str] | None = None,
        partition_key: str | None = None,
        **options: Unpack[SendOptions],
    ) -> pulsar.MessageId | WholeMessageId:
        """Send one payload and wait until the broker has it; arguments as for `pulsar.Producer.send`.

        Args:
            content: A value for the producer's schema; without a schema bytes-like, or a readable binary file. ``None``
                is a tombstone.
            properties: Names beginning with ``claimcheck-`` are reserved.
            partition_key: Chunks of a payload without one have its uuid as their key, which readers remove.
            options: ``ordering_key``, ``sequence_id``, ``replication_clusters``, ``disable_replication``,
                ``event_timestamp``, ``deliver_at`` and ``deliver_after``, by name. Chunks cannot have a delivery time
                or a sequence id. The lifetime of a stored payload begins at its delivery.

        Returns:
            A native id; a `WholeMessageId` for chunks.

        Raises:
            ChunkArgumentError: An argument that chunks cannot have. Nothing was sent.
            PartialSendError: Some chunks are or may be in the topic; an abort envelope followed if it could be sent.
            SendDeadlineError: No answer in time; the message may be in the topic. Close this producer.
            pulsar.AlreadyClosed: This producer was closed; nothing was stored.
            Exception: The client's own error, unchanged; the stored payload is deleted if the send definitely failed.
            ClaimCheckError: The payload could not be offloaded; nothing was sent.
        """
        checked = checked_options(options)
        if not checked and (plain := self._plain(content, properties, partition_key)) is not None:
            window = InFlightWindow(self._bounded)
            window.launch(Envelope(plain, properties, partition_key))
            return window.wait()[0]
        sending = self.prepare(content, properties, partition_key, checked)
        sending.launch_all()
        return sending.finish()

    def send_async(
        self,
        content: object,
        callback: SendCallback,
        properties: dict[str, str] | None = None,
        partition_key: str | None = None,
        **options: Unpack[SendOptions],
    ) -> None:
        """Send one payload and return before the broker has it; arguments as for `send`.

        The payload is stored before this returns; chunks are passed to the client as earlier ones are acknowledged. The
        client's thread calls the callback once, with a `pulsar.Result` and the id; an exception in it is logged. If the
        broker does not answer, the result is ``Timeout`` after ``deadline_seconds``.

        Raises:
            ClaimCheckError: As `send`. Nothing was sent, and the callback is not called.
        """
        checked = checked_options(options) if options else {}
        if not checked and (plain := self._plain(content, properties, partition_key)) is not None:
            ticket = Ticket(callback)
            if properties is None and partition_key is None:  # as the client does, without checking ten arguments
                self._send_message(self._new_message().content(plain).build(), ticket)
            else:
                self._raw.send_async(plain, ticket, properties, partition_key)
            self._watch(ticket)
            return
        if self._closed:
            Ticket(callback)(vendor().Result.AlreadyClosed, nowhere())
            return
        self.prepare(content, properties, partition_key, checked).launch_for(callback)

    def prepare(
        self, content: object, properties: dict[str, str] | None, key: str | None, options: Mapping[str, object]
    ) -> PayloadSend:
        """Store one payload or cut it into chunks, for the caller to launch; ``options`` are those that are set."""
        if self._closed:  # a definite refusal, where the client's own error leaves the outcome unknown
            raise error_of(vendor().Result.AlreadyClosed)
        block = self._cc.outbound(
            self._encode(content), destination=self._topic, key=key, headers=properties,
            limit=self._limit_for(options) if options else self._limit, text_key=True, classify=classify,
            delay_seconds=delay_seconds(options),
        )  # fmt: skip
        return PayloadSend(self._bounded, self._rollbacks, block.__enter__(), options)

    def sends_plain(self, content: object, properties: dict[str, str] | None, partition_key: str | None) -> bool:
        """Whether this payload would be sent unchanged, without any I/O besides the client's."""
        return self._plain(content, properties, partition_key) is not None

    def flush(self) -> None:
        """Wait until all sent messages are in the topic, and failed payloads are rolled back. Raises as `send`."""
        self._bounded.flush()
        self._rollbacks.wait()

    def close(self) -> None:
        """Flush, unless a message has had no answer in time, and close."""
        self._closed = True
        try:
            self._bounded.close()
        finally:
            self._rollbacks.close()

    def topic(self) -> str:
        """The topic's full name."""
        return self._topic

    def producer_name(self) -> str:
        """The producer's name, checked by the application or by the broker."""
        return self._name

    def __repr__(self) -> str:
        return f"<PulsarProducer of {self._topic}, messages up to {self._max_message_bytes} bytes>"

    def _plain(self, content: object, properties: dict[str, str] | None, key: str | None) -> bytes | None:
        """Return the message of a small payload that does not look like an envelope; ``None`` for all others."""
        data = content if self._is_encoded else self._encode(content)
        if type(data) is not bytes or data.startswith(self._header):
            return None
        room = self._plain_bytes - len(data)
        if properties:
            if hints.is_ours(properties):
                return None
            room = self._threshold - self._limit.overhead(key, properties) - len(data)
        elif key is not None and (type(key) is not str or room < 4 * len(key) + _KEY_FIELD_BYTES):
            room = self._threshold - self._limit.overhead(key, None) - len(data)
        return data if room >= 0 else None

    def _encode(self, content: object) -> Payload | Envelope | None:
        if content is not None and not self._is_encoded:
            content = self._schema.encode(content)
        return cast("Payload | Envelope | None", content)

    def _limit_for(self, options: Mapping[str, object]) -> WireLimit:
        return wire_limit(self._max_message_bytes, producer_name=self._name, options=options)


# Options and sizes ---------------------------------------------------------------------------------------------------


def checked_options(options: Mapping[str, object]) -> dict[str, object]:
    """Return the options that are set."""
    if not options:
        return {}
    if unknown := options.keys() - SendOptions.__annotations__.keys():
        raise TypeError(f"unexpected keyword arguments: {', '.join(sorted(unknown))}")
    return {name: value for name, value in options.items() if value}


def delay_seconds(options: Mapping[str, object], *, clock: Callable[[], float] = time.time) -> float:
    """Return how long the broker will hold a message with these options back."""
    after, at = options.get("deliver_after"), options.get("deliver_at")
    if isinstance(after, timedelta):
        return max(0.0, after.total_seconds())
    return max(0.0, at / 1000 - clock()) if isinstance(at, int) else 0.0


def metadata_bytes(key: object, properties: object) -> int:
    """Return the bytes beside the payload, without the producer's name and the rarer options; at most 30 too many."""
    size = _FIXED_BYTES + (_field(byte_length(key)) if key else 0)
    for name, value in hints.pairs(properties):
        size += _field(_field(byte_length(name)) + _field(byte_length(value)))
    return size


def wire_limit(max_message_bytes: int, *, producer_name: str, options: Mapping[str, object]) -> WireLimit:
    """Return the limit for one send."""
    room = max_message_bytes - _field(byte_length(producer_name)) - sum(map(_option_bytes, options.items()))
    return WireLimit(room, metadata_bytes, chunk_message_bytes=min(_CHUNK_BYTES, room - _SPARE_BYTES))


def _field(size: int) -> int:
    """Bytes of a Protobuf field of ``size`` bytes, with its length and its number, if that is below 16."""
    return size + 2 if size < 128 else 1 - (-size.bit_length() // 7) + size


def _option_bytes(option: tuple[str, object]) -> int:
    name, value = option
    if value is None or value is False:
        return 0
    if isinstance(value, list):  # of replication clusters
        return sum(_field(byte_length(cluster)) for cluster in value)
    return 1 + _field(byte_length(value)) if name == "ordering_key" else 12
