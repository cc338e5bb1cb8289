"""Sends payloads of any size through the embedded broker, which refuses large messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from claimcheck import _hints as hints
from claimcheck._envelope import Buffer, Envelope
from claimcheck._payload import Payload
from claimcheck._sending import NEVER, classifier
from claimcheck._validation import check_cc, check_type
from claimcheck._wire_size import WireLimit, byte_length
from claimcheck.transports.local._broker import (
    MESSAGE_OVERHEAD_BYTES,
    Headers,
    LocalBroker,
    MessageId,
    encode_message,
)

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from claimcheck._client import ClaimCheck
    from claimcheck._outbound import Outbound


class LocalProducer:
    """Sends to topics of one broker. Keeps nothing open, and is as thread-safe as the broker.

    Args:
        broker: Payloads above its ``max_message_bytes`` are offloaded.
        cc: A `claimcheck.ClaimCheck`.

    Raises:
        ConfigError: An argument has the wrong type.
    """

    def __init__(self, broker: LocalBroker, cc: ClaimCheck) -> None:
        check_type("broker", broker, valid=isinstance(broker, LocalBroker), expected="a LocalBroker")
        check_cc(cc)
        self._broker = broker
        self._cc = cc
        self._limit = wire_limit(broker.max_message_bytes)

    def send(
        self,
        topic: str,
        payload: Payload | Envelope | None,
        *,
        key: Buffer | str | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
    ) -> MessageId:
        """Send one payload; once this returns, every reader sees it.

        Args:
            topic: An existing topic.
            payload: Bytes-like, a readable binary file, or ``None`` for a tombstone.
            key: Bytes-like or ``str``; determines the partition unless one is given.
            headers: A mapping or a list of pairs, of ``str`` to bytes-like or ``str``.
            partition: From 0; by default chosen by the key, or each in turn without a key. Chunks share one.

        Returns:
            The position of the payload's message, or of the first of its chunks.

        Raises:
            ConfigError: The topic's name, the key or a header is invalid. Nothing was sent, nothing is stored.
            TransportError: The broker refused the message; the stored payload is deleted. After a `BrokerCommitError`
                it is kept, because the message may be in the topic.
            PartialSendError: Some chunks are or may be in the topic; an abort envelope followed if possible.
            PayloadError: The payload cannot be read. Nothing was sent.
            StoreError: The store failed, and the strategy has no alternative. Nothing was sent, nothing is stored.
        """
        return self.send_all(topic, payload, key=key, headers=headers, partition=partition)[0]

    def send_all(
        self,
        topic: str,
        payload: Payload | Envelope | None,
        *,
        key: Buffer | str | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
    ) -> tuple[MessageId, ...]:
        """Send as `send` does; returns the position of every message: one, or one for each chunk."""
        with outbound(self._cc, topic, payload, key=key, headers=headers, limit=self._limit) as out:
            if partition is None and out.total > 1:  # by the sender's key: that of the chunks may be generated
                partition = self._broker.partition_for(topic, key)

            def append(envelope: Envelope) -> MessageId:
                return self._broker.append(
                    topic, envelope.data, key=envelope.key, headers=envelope.headers, partition=partition
                )

            out.send(append)
        return tuple(out.results)

    def __repr__(self) -> str:
        return f"<LocalProducer on {self._broker!r}>"


classify = classifier({("claimcheck", "TransportError"): frozenset(), ("claimcheck", "BrokerCommitError"): NEVER})


def outbound(
    cc: ClaimCheck,
    topic: str,
    payload: Payload | Envelope | None,
    *,
    key: object,
    headers: Headers | None,
    limit: WireLimit,
) -> AbstractContextManager[Outbound]:
    """Return the block that sends one payload; raises before anything is stored if an argument is invalid."""
    encode_message(topic, None, key, headers)
    return cc.outbound(
        payload, destination=topic, key=key, headers=headers, limit=limit, text_key=False, classify=classify
    )


def wire_limit(max_message_bytes: int) -> WireLimit:
    """Return the limit of a broker, which counts as `message_size` does."""
    return WireLimit(max_message_bytes, _overhead)


def _overhead(key: object, headers: object) -> int:
    """Return what the broker counts in addition to the value, before it is encoded: see `message_size`."""
    in_headers = sum(byte_length(part) for pair in hints.pairs(headers) for part in pair)
    return MESSAGE_OVERHEAD_BYTES + byte_length(key) + in_headers
