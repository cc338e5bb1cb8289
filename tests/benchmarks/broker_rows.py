"""Kafka and Pulsar through the wrappers, against the native clients on the same broker in the same run."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any

import claimcheck
from tests.benchmarks.brokers import Consumer, Producer
from tests.benchmarks.lab import Lab
from tests.benchmarks.rounds import OURS, Series, Variant, compare, payload_of, times_as_fast
from tests.benchmarks.rows import BEST, Findings, Rows

KAFKA, PULSAR = Rows(), Rows()
_WAIT_SECONDS = 60.0
_IN_MEMORY = {"strategy": "external", "stores": {"m": {"type": "memory"}}}

# Small messages, which are sent unchanged: what the wrappers add --------------------------------------------------


class KafkaPipe:
    """A producer and a consumer with defaults, wrapped if there is a configuration, and a topic of their own."""

    def __init__(self, lab: Lab, cc: claimcheck.ClaimCheck | None, count: int) -> None:
        from confluent_kafka import Consumer, Producer, TopicPartition

        where: dict[str, Any] = {"bootstrap.servers": lab.kafka, "log_level": 3}
        self._topic = f"bench-{uuid.uuid4().hex}"
        self._begin = [TopicPartition(self._topic, 0, 0)]
        read = {"group.id": self._topic, "enable.auto.commit": False, "enable.auto.offset.store": False}
        self.producer: Any = Producer({**where, "enable.idempotence": True})
        self.consumer: Any = Consumer({**where, **read})
        if cc is not None:
            from claimcheck.transports.kafka import KafkaConsumer, KafkaProducer

            self.producer, self.consumer = KafkaProducer(self.producer, cc), KafkaConsumer(self.consumer, cc)

    def send(self, payload: bytes, count: int) -> None:
        """Pass all to the client, and wait for none."""
        produce, topic = self.producer.produce, self._topic
        for _ in range(count):
            produce(topic, payload)

    def fill(self, payload: bytes, count: int) -> None:
        """Have the topic's records at the consumer, or nearly so, before it polls; the first shows that they come."""
        if payload:
            self.send(payload, count + 1)
            self.producer.flush()
        self.consumer.assign(self._begin)
        self.take(1)
        for _ in range(100):  # until the clients' own threads have nothing to do
            before = time.process_time()
            time.sleep(0.05)
            if time.process_time() - before < 0.003:
                return

    def take(self, count: int) -> None:
        poll = self.consumer.poll
        for _ in range(count):
            poll(_WAIT_SECONDS).value()

    def close(self) -> None:
        self.producer.flush()
        self.consumer.close()


class PulsarPipe:
    """The same of Pulsar, with queues for a whole round."""

    def __init__(self, lab: Lab, cc: claimcheck.ClaimCheck | None, count: int) -> None:
        topic, client = f"bench-{uuid.uuid4().hex}", lab.pulsar_client
        self.consumer = client.subscribe(topic, "s", receiver_queue_size=2 * count)
        self.producer = client.create_producer(topic, max_pending_messages=2 * count)
        if cc is not None:
            from claimcheck.transports.pulsar import PulsarConsumer, PulsarProducer

            self.consumer, self.producer = PulsarConsumer(self.consumer, cc), PulsarProducer(self.producer, cc)

    def send(self, payload: bytes, count: int) -> None:
        """Pass all to the client, and wait for none."""
        send = self.producer.send_async
        for _ in range(count):
            send(payload, _ignored)

    def empty(self, count: int) -> None:
        self.producer.flush()
        self.take(count)

    def fill(self, payload: bytes, count: int) -> None:
        """Have them at the consumer, or nearly so, before it receives: one more than it will shows that they come."""
        self.send(payload, count + 1)
        self.empty(1)

    def take(self, count: int) -> None:
        receive, acknowledge = self.consumer.receive, self.consumer.acknowledge
        for _ in range(count):
            message = receive()
            message.data()
            acknowledge(message)

    def close(self) -> None:
        self.producer.close()
        self.consumer.close()


def _ignored(result: Any, message_id: Any) -> None:
    """Do nothing with the result of a send."""


def _pair(
    lab: Lab,
    kind: type[Any],
    what: str,
    count: int,
    run: Callable[[Any], object],
    clean: Callable[[Any], object],
    prepare: Callable[[Any], object] = lambda pipe: None,
) -> tuple[Series, ...]:
    """Measure a native and a wrapped pipe in turns."""
    cc, variants = lab.enter(claimcheck.from_dict(_IN_MEMORY)), []
    for name, each in (("native", None), (OURS, cc)):
        pipe = lab.enter(closing(kind(lab, each, count)))
        prepare(pipe)
        variants.append(Variant(f"{name}, {what}", partial(run, pipe), lambda _, pipe=pipe: clean(pipe)))  # type: ignore[misc]
    return compare(lab.effort, count, *variants, counts="operations")


