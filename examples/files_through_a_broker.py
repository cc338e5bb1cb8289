"""Send every file of a folder through a broker that rejects messages above 64 KiB, and receive it.

    python examples/files_through_a_broker.py [FOLDER]

The producer decorates its produce function; the consumer uses a wrapper. Small files are sent unchanged. Large files
are stored, and a pointer is sent.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import claimcheck
from claimcheck.stores.base import Payload
from claimcheck.transports.local import LocalBroker, LocalConsumer

LIMIT = 64 << 10


def main(folder: Path) -> None:
    """Send, receive and compare every file."""
    with tempfile.TemporaryDirectory() as work:
        stores = {"disk": {"type": "filesystem", "path": f"{work}/claims", "create": True}}
        cc = claimcheck.from_dict({"strategy": "external", "threshold_bytes": LIMIT - 1024, "stores": stores})
        broker = LocalBroker(f"{work}/broker.sqlite", max_message_bytes=LIMIT)
        broker.create_topic("files")

        @cc.offload(payload="value", destination="topic", key="key", headers="headers")
        def publish(
            topic: str, value: Payload, key: str | None = None, headers: dict[str, str] | None = None
        ) -> object:
            return broker.append(topic, value, key=key, headers=headers)  # type: ignore[arg-type]  # never a file

        sent = sorted(path for path in folder.iterdir() if path.is_file())
        for path in sent:
            with path.open("rb") as file:  # streamed into the store, never held in memory
                publish("files", file, key=path.name)

        with LocalConsumer(broker, cc, topics=["files"], group="example") as consumer:
            for path in sent:
                message = consumer.receive(timeout=5.0)
                assert message is not None, "the topic ended early"
                assert message.value == path.read_bytes(), f"{path.name} came back changed"
                consumer.ack(message)
                print(f"{path.name:40} {len(message.value):>12,} bytes  ok")
        stats = broker.stats("files")
        print(f"{stats.messages} messages, {stats.bytes:,} bytes through the broker")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
