"""Receives stored payloads and plain messages from a share consumer of confluent-kafka."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from claimcheck._envelope import Abort, Chunk
from claimcheck._validation import check_cc, check_type
from claimcheck.transports._common.delegation import Closing
from claimcheck.transports._common.dispatch import dispatch, passes_plain
from claimcheck.transports.kafka._client import ShareGroupError, vendor
from claimcheck.transports.kafka._message import message_of

if TYPE_CHECKING:
    from confluent_kafka import Message, ShareConsumer

    from claimcheck._client import ClaimCheck
    from claimcheck.transports.kafka._client import Record

__all__ = ["KafkaShareConsumer"]


class KafkaShareConsumer(Closing):
    """Wraps a `confluent_kafka.ShareConsumer` and has its methods; each message that it returns is a whole payload.

    Plain messages are the client's own. A payload that was offloaded is a `KafkaMessage`, which is also a
    `confluent_kafka.Message`. The first call of ``value()`` reads a stored payload, while the group's lock on the
    record is held (``group.share.record.lock.duration.ms``, 30 seconds by default). Each release of a record uses up
    one of its deliveries, of which a group allows five by default, even if only the store was unavailable.

    A share group distributes single records, so the chunks of a payload go to several members. Each chunk is returned
    as a message whose value raises `ShareGroupError`. Have the writers to such topics store large payloads (strategy
    ``external``), or read the topics with a `KafkaConsumer`.

    Not thread-safe, like the client's consumer.

    Args:
        consumer: A `confluent_kafka.ShareConsumer`, not one that deserializes.
        cc: A `claimcheck.ClaimCheck` with the writers' stores.

    Raises:
        ArgumentTypeError: An argument has the wrong type; a `ConfigError` that is also a `TypeError`.
    """

    def __init__(self, consumer: ShareConsumer, cc: ClaimCheck) -> None:
        valid = type(consumer) is getattr(vendor(), "ShareConsumer", None)
        expected = "a confluent_kafka.ShareConsumer, not a subclass; deserialize what value() returns"
        check_type("consumer", consumer, valid=valid, expected=expected)
        check_cc(cc)
        self._native = consumer
        self._cc = cc
        self._header, self._passes_plain = cc.config.header, passes_plain(cc)

    def poll(self, timeout: float = -1) -> Any:
        """Wait for payloads. One that cannot be delivered is returned too; its value raises the error.

        Args:
            timeout: Seconds; by default there is no limit.

        Returns:
            A `confluent_kafka.Messages`, empty on timeout. A message with an ``error()`` is an event of the client.

        Raises:
            KafkaException: An error of the client.
        """
        natives: Any = self._native.poll(timeout)
        if all(self._is_plain(native) for native in natives):
            return natives
        return vendor().Messages([native if self._is_plain(native) else self._received(native) for native in natives])

    def acknowledge(self, message: Message, ack_type: Any = None) -> None:
        """Accept a message (the default), release it for redelivery, or reject it."""
        self.acknowledge_offset(message.topic(), message.partition(), message.offset(), ack_type)

    def acknowledge_offset(
        self, topic: str | None, partition: int | None, offset: int | None, ack_type: Any = None
    ) -> None:
        """Acknowledge like `acknowledge`, by topic, partition and offset."""
        ack_type = vendor().AcknowledgeType.ACCEPT if ack_type is None else ack_type
        acknowledge: Any = self._native.acknowledge_offset
        acknowledge(topic, partition, offset, ack_type)

    def commit_sync(self, timeout: float = 60) -> Any:
        """Same as ``commit_sync`` of the client."""
        return self._native.commit_sync(timeout)

    def commit_async(self) -> None:
        """Same as ``commit_async`` of the client."""
        self._native.commit_async()

    def set_acknowledgement_commit_callback(self, callback: Any) -> None:
        """Same as ``set_acknowledgement_commit_callback`` of the client."""
        self._native.set_acknowledgement_commit_callback(callback)

    def subscribe(self, topics: list[str]) -> None:
        """Same as ``subscribe`` of the client."""
        self._native.subscribe(topics)

    def subscription(self) -> list[str]:
        """Return the subscribed topics."""
        return self._native.subscription()

    def unsubscribe(self) -> None:
        """Same as ``unsubscribe`` of the client."""
        self._native.unsubscribe()

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Same as ``set_sasl_credentials`` of the client."""
        self._native.set_sasl_credentials(username, password)

    def close(self) -> None:
        """Close the consumer; commits acknowledgements. Messages without one are redelivered to other members."""
        self._native.close()

    def __repr__(self) -> str:
        return "<KafkaShareConsumer>"

    def _is_plain(self, native: Record) -> bool:
        value = native.value()
        is_plain = value is None or (self._passes_plain and not value.startswith(self._header))
        return native.error() is not None or is_plain

    def _received(self, native: Record) -> Message:
        content = dispatch(self._cc, native.value() or b"", native.headers, destination=str(native.topic()))
        if isinstance(content, Chunk | Abort):
            text = (
                f"a chunk of a payload on {native.topic()}; a share group delivers its other chunks to other members: "
                "have the writers store the payload (strategy external), or read the topic with a KafkaConsumer"
            )
            total = content.count if isinstance(content, Chunk) else None
            content = ShareGroupError(text, uuid=content.uuid, total=total)
        return message_of(native, content)