def _added(*pairs: tuple[Series, ...]) -> Findings:
    """Return the microseconds that the wrapper adds to each operation."""
    added = tuple((ours.seconds.best - base.seconds.best) / base.amount * 1e6 for base, ours in pairs)
    return Findings(added, sum(pairs, ()), BEST)


_KAFKA, _PULSAR = (f"{what} of 1 KiB below the threshold, added per" for what in ("Kafka records", "Pulsar messages"))


@KAFKA.findings(f"{_KAFKA} produce", f"{_KAFKA} poll", unit="us")
def _small_kafka(lab: Lab, size: int) -> Findings:
    payload, count = payload_of(1024), 20_000 // (4 if lab.effort.is_quick else 1)
    few, pair = count // 20, partial(_pair, lab, KafkaPipe)
    again, there = (partial(KafkaPipe.fill, payload=each, count=count) for each in (b"", payload))
    return _added(
        pair("produce", few, partial(KafkaPipe.send, payload=payload, count=few), lambda pipe: pipe.producer.flush()),
        pair("poll", count, partial(KafkaPipe.take, count=count), again, there),
    )


@PULSAR.findings(f"{_PULSAR} send", f"{_PULSAR} receive", unit="us")
def _small_pulsar(lab: Lab, size: int) -> Findings:
    payload, count = payload_of(1024), 2000 // (16 if lab.effort.is_quick else 1)
    pair, fill = partial(_pair, lab, PulsarPipe), partial(PulsarPipe.fill, payload=payload, count=count)
    return _added(
        pair("send", count, partial(PulsarPipe.send, payload=payload, count=count), lambda pipe: pipe.empty(count)),
        pair("receive", count, partial(PulsarPipe.take, count=count), fill, fill),
    )


# Large payloads, with the clients of `make compare` ---------------------------------------------------------------

_RAISED = "whole records need limits that are raised in broker, producer and consumer, and a heap of 3 GB; ours do not"
_NOTES = {
    "produce": _RAISED,
    "consume": f"{_RAISED}; a round begins with the seek, whose time make compare leaves out",
    "send and receive": "one process sends, and receives while messages still arrive; make compare measures sending,"
    " and then reading what is in the topic",
}


def _large(lab: Lab, size: int, kind: str, verb: str, native: str) -> Findings:
    """Move a payload in each of the ways that it may go."""
    payload, names = payload_of(size), {"native": native, "chunking": "chunks", "external": "pointers through Redis"}
    whole, chunks, pointers = series = compare(
        lab.effort, size, *(_moving(lab, kind, verb, mode, name, payload) for mode, name in names.items())
    )
    lab.forget()
    return Findings((times_as_fast(pointers, whole), times_as_fast(chunks, whole)), series, _NOTES[verb])


def _moving(lab: Lab, kind: str, verb: str, mode: Any, name: str, payload: bytes) -> Variant:
    """Return the variant of one mode, with a topic of its own, which is deleted after the step."""
    broker, topic = lab.broker(kind), f"bench-{uuid.uuid4().hex}"
    broker.create(topic, len(payload) if mode == "native" else 0)
    lab.at_end(partial(broker.delete, topic))
    store = {"type": "redis", "url": lab.redis, "ttl_seconds": 600}
    strategy = "external" if mode == "external" else "chunking"
    cc = lab.enter(claimcheck.from_dict({"strategy": strategy, "stores": {"hot": store}}))
    producer = broker.producer(mode, topic, cc)
    lab.at_end(producer.close)
    clean = lab.forget if mode == "external" else lambda _: None
    if verb == "produce":
        return Variant(name, lambda: producer.deliver([payload]), clean)
    consumer = broker.consumer(mode, topic, cc)
    lab.at_end(consumer.close)
    if verb == "send and receive":
        return Variant(name, lambda: _through(producer, consumer, payload), clean)
    producer.deliver([payload])

    def again() -> bytes:
        consumer.rewind()
        return consumer.receive()

    return Variant(name, again)


def _through(producer: Producer, consumer: Consumer, payload: bytes) -> None:
    """Send one, and receive it while its messages still arrive."""
    producer.send(payload)
    consumer.receive()
    producer.flush()


for _rows, _kind, _verbs, _native in (
    (KAFKA, "kafka", ("produce", "consume"), "whole records"),
    (PULSAR, "pulsar", ("send and receive",), "the client's own chunking"),
):
    for _mib in (20, 100):
        for _verb in _verbs:
            _of = f"{_kind.capitalize()} %s, {_verb} {{size}}, against {_native}"
            _rows.findings(
                _of % "pointers through Redis", _of % "chunks", mib=_mib, kind=_kind, verb=_verb, native=_native
            )(_large)
