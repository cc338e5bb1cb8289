"""A broker stub for tests of applications, and assertions about what they sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from claimcheck._client import ClaimCheck
from claimcheck._receive.resolver import Failed, Resolved
from claimcheck._wire import pointer as pointers
from claimcheck._wire.envelope import Abort, Chunk, Encoded, Literal, Plain, PointerData, decode
from claimcheck.config import HEADER
from claimcheck.errors import IncompletePayloadError

Headers = Mapping[str, str | bytes | None] | Sequence[tuple[str, str | bytes | None]]


@dataclass(frozen=True, slots=True)
class RecordedMessage:
    """One message that an application sent to a `RecordingBroker`.

    Attributes:
        topic: The topic.
        value: The message as it would travel through the broker: an envelope, or a payload sent unchanged.
        key: The message key.
        headers: The headers, as the application's function received them.
    """

    topic: str
    value: bytes | None
    key: str | bytes | None = None
    headers: Headers | None = None


class RecordingBroker:
    """A broker stub that keeps the messages it receives.

    Example::

        def test_large_orders_are_offloaded(claimcheck_memory):
            broker = RecordingBroker()
            offload = claimcheck_memory.offload(destination="topic", key="key", headers="headers")
            publish = offload(broker.send)

            publish("orders", b"x" * 2_000_000, key="customer-1")

            assert_offloaded(broker.messages[0])
            assert broker.payloads(claimcheck_memory) == [b"x" * 2_000_000]

    Attributes:
        messages: Every message, in the order of sending.
    """

    def __init__(self) -> None:
        self.messages: list[RecordedMessage] = []

    def send(
        self, topic: str, value: bytes | None, key: str | bytes | None = None, headers: Headers | None = None
    ) -> int:
        """Record one message and return its position, from 0."""
        self.messages.append(RecordedMessage(topic, None if value is None else bytes(value), key, headers))
        return len(self.messages) - 1

    def payloads(self, cc: ClaimCheck, *, topic: str | None = None) -> list[bytes | None]:
        """Return the payload of every message, as a consumer receives them; chunks are reassembled.

        Args:
            cc: Resolves the messages.
            topic: Only the messages of this topic; by default those of all topics.

        Raises:
            ClaimCheckError: The first message that cannot be resolved; `IncompletePayloadError` if chunks are missing.
        """
        resolver = cc.resolver()
        payloads: list[bytes | None] = []
        for position, message in enumerate(self.messages):
            if topic not in (None, message.topic):
                continue
            outcomes = resolver.feed(
                message.topic,
                position,
                message.value,
                headers=message.headers,
                key=message.key,
                destination=message.topic,
            )
            for outcome in outcomes:
                if isinstance(outcome, Failed):
                    raise outcome.error
                if isinstance(outcome, Resolved):
                    payloads.append(outcome.payload)
        if resolver.pending_payloads:
            raise IncompletePayloadError(f"chunks of {resolver.pending_payloads} payloads are missing")
        return payloads

    def clear(self) -> None:
        """Forget all messages."""
        self.messages.clear()

    def __repr__(self) -> str:
        return f"<RecordingBroker with {len(self.messages)} messages>"


def assert_offloaded(
    message: RecordedMessage | bytes | None, *, store: str | None = None, cc: ClaimCheck | None = None
) -> None:
    """Assert that a message is a pointer to a stored payload, or a chunk.

    Example::

        assert_offloaded(broker.messages[0])                     # stored, or in chunks
        assert_offloaded(broker.messages[0], store="payloads")   # in this store

    Args:
        message: A recorded message, or its value.
        store: The store that a pointer must name; a chunk then fails the assertion.
        cc: Needed where the configuration changes ``envelope.header``.

    Raises:
        AssertionError: It is neither, or the payload is in another store.
    """
    envelope = _decoded(message, cc)
    if not isinstance(envelope, (PointerData, Chunk)):
        raise AssertionError(f"expected an offloaded payload, got {_description(message, envelope)}")
    if store is None:
        return
    if isinstance(envelope, Chunk):
        raise AssertionError(f"expected a payload in the store {store!r}, got {_description(message, envelope)}")
    name = pointers.decode(envelope.data).store
    if name != store:
        raise AssertionError(f"expected a payload in the store {store!r}, got one in {name!r}")


def assert_inline(message: RecordedMessage | bytes | None, *, cc: ClaimCheck | None = None) -> None:
    """Assert that a message carries its whole payload.

    Example::

        publish("orders", b"small")
        assert_inline(broker.messages[-1])

    Args:
        message: A recorded message, or its value.
        cc: Needed where the configuration changes ``envelope.header``.

    Raises:
        AssertionError: The payload was offloaded.
    """
    envelope = _decoded(message, cc)
    if not isinstance(envelope, (Plain, Literal, Encoded, type(None))):
        raise AssertionError(f"expected a payload sent inline, got {_description(message, envelope)}")


def _value(message: RecordedMessage | bytes | None) -> bytes | None:
    return message.value if isinstance(message, RecordedMessage) else message


def _decoded(message: RecordedMessage | bytes | None, cc: ClaimCheck | None) -> object:
    value = _value(message)
    return None if value is None else decode(value, header=cc.config.header if cc else HEADER)


def _description(message: RecordedMessage | bytes | None, envelope: object) -> str:
    value = _value(message)
    if value is None:
        return "a message without a value"
    kinds: dict[type[object], str] = {
        PointerData: "a pointer",
        Chunk: "a chunk",
        Abort: "an abort marker",
        Literal: "an escaped payload",
        Encoded: "a compressed or encrypted payload",
    }
    return f"{kinds.get(type(envelope), 'a plain message')} of {len(value):,} bytes"
