"""Send every file of a folder through a Pulsar topic, whatever its size, and receive it.

    python examples/pulsar_files.py [FOLDER] [--strategy external|chunking|hybrid]

Start a broker with `docker compose up -d pulsar`, or name yours in PULSAR_URL (default: pulsar://localhost:6650).
"""

from __future__ import annotations

import argparse
import os
import tempfile
import uuid
from pathlib import Path

import pulsar

import claimcheck
from claimcheck.transports.pulsar import PulsarConsumer, PulsarProducer

URL = os.environ.get("PULSAR_URL", "pulsar://localhost:6650")


def main(folder: Path, strategy: str) -> None:
    """Send, receive, compare."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    client = pulsar.Client(URL, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    with tempfile.TemporaryDirectory() as work:
        stores = {"disk": {"type": "filesystem", "path": work}}
        # Small, so that there is something to see. Without it, everything that fits into a message is sent unchanged.
        cc = claimcheck.from_dict({"strategy": strategy, "threshold_bytes": 50_000, "stores": stores})
        topic = f"files-{uuid.uuid4().hex[:8]}"
        consumer = PulsarConsumer(client.subscribe(topic, "example"), cc)
        producer = PulsarProducer(client.create_producer(topic), cc)

        for path in files:
            with path.open("rb") as file:
                producer.send(file, properties={"path": str(path.relative_to(folder))})

        for _ in files:
            message = consumer.receive(timeout_millis=30_000)
            path = folder / message.properties()["path"]
            assert message.data() == path.read_bytes()
            print(f"{len(message.data()):>12,}  {path.name}  {message.message_id()}")
            consumer.acknowledge(message)
    client.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=Path(claimcheck.__file__).parent)
    parser.add_argument("--strategy", default="external", choices=["external", "chunking", "hybrid"])
    arguments = parser.parse_args()
    main(arguments.folder, arguments.strategy)
