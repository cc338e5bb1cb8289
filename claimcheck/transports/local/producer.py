"""Sends payloads of any size through the embedded broker, which refuses large messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from claimcheck import hints
from claimcheck.envelope import Envelope
from claimcheck.errors import TransportError
from claimcheck.outbound import Classifier, Outbound, Outcome, classify_error
from claimcheck.produce import OutboundBlock
from claimcheck.transports.local.broker import LocalBroker
from claimcheck.transports.local.errors import BrokerCommitError
from claimcheck.transports.local.messages import MESSAGE_OVERHEAD_BYTES, MessageId, NewMessage, check_name
from claimcheck.wire import WireLimit, byte_length

__all__ = ["LocalProducer", "classify"]


class _Offloads(Protocol):
    """What is needed of a `claimcheck.ClaimCheck`, which stands above the transports and is never imported here."""

    def outbound(
        self, payload: Any, *, destination: str, key: Any, headers: Any, limit: WireLimit, classify: Classifier
    ) -> OutboundBlock: ...


class LocalProducer:
    """Sends to topics of one broker. Holds nothing open, and is as safe under threads as the broker.

    Args:
        broker: Its ``max_message_bytes`` is the limit above which payloads are offloaded.
        cc: A `claimcheck.ClaimCheck`.
    """

    def __init__(self, broker: LocalBroker, cc: _Offloads) -> None:
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
            Where the payload's message rests, or the first of its chunks.

        Raises:
            TransportError: The broker refused; what was stored is removed again. Only after a `BrokerCommitError` it
                stays, for the message may be there.
            PartialSendError: Some chunks were sent, then the broker refused.
            PayloadError: The payload cannot be read; nothing was sent, or a `PartialSendError` says what was.
            StoreError: The store refused, and the strategy has no other way. Nothing was sent, nothing is left.
        """
        return self.send_all(topic, payload, key=key, headers=headers, partition=partition)[0]

    def send_all(
        self, topic: str, payload: Any, *, key: Any = None, headers: Any = None, partition: int | None = None
    ) -> tuple[MessageId, ...]:
        """Send as `send` does and say where every message of the payload rests: one, or one for each chunk."""
        check_name("topic", topic)
        NewMessage.checked(topic, None, key, headers)  # refused here, before anything is stored
        block = self._cc.outbound(
            payload, destination=topic, key=key, headers=headers, limit=self._limit, classify=classify
        )
        with block as out:
            out.send(self._append_to(topic, self._partition(out, topic, key, partition)))
        return tuple(out.results)

    def _partition(self, out: Outbound, topic: str, key: Any, partition: int | None) -> int | None:
        """One partition for all chunks, by the sender's key: theirs, where it is made up, says nothing."""
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
    """Say whether a message was refused for sure: each error of the broker means that, but for one."""
    if isinstance(error, BrokerCommitError):
        return "unknown"
    return "failed" if isinstance(error, TransportError) else classify_error(error)


def _overhead(key: Any, headers: Any) -> int:
    """What the broker counts beside the value, before it makes bytes of it: see `message_size`."""
    in_headers = sum(byte_length(part) for pair in hints.pairs(headers) for part in pair)
    return MESSAGE_OVERHEAD_BYTES + byte_length(key) + in_headers
