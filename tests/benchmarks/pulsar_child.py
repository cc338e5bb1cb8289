"""In a process of its own: send or receive one payload through Pulsar, and print how many bytes that took at its peak.

python pulsar_child.py '{"job": "receive-chunks", "size": 104857600, "url": "pulsar://...", ...}'
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))  # at the end: what is installed wins

import pulsar

import claimcheck
from claimcheck.transports.pulsar import PulsarConsumer, PulsarProducer
from tests.benchmarks.memory_child import peak_extra
from tests.benchmarks.rounds import payload_of


def main(what: dict[str, Any]) -> None:
    """Warm up, work, print."""
    strategy = "external" if what["job"].endswith("pointer") else "chunking"
    cc = claimcheck.from_dict(
        {"strategy": strategy, "stores": {"hot": {"type": "redis", "url": what["redis"], "ttl_seconds": 60}}}
    )
    client = pulsar.Client(what["url"], logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    if what["job"] in ("feed-chunks", "feed-pointer"):
        PulsarProducer(client.create_producer(what["topic"]), cc).send(payload_of(what["size"]))
    elif what["job"].startswith("send"):
        print(_sent(client, cc, what))
    else:
        print(_received(client, cc, what))
    sys.stdout.flush()
    client.close()


def _sent(client: Any, cc: claimcheck.ClaimCheck, what: dict[str, Any]) -> int:
    producer = PulsarProducer(client.create_producer(what["topic"]), cc)
    producer.send(payload_of(1000))
    payload = payload_of(what["size"])
    return peak_extra(lambda: producer.send(payload))[0]


def _received(client: Any, cc: claimcheck.ClaimCheck, what: dict[str, Any]) -> int:
    consumer = PulsarConsumer(client.subscribe(what["topic"], "s", receiver_queue_size=16), cc)
    PulsarProducer(client.create_producer(what["topic"]), cc).send(b"warm")
    consumer.acknowledge(consumer.receive())
    other = json.dumps({**what, "job": what["job"].replace("receive", "feed")})
    sender = threading.Thread(target=subprocess.run, args=([sys.executable, __file__, other],), kwargs={"check": True})

    def work() -> Any:
        sender.start()
        message = consumer.receive()
        message.data()
        consumer.acknowledge(message)
        return message

    extra, _ = peak_extra(work)
    sender.join()
    return extra


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
