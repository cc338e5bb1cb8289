"""The options of a send beside payload, properties and key, and the native producer that leaves bytes as they are."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from claimcheck._envelope import Envelope
from claimcheck._outbound import Outbound
from claimcheck._validation import check_type
from claimcheck.transports.pulsar._errors import ChunkArgumentError, vendor

__all__ = ["check_options", "given_options", "native_bytes", "without_schema"]

_NOT_FOR_CHUNKS = ("sequence_id", "deliver_at", "deliver_after")
_NO_OPTIONS: dict[str, Any] = {}


def given_options(
    ordering_key: str | None,
    sequence_id: int | None,
    replication_clusters: list[str] | None,
    disable_replication: bool,
    event_timestamp: int | None,
    deliver_at: int | None,
    deliver_after: timedelta | None,
) -> dict[str, Any]:
    """Those that are given; most sends give none."""
    given = ordering_key or sequence_id or replication_clusters or disable_replication or event_timestamp
    if not (given or deliver_at or deliver_after):
        return _NO_OPTIONS
    names = ("ordering_key", "sequence_id", "replication_clusters", "disable_replication", "event_timestamp")
    values = (ordering_key, sequence_id, replication_clusters, disable_replication, event_timestamp)
    every = dict(zip(names, values, strict=True)) | {"deliver_at": deliver_at, "deliver_after": deliver_after}
    return {name: value for name, value in every.items() if value}


def check_options(out: Outbound, options: Mapping[str, Any]) -> None:
    """Refuse what cannot hold for chunks.

    Raises:
        ChunkArgumentError: There is such an option, and the payload goes as chunks.
    """
    found = [name for name in _NOT_FOR_CHUNKS if name in options]
    if found and out.uuid is not None:
        raise ChunkArgumentError(
            f"{', '.join(found)} cannot hold for a payload that goes as {out.total} chunks; use strategy external"
        )


def native_bytes(envelope: Envelope) -> bytes | None:
    """An envelope's data as the client wants it."""
    data = envelope.data
    return data if data is None or type(data) is bytes else bytes(data)


def without_schema(producer: Any) -> Any:
    """The same producer for bytes as they are: the user's schema has encoded what is in them."""
    pulsar = vendor()
    check_type("producer", producer, valid=hasattr(producer, "_producer"), expected="a pulsar.Producer")
    raw = pulsar.Producer()
    raw._producer, raw._schema, raw._client = producer._producer, pulsar.schema.BytesSchema(), producer._client
    return raw
