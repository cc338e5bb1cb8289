"""A process that waits in `consume`; run by test_kafka_rebalance.py, which kills it there."""

import contextlib
import json
import sys
import threading

from confluent_kafka import Consumer, KafkaException

import claimcheck
from claimcheck.transports.kafka import KafkaConsumer


def main(topic, conf):
    consumer = KafkaConsumer(Consumer(conf), claimcheck.from_dict({"strategy": "chunking"}), auto_offset_store=True)
    counting = threading.Thread(target=count, args=(consumer,), daemon=True)

    def on_revoke(consumer, partitions):
        if not conf["enable.auto.commit"]:
            with contextlib.suppress(KafkaException):  # there is nothing to commit
                consumer.commit(asynchronous=False)
        print("revoked", flush=True)

    consumer.subscribe([topic], on_revoke=on_revoke)
    counting.start()
    consumer.consume(100, timeout=120)
    print("returned", flush=True)


def count(consumer):
    """Print how many messages `consume` has received."""
    while True:
        taken = sum(each.offsets.taken for each in list(consumer._assignment.partitions.values()))
        if taken == 10:
            print("received 10", flush=True)
            return
        threading.Event().wait(0.05)


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
