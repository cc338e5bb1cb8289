"""How large a message may be: Pulsar counts the payload and its metadata, which is a protobuf message.

Read off a broker of version 4.2 with the client 3.13: ``maxMessageSize`` bounds payload and `MessageMetadata` together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from claimcheck import hints
from claimcheck.transports.pulsar.admin import AdminClient, trusting
from claimcheck.wire import WireLimit, byte_length

__all__ = ["MAX_MESSAGE_BYTES", "ask_limit", "metadata_bytes", "wire_limit"]

MAX_MESSAGE_BYTES = 5 << 20
"""The broker's default, 5 MiB."""

_CHUNK_BYTES = 1 << 20  # large enough to be fast, and small enough for receiver queues that count messages
_SPARE_BYTES = 1024  # a chunk leaves room for what a dead letter says of its origin
_FIXED_BYTES = 10 + 7 + 7 + 3 + 12  # sequence id, publish time, uncompressed size, compression, schema version


def metadata_bytes(key: Any, properties: Any) -> int:
    """Bytes beside the payload, but for the producer's name and the rarer options; at most some 30 too many."""
    size = _FIXED_BYTES + (_field(byte_length(key)) if key else 0)
    for name, value in hints.pairs(properties):
        size += _field(_field(byte_length(name)) + _field(byte_length(value)))
    return size


def wire_limit(max_message_bytes: int, *, producer_name: str, options: Mapping[str, Any]) -> WireLimit:
    """Make the limit for one send.

    Args:
        max_message_bytes: Of the broker, or of the topic where that is less.
        producer_name: Travels with every message.
        options: Of the send, beside key and properties.
    """
    room = max_message_bytes - _field(byte_length(producer_name)) - sum(map(_option_bytes, options.items()))
    return WireLimit(room, metadata_bytes, chunk_message_bytes=min(_CHUNK_BYTES, room - _SPARE_BYTES))


def ask_limit(
    admin_url: str, topic: str, *, headers: Mapping[str, str] | None = None, ca_file: str | None = None
) -> int:
    """Ask a broker for the limit of one message: the broker's own, or the topic's if that is less.

    Certificates and host names are verified.

    Args:
        admin_url: Of the web service, for example ``http://localhost:8080``.
        topic: With or without its ``persistent://tenant/namespace/``.
        headers: Sent with the request, for example ``{"Authorization": "Bearer ..."}``; never to another host, even if
            the web service redirects there.
        ca_file: Certificates (PEM) of the authorities to trust; by default the machine's own.

    Raises:
        TransportError: The broker did not answer, or refused.
        ConfigError: ``ca_file`` cannot be used.
    """
    trust = trusting(ca_file, option="ca_file")
    return AdminClient(admin_url, headers=headers, trust=trust).max_message_bytes(topic)


def _field(size: int) -> int:
    """A field of this many bytes with its number, where that is below 16, and its length."""
    return 1 + _varint_bytes(size) + size


def _varint_bytes(number: int) -> int:
    return max(1, -(-number.bit_length() // 7))


def _option_bytes(option: tuple[str, Any]) -> int:
    name, value = option
    if value is None or value is False:
        return 0
    if name == "replication_clusters":
        return sum(_field(byte_length(cluster)) for cluster in value)
    return 1 + _field(byte_length(value)) if name == "ordering_key" else 12
