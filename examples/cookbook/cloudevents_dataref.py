"""CloudEvents: the attribute `dataref` holds the pointer of an event whose data is too large.

    python examples/cookbook/cloudevents_dataref.py

Needs cloudevents 2, but no server. Payloads are in the folder claims/.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Any

from cloudevents.core.base import BaseCloudEvent
from cloudevents.core.bindings.kafka import KafkaMessage, from_binary, to_binary
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent

import claimcheck

stores = {"disk": {"type": "filesystem", "path": "claims", "create": True}}
cc = claimcheck.from_dict({"stores": stores})
SCHEME = "claimcheck:"


def event(attributes: dict[str, Any], data: bytes) -> CloudEvent:
    with cc.outbound(data, destination=attributes["type"]) as out:
        [envelope] = out.envelopes
        out.sent()  # the caller sends the event
    if envelope.kind is None:  # small
        return CloudEvent(attributes, data)
    reference = SCHEME + urlsafe_b64encode(envelope.data).decode()
    return CloudEvent({**attributes, "dataref": reference})


def data_of(event: BaseCloudEvent) -> Any:
    reference = event.get_extension("dataref") or ""
    if not reference.startswith(SCHEME):
        return event.get_data()
    return cc.resolve(urlsafe_b64decode(reference.removeprefix(SCHEME)))


def main() -> None:
    """Convert a small and a large event to Kafka messages and back."""
    attributes = {"type": "scan", "source": "/scanner/1", "datacontenttype": "application/octet-stream"}
    for data in (b"small", b"x" * 3_000_000):
        message: KafkaMessage = to_binary(event(dict(attributes), data), JSONFormat())
        received = from_binary(message, JSONFormat(), CloudEvent)
        print(f"{len(message.value)} bytes in the message, {len(data_of(received)):,} of data")


if __name__ == "__main__":
    main()
