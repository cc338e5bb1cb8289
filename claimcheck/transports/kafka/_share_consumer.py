"""Receives payloads of any size from a share consumer of confluent-kafka, as long as they do not come as chunks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from claimcheck._envelope import Abort, Chunk
from claimcheck._validation import check_cc, check_type
from claimcheck.transports._common.delegation import Closing
from claimcheck.transports._common.dispatch import dispatch
from claimcheck.transports.kafka._client import vendor
from claimcheck.transports.kafka._errors import ShareGroupError
from claimcheck.transports.kafka._message import message_of

if TYPE_CHECKING:
    from claimcheck._client import ClaimCheck

__all__ = ["KafkaShareConsumer"]


class KafkaShareConsumer(Closing):
    """Has the methods of a `confluent_kafka.ShareConsumer`; each message that it returns is a whole payload.

    Plain messages are the client's own; a payload that was offloaded is a `KafkaMessage`, which is one, too. A stored
    payload is read by the first call of ``value()``, while the group's lock on the record runs
    (``group.share.record.lock.duration.ms``, 30 seconds by default). A record that is released because a store does not
    answer has used up one of its deliveries, of which a group allows five by default.

    A group shares a partition record by record, so that the chunks of a payload go to several of its members: each of
    them comes as a message whose value raises `ShareGroupError`. Let writers to such topics store large payloads
    (strategy ``external``), or read them with a `KafkaConsumer`.

    Not thread-safe, as the client's consumer is not.

    Args:
        consumer: A `confluent_kafka.ShareConsumer`, not one that deserializes.
        cc: A `claimcheck.ClaimCheck` that knows the writers' stores.

    Raises:
        ArgumentTypeError: An object of the wrong type; a `ConfigError` that is also a `TypeError`.
    """

    def __init__(self, consumer: Any, cc: ClaimCheck) -> None:
        valid = type(consumer) is getattr(vendor(), "ShareConsumer", None)
        expected = "a confluent_kafka.ShareConsumer, not a subclass; deserialize what value() returns"
        check_type("consumer", consumer, valid=valid, expected=expected)
        check_cc(cc)
        self._native = consumer
        self._cc = cc
        self._header = cc.config.header

    def poll(self, timeout: float = -1) -> Any:
        """Wait for payloads; one that cannot be had is returned, too, and its value raises the error.

        Args:
            timeout: Seconds; by default there is no limit.

        Returns:
            A `confluent_kafka.Messages`, empty when time is up. One with an ``error()`` is an event of the client's.

        Raises:
            KafkaException: The client's own.
        """
        natives = self._native.poll(timeout)
        if all(self._is_plain(native) for native in natives):
            return natives
        return vendor().Messages([native if self._is_plain(native) else self._received(native) for native in natives])

    # Acknowledging ---------------------------------------------------------------------------------------------

    def acknowledge(self, message: Any, ack_type: Any = None) -> None:
        """Accept a message (the default), release it for redelivery, or reject it."""
        self.acknowledge_offset(message.topic(), message.partition(), message.offset(), ack_type)

    def acknowledge_offset(self, topic: str, partition: int, offset: int, ack_type: Any = None) -> None:
        """Do the same for a message named by its topic, partition and offset."""
        ack_type = vendor().AcknowledgeType.ACCEPT if ack_type is None else ack_type
        self._native.acknowledge_offset(topic, partition, offset, ack_type)

    def commit_sync(self, timeout: float = 60) -> Any:
        """Do as ``commit_sync`` of the client."""
        return self._native.commit_sync(timeout)

    def commit_async(self) -> None:
        """Do as ``commit_async`` of the client."""
        self._native.commit_async()

    def set_acknowledgement_commit_callback(self, callback: Any) -> None:
        """Do as ``set_acknowledgement_commit_callback`` of the client."""
        self._native.set_acknowledgement_commit_callback(callback)

    # The rest of the client's consumer -------------------------------------------------------------------------

    def subscribe(self, topics: list[str]) -> None:
        """Do as ``subscribe`` of the client."""
        self._native.subscribe(topics)

    def subscription(self) -> Any:
        """Return the topics."""
        return self._native.subscription()

    def unsubscribe(self) -> None:
        """Do as ``unsubscribe`` of the client."""
        self._native.unsubscribe()

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Do as ``set_sasl_credentials`` of the client."""
        self._native.set_sasl_credentials(username, password)

    def close(self) -> None:
        """Close; acknowledgements are committed, and messages without one are redelivered to other members."""
        self._native.close()

    def __repr__(self) -> str:
        return "<KafkaShareConsumer>"

    # Within ----------------------------------------------------------------------------------------------------

    def _is_plain(self, native: Any) -> bool:
        value = native.value()
        return native.error() is not None or value is None or not value.startswith(self._header)

    def _received(self, native: Any) -> Any:
        content = dispatch(self._cc, native.value(), native.headers)
        if isinstance(content, Chunk | Abort):
            content = _no_chunks(native.topic(), content.uuid, content.count if isinstance(content, Chunk) else None)
        return message_of(native, content)


def _no_chunks(topic: str, uuid: str, total: int | None) -> ShareGroupError:
    return ShareGroupError(
        f"a chunk of a payload on {topic}, whose other chunks a share group delivers to other members; let the "
        "writers store it (strategy external), or read the topic with a KafkaConsumer",
        uuid=uuid, total=total,
    )  # fmt: skip
