"""How large a message may be: Pulsar counts the payload and its metadata, which is a protobuf message.

Read off a broker of version 4.2 with the client 3.13: ``maxMessageSize`` bounds payload and `MessageMetadata` together.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any

from claimcheck import hints
from claimcheck.errors import TransportError
from claimcheck.wire import WireLimit, byte_length

__all__ = ["MAX_MESSAGE_BYTES", "ask_limit", "metadata_bytes", "wire_limit"]

MAX_MESSAGE_BYTES = 5 << 20
"""The broker's default, 5 MiB."""

_CHUNK_BYTES = 1 << 20  # large enough to be fast, and small enough for receiver queues that count messages
_SPARE_BYTES = 1024  # a chunk leaves room for what a dead letter says of its origin
_FIXED_BYTES = 10 + 7 + 7 + 3 + 12  # sequence id, publish time, uncompressed size, compression, schema version
_ADMIN_SECONDS = 10


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


def ask_limit(admin_url: str, topic: str, *, headers: Mapping[str, str] | None = None) -> int:
    """Ask a broker how large a message may be: the broker's own limit, or the topic's where that is less.

    Args:
        admin_url: Of the web service, for example ``http://localhost:8080``.
        topic: With or without its ``persistent://tenant/namespace/``.
        headers: To be sent along, for example ``{"Authorization": "Bearer ..."}``.

    Raises:
        TransportError: The broker did not answer, or may not be asked.
    """
    broker = _get(admin_url, "brokers/configuration/runtime", headers)["maxMessageSize"]
    own = _get(admin_url, f"{_path(topic)}/maxMessageSize", headers)
    return min(int(broker), int(own) if own else int(broker))


def _get(admin_url: str, path: str, headers: Mapping[str, str] | None) -> Any:
    if urllib.parse.urlsplit(admin_url).scheme not in ("http", "https"):
        raise TransportError("admin_url must begin with http:// or https://")
    request = urllib.request.Request(f"{admin_url.rstrip('/')}/admin/v2/{path}", headers=dict(headers or {}))
    try:
        with urllib.request.urlopen(request, timeout=_ADMIN_SECONDS) as response:
            body = response.read()
        return json.loads(body) if body.strip() else None
    except (OSError, ValueError) as error:
        code = f" ({error.code})" if isinstance(error, urllib.error.HTTPError) else ""
        raise TransportError(f"the broker's web service did not tell {path}{code}: {type(error).__name__}") from error


def _path(topic: str) -> str:
    scheme, found, rest = topic.partition("://")
    full = f"{scheme}/{rest}" if found else f"persistent/public/default/{topic}"
    return urllib.parse.quote(full)


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
