"""Receives payloads of any size from a share consumer of confluent-kafka, as long as they do not come as chunks."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from claimcheck._envelope import Abort, Chunk
from claimcheck._validation import check_cc, check_type
from claimcheck.transports._common.dispatch import dispatch
from claimcheck.transports.kafka._errors import ShareGroupError, vendor
from claimcheck.transports.kafka._message import message_of

if TYPE_CHECKING:
    from claimcheck._client import ClaimCheck

__all__ = ["KafkaShareConsumer"]


class KafkaShareConsumer:
    """Has the methods of a `confluent_kafka.ShareConsumer`; a message that it gives is a whole payload.

    Plain messages are the client's own; of what was offloaded a `KafkaMessage` comes, which is one, too. A stored
    payload is read when its value is asked for, while the group's lock on the record runs
    (``group.share.record.lock.duration.ms``, 30 seconds by default). A record that is released because a store does not
    answer has used up one of its deliveries, of which a group allows five by default.

    A group shares a partition record by record, so that the chunks of a payload go to several of its members: each of
    them comes as a message whose value raises `ShareGroupError`. Let writers to such topics store what they offload
    (strategy ``external``), or read them with a `KafkaConsumer`.

    Not safe under threads, as the client's is not.

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
            timeout: Seconds; by default for ever.

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
        """Say what becomes of a message: it is accepted, by default, released to come again, or rejected."""
        self.acknowledge_offset(message.topic(), message.partition(), message.offset(), ack_type)

    def acknowledge_offset(self, topic: str, partition: int, offset: int, ack_type: Any = None) -> None:
        """The same by the message's place."""
        ack_type = vendor().AcknowledgeType.ACCEPT if ack_type is None else ack_type
        self._native.acknowledge_offset(topic, partition, offset, ack_type)

    def commit_sync(self, timeout: float = 60) -> Any:
        """As the client has it."""
        return self._native.commit_sync(timeout)

    def commit_async(self) -> None:
        """As the client has it."""
        self._native.commit_async()

    def set_acknowledgement_commit_callback(self, callback: Any) -> None:
        """As the client has it."""
        self._native.set_acknowledgement_commit_callback(callback)

    # The rest of the client's consumer -------------------------------------------------------------------------

    def subscribe(self, topics: list[str]) -> None:
        """As the client has it."""
        self._native.subscribe(topics)

    def subscription(self) -> Any:
        """The topics."""
        return self._native.subscription()

    def unsubscribe(self) -> None:
        """As the client has it."""
        self._native.unsubscribe()

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """As the client has it."""
        self._native.set_sasl_credentials(username, password)

    def close(self) -> None:
        """Close; acknowledgements are committed, and what has none comes again, to others."""
        self._native.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

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
        f"a chunk of a payload on {topic}, of which a share group gives the other chunks to other members; let the "
        "writers store it (strategy external), or read the topic with a KafkaConsumer",
        uuid=uuid, total=total,
    )  # fmt: skip
