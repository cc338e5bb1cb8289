"""What travels with a payload: the options of a send, and the bytes that they and the metadata take in a message."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from claimcheck import _hints as hints
from claimcheck._outbound import Outbound
from claimcheck._wire_size import WireLimit, byte_length
from claimcheck.transports.pulsar._errors import ChunkArgumentError

__all__ = ["check_options", "given_options", "metadata_bytes", "wire_limit"]

_NOT_FOR_CHUNKS = ("sequence_id", "deliver_at", "deliver_after")
_NO_OPTIONS: dict[str, Any] = {}
_CHUNK_BYTES = 1 << 20  # large enough to be fast, and small enough for receiver queues that count messages
_SPARE_BYTES = 1024  # a chunk leaves room for the properties that a dead letter adds
_FIXED_BYTES = 10 + 7 + 7 + 3 + 12  # sequence id, publish time, uncompressed size, compression, schema version


def given_options(
    ordering_key: str | None,
    sequence_id: int | None,
    replication_clusters: list[str] | None,
    disable_replication: bool,
    event_timestamp: int | None,
    deliver_at: int | None,
    deliver_after: timedelta | None,
) -> dict[str, Any]:
    """Return the options that were passed; most sends have none."""
    given = ordering_key or sequence_id or replication_clusters or disable_replication or event_timestamp
    if not (given or deliver_at or deliver_after):
        return _NO_OPTIONS
    every = {
        "ordering_key": ordering_key,
        "sequence_id": sequence_id,
        "replication_clusters": replication_clusters,
        "disable_replication": disable_replication,
        "event_timestamp": event_timestamp,
        "deliver_at": deliver_at,
        "deliver_after": deliver_after,
    }
    return {name: value for name, value in every.items() if value}


def check_options(out: Outbound, options: Mapping[str, Any]) -> None:
    """Refuse options that chunks cannot have.

    Raises:
        ChunkArgumentError: There is such an option, and the payload goes as chunks.
    """
    found = [name for name in _NOT_FOR_CHUNKS if name in options]
    if found and out.uuid is not None:
        raise ChunkArgumentError(
            f"{', '.join(found)} cannot hold for a payload that goes as {out.total} chunks; use strategy external"
        )


def metadata_bytes(key: Any, properties: Any) -> int:
    """Bytes beside the payload, without the producer's name and the rarer options; at most some 30 too many."""
    size = _FIXED_BYTES + (_field(byte_length(key)) if key else 0)
    for name, value in hints.pairs(properties):
        size += _field(_field(byte_length(name)) + _field(byte_length(value)))
    return size


def wire_limit(max_message_bytes: int, *, producer_name: str, options: Mapping[str, Any]) -> WireLimit:
    """Return the limit for one send.

    Args:
        max_message_bytes: The limit of the broker, or of the topic if that is less.
        producer_name: Travels with every message.
        options: The send's options, beside key and properties.
    """
    room = max_message_bytes - _field(byte_length(producer_name)) - sum(map(_option_bytes, options.items()))
    return WireLimit(room, metadata_bytes, chunk_message_bytes=min(_CHUNK_BYTES, room - _SPARE_BYTES))


def _field(size: int) -> int:
    """Bytes of a Protobuf field of ``size`` bytes, with its length and its number, if that is below 16."""
    return 1 + max(1, -(-size.bit_length() // 7)) + size


def _option_bytes(option: tuple[str, Any]) -> int:
    name, value = option
    if value is None or value is False:
        return 0
    if name == "replication_clusters":
        return sum(_field(byte_length(cluster)) for cluster in value)
    return 1 + _field(byte_length(value)) if name == "ordering_key" else 12
