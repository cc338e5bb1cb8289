"""In a process of its own: send or receive one payload through Pulsar, and print how many bytes that took at its peak.

python pulsar_child.py '{"job": "receive-chunks", "size": 104857600, "url": "pulsar://...", ...}'
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))  # at the end: what is installed wins

import pulsar

import claimcheck
from claimcheck._wire.envelope import encode_chunk
from claimcheck.transports.pulsar import PulsarConsumer, PulsarProducer
from tests.benchmarks.memory_child import peak_extra
from tests.benchmarks.rounds import MIB, payload_of


def main(what: dict[str, Any]) -> None:
    """Warm up, work, print."""
    strategy = "external" if what["job"].endswith("pointer") else "chunking"
    most = {"max_payload_bytes": what["bound"], "max_pending_bytes": what["bound"]}
    bound = {"chunking": {**most, "on_evict": "ack"}} if what["bound"] else {}
    store = {"type": "redis", "url": what["redis"], "ttl_seconds": 60}
    cc = claimcheck.from_dict({"strategy": strategy, "stores": {"hot": store}, **bound})
    client = pulsar.Client(what["url"], logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    if what["job"] in ("feed-chunks", "feed-pointer"):
        PulsarProducer(client.create_producer(what["topic"]), cc).send(payload_of(what["size"]))
    elif what["job"] == "feed-interleaved":
        _feed_interleaved(client, what)
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

    def take(timeout: int | None) -> Any:
        message = consumer.receive(timeout)
        message.data()
        consumer.acknowledge(message)
        return message

    def work() -> Any:
        sender.start()
        if not what["bound"]:
            return take(None)
        take(None)
        with suppress(pulsar.Timeout):
            while True:  # more are there, as far as the bound let them
                take(5000)
        return None

    extra, _ = peak_extra(work)
    sender.join()
    return extra


def _feed_interleaved(client: Any, what: dict[str, Any]) -> None:
    """Send a chunk of each payload in turns, so that none is complete before the others nearly are."""
    producer, piece = client.create_producer(what["topic"]), payload_of(MIB - 1024)
    count = -(-what["size"] // len(piece))
    uuids = [str(uuid.uuid4()) for _ in range(20)]
    for position in range(count):
        for one in uuids:
            message = encode_chunk(one, position, count, memoryview(piece))
            producer.send(message, partition_key=one)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
