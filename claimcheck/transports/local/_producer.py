"""Sends payloads of any size through the embedded broker, which refuses large messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from claimcheck import _hints as hints
from claimcheck._envelope import Envelope
from claimcheck._outbound import Outbound
from claimcheck._sending import Outcome, classify_error
from claimcheck._validation import check_cc, check_type
from claimcheck._wire_size import WireLimit, byte_length
from claimcheck.errors import TransportError
from claimcheck.transports._common.claimcheck_types import Offloads
from claimcheck.transports.local._broker import LocalBroker
from claimcheck.transports.local._errors import BrokerCommitError
from claimcheck.transports.local._messages import MESSAGE_OVERHEAD_BYTES, MessageId, NewMessage, check_name

__all__ = ["LocalProducer", "classify"]


class LocalProducer:
    """Sends to topics of one broker. Holds nothing open, and is as safe under threads as the broker.

    Args:
        broker: Its ``max_message_bytes`` is the limit above which payloads are offloaded.
        cc: A `claimcheck.ClaimCheck`.

    Raises:
        ConfigError: One of them is something else.
    """

    def __init__(self, broker: LocalBroker, cc: Offloads) -> None:
        check_type("broker", broker, valid=isinstance(broker, LocalBroker), expected="a LocalBroker")
        check_cc(cc)
        self._broker = broker
        self._cc = cc
        self._limit = WireLimit(broker.max_message_bytes, _overhead)

    def send(
        self, topic: str, payload: Any, *, key: Any = None, headers: Any = None, partition: int | None = None
    ) -> MessageId:
        """Send one payload; when this returns it is there for every reader.

        Args:
            topic: A topic that was created.
            payload: Bytes-like, a readable binary file, or ``None`` for a tombstone.
            key: Bytes-like or ``str``; decides on the partition where none is given.
            headers: A mapping or a list of pairs, of ``str`` to bytes-like or ``str``.
            partition: From 0; by default the key's, or by turns where there is no key. Chunks share one.

        Returns:
            The position of the payload's message, or of the first of its chunks.

        Raises:
            TransportError: The broker refused the message; what was stored is deleted. After a `BrokerCommitError`
                it is kept, because the message may be in the topic.
            PartialSendError: Some chunks are or may be in the topic; an abort envelope followed where it could.
            PayloadError: The payload cannot be read. Nothing was sent.
            StoreError: The store failed, and the strategy has no alternative. Nothing was sent, nothing is stored.
        """
        return self.send_all(topic, payload, key=key, headers=headers, partition=partition)[0]

    def send_all(
        self, topic: str, payload: Any, *, key: Any = None, headers: Any = None, partition: int | None = None
    ) -> tuple[MessageId, ...]:
        """Send as `send` does; returns the position of every message: one, or one for each chunk."""
        check_name("topic", topic)
        NewMessage.checked(topic, None, key, headers)  # refused here, before anything is stored
        block = self._cc.outbound(
            payload,
            destination=topic,
            key=key,
            headers=headers,
            limit=self._limit,
            text_key=False,
            classify=classify,
        )
        with block as out:
            out.send(self._append_to(topic, self._partition(out, topic, key, partition)))
        return tuple(out.results)

    def _partition(self, out: Outbound, topic: str, key: Any, partition: int | None) -> int | None:
        """One partition for all chunks, chosen by the sender's key: the key of the chunks may be made up."""
        if partition is None and out.total > 1:
            return self._broker.partition_for(topic, key)
        return partition

    def _append_to(self, topic: str, partition: int | None) -> Callable[[Envelope], MessageId]:
        def append(envelope: Envelope) -> MessageId:
            return self._broker.append(
                topic, envelope.data, key=envelope.key, headers=envelope.headers, partition=partition
            )

        return append

    def __repr__(self) -> str:
        return f"<LocalProducer on {self._broker!r}>"


def classify(error: BaseException) -> Outcome:
    """Whether an error means that the message is not in the topic: each of the broker's own does, but for one."""
    if isinstance(error, BrokerCommitError):
        return "unknown"
    return "failed" if isinstance(error, TransportError) else classify_error(error)


def _overhead(key: Any, headers: Any) -> int:
    """What the broker counts beside the value, before it makes bytes of it: see `message_size`."""
    in_headers = sum(byte_length(part) for pair in hints.pairs(headers) for part in pair)
    return MESSAGE_OVERHEAD_BYTES + byte_length(key) + in_headers
