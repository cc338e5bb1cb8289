"""Topics for Spark to read, on the broker of the tests."""

from __future__ import annotations

from typing import Any

import pulsar

from tests.real.pulsar_broker import PulsarBroker


class Topic:
    """One topic of the broker, and the options of queries on it."""

    def __init__(self, broker: PulsarBroker, client: Any, name: str) -> None:
        self.broker, self.client, self.name = broker, client, name
        self.full = f"persistent://public/default/{name}"
        self._producers: dict[bool, Any] = {}

    def options(self, **more: Any) -> dict[str, str]:
        """For a stream, or for a batch with ``subscription=None``."""
        told = {"serviceUrl": self.broker.service_url, "topic": self.name, "subscription": "spark", **more}
        return {name: str(value) for name, value in told.items() if value is not None}

    def send(self, numbers: Any, *, batched: bool = False, **more: Any) -> list[bytes]:
        """Send numbers as text, the batched ones in about as many entries as there are partitions."""
        if batched not in self._producers:
            told = {"batching_enabled": batched, "batching_max_publish_delay_ms": 50, "block_if_queue_full": True}
            mode = pulsar.PartitionsRoutingMode.RoundRobinDistribution
            self._producers[batched] = self.client.create_producer(self.name, message_routing_mode=mode, **told)
        producer, results = self._producers[batched], set()
        sent = [b"%d" % number for number in numbers]
        for value in sent:
            producer.send_async(value, lambda result, _: results.add(result), **more)
        producer.flush()
        assert results <= {pulsar.Result.Ok}
        return sent

    def ledgers(self) -> list[int]:
        """Return the ledgers that the broker keeps."""
        return [each["ledgerId"] for each in self.broker.internal_stats(self.name)["ledgers"]]

    def keep(self) -> None:
        """Keep all messages: without a subscription the broker deletes old ledgers, at a time of its own."""
        self.client.subscribe(self.name, "keeps", initial_position=pulsar.InitialPosition.Earliest).close()

    def roll(self) -> None:
        """Begin a new ledger, so that the broker may delete the old one."""
        self.broker.unload(self.name)
