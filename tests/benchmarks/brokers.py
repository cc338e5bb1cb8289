"""Brokers with what measuring needs, the same for each: topics of one partition, and clients of each strategy."""

from __future__ import annotations

import contextlib
import logging
import queue
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from confluent_kafka import admin

from claimcheck._client import ClaimCheck
from claimcheck._wire.headers import kafka_overhead
from claimcheck.errors import ClaimCheckError
from claimcheck.transports import kafka, local, pulsar
from claimcheck.transports.kafka._client import exception_of
from claimcheck.transports.kafka._client import vendor as confluent
from claimcheck.transports.kafka._queries import MAX_MESSAGE_BYTES, KafkaTarget, log_offsets
from claimcheck.transports.pulsar import _queries as queries
from claimcheck.transports.pulsar._send import error_of

Strategy = Literal["external", "chunking", "native"]
"""``native`` uses no claimcheck: a raised limit (Kafka, embedded broker), or the client's own chunking (Pulsar)."""
STRATEGIES: tuple[Strategy, ...] = ("external", "chunking", "native")

_SECONDS, _WAIT_SECONDS = 15.0, 60.0
_LATE = f"no answer, or no payload, in {_WAIT_SECONDS:g} s"
_LARGEST_BYTES = 1_000_000_000
_QUEUE_BYTES = 16 << 20
_quiet = logging.getLogger(f"{__name__}.client")  # Kafka's client would write to standard error
_quiet.addHandler(logging.NullHandler())
_quiet.propagate = False


class BrokerError(ClaimCheckError):
    """The broker refuses what a measurement needs."""


@dataclass(frozen=True, slots=True)
class Producer:
    """Sends payloads to one topic; `flush` waits until all are acknowledged, and raises the first error."""

    send: Callable[[bytes], object]
    flush: Callable[[], object]
    close: Callable[[], object]

    def deliver(self, payloads: Iterable[bytes]) -> None:
        for payload in payloads:
            self.send(payload)
        self.flush()


@dataclass(frozen=True, slots=True)
class Consumer:
    """Reads one topic from its beginning, and after `rewind` again; `receive` raises what an application gets."""

    rewind: Callable[[], object]
    receive: Callable[[], bytes]
    close: Callable[[], object]


class _Broker:
    def close(self) -> None:
        """Nothing is open."""


class Embedded(_Broker):
    """The embedded broker, with each topic in a file of its own."""

    label = "embedded broker"

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def create(self, topic: str, largest: int = 0) -> None:
        with self._open(topic) as broker:
            broker.create_topic(topic, 1)

    def delete(self, topic: str) -> None:
        for suffix in ("", "-wal", "-shm"):
            (self._folder / f"{topic}.sqlite{suffix}").unlink(missing_ok=True)

    def size(self, topic: str) -> int:
        with self._open(topic) as broker, broker.database.read() as db:
            [(size,)] = db.execute("SELECT bytes FROM partitions WHERE topic = ?", (topic,))
        return int(size)

    def producer(self, strategy: Strategy, topic: str, cc: ClaimCheck) -> Producer:
        broker = self._open(topic, 300 << 20 if strategy == "native" else 1 << 20)
        send = broker.append if strategy == "native" else local.LocalProducer(broker, cc).send
        return Producer(partial(send, topic), lambda: None, broker.close)

    def consumer(self, strategy: Strategy, topic: str, cc: ClaimCheck) -> Consumer:
        consumer = local.LocalConsumer(self._open(topic), cc, topics=[topic], group=topic)

        def receive() -> bytes:
            message = consumer.receive(timeout=_WAIT_SECONDS)
            if message is None or message.error is not None:
                raise (message and message.error) or TimeoutError(_LATE)
            return bytes(message.value or b"")

        return Consumer(partial(consumer.seek, topic, 0, 0), receive, consumer.close)

    def _open(self, topic: str, limit: int = 1 << 20) -> local.LocalBroker:
        most = limit + local.MESSAGE_OVERHEAD_BYTES
        return local.LocalBroker(self._folder / f"{topic}.sqlite", max_message_bytes=most)


class Kafka(_Broker):
    """A cluster. Raises `ClaimCheckError` if no broker answers."""

    def __init__(self, target: KafkaTarget) -> None:
        self._settings, self._cluster = target.settings, target.cluster(seconds=_SECONDS)
        self._cluster.topics()
        self._admin, self.label = self._cluster.admin, f"Kafka (confluent-kafka {confluent().__version__})"

    def create(self, topic: str, largest: int = 0) -> None:
        """Create a topic, for whole records of up to so many bytes if given. Raises `BrokerError`."""
        limit, config = largest + (64 << 10), {"cleanup.policy": "delete"}  # key, headers and framing
        if limit > MAX_MESSAGE_BYTES:
            config["max.message.bytes"] = str(limit)
            if (most := self._largest_request()) < limit:
                raise BrokerError(f"socket.request.max.bytes of the broker is {most:,}, and records need {limit:,}")
        self._change(self._admin.create_topics([admin.NewTopic(topic, 1, -1, config=config)])[topic])

    def _largest_request(self) -> int:
        """Return a limit beyond which a broker closes the connection, and the client tries again."""
        number = min(self._admin.list_topics(timeout=_SECONDS).brokers)
        broker = admin.ConfigResource(admin.ResourceType.BROKER, str(number))
        return int(self._change(self._admin.describe_configs([broker])[broker])["socket.request.max.bytes"].value)

    def delete(self, topic: str) -> None:
        self._change(self._admin.delete_topics([topic])[topic])

    def _change(self, future: Any) -> Any:
        try:
            return future.result(_WAIT_SECONDS)
        except confluent().KafkaException as error:
            if error.args[0].name() not in ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC"):
                raise BrokerError(f"the broker refuses a request: {error.args[0].str()}") from error

    def size(self, topic: str) -> int:
        starts, ends = (log_offsets(self._admin, [(topic, 0)], which) for which in ("earliest", "latest"))
        records = self._cluster.read(starts, ends)
        return sum(len(each.value() or b"") + kafka_overhead(each.key(), each.headers()) for each in records)

    def producer(self, strategy: Strategy, topic: str, cc: ClaimCheck) -> Producer:
        limit = _LARGEST_BYTES if strategy == "native" else MAX_MESSAGE_BYTES
        # Without idempotence a batch that is retried, as the first ones of a new topic are, comes after later ones.
        own = {"linger.ms": 0, "enable.idempotence": True, "message.max.bytes": limit}
        client = confluent().Producer({**self._settings, **own}, logger=_quiet)
        client = client if strategy == "native" else kafka.KafkaProducer(client, cc)
        errors: list[Exception] = []

        def delivered(error: Any, message: Any) -> None:
            if error is not None:
                errors.append(exception_of(error))

        def send(payload: bytes) -> None:
            try:
                client.produce(topic, payload, on_delivery=delivered)
            except BufferError:  # the queue is full
                client.flush(_WAIT_SECONDS)
                client.produce(topic, payload, on_delivery=delivered)
            client.poll(0)

        def flush() -> None:
            if client.flush(_WAIT_SECONDS):
                raise TimeoutError(_LATE)
            for error in errors:
                raise error

        return Producer(send, flush, client.close)

    def consumer(self, strategy: Strategy, topic: str, cc: ClaimCheck) -> Consumer:
        own = {
            # Several chunks, as the guide recommends: with the default, 1 MiB, each chunk is a round trip.
            "max.partition.fetch.bytes": _QUEUE_BYTES,
            **self._settings,
            "group.id": topic,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "fetch.wait.max.ms": 10,  # rewinding waits for the request before it
            "fetch.queue.backoff.ms": 10,  # afterwards, a full queue would delay the next request by a second
            "receive.message.max.bytes": _LARGEST_BYTES,  # a larger record is fetched again and again
        }
        client = confluent().Consumer(own, logger=_quiet)
        client = client if strategy == "native" else kafka.KafkaConsumer(client, cc)

        def receive() -> bytes:
            while (message := client.poll(_WAIT_SECONDS)) is not None:
                if message.error() is None:  # others pass: the topic is new
                    payload: bytes = message.value()
                    return payload
            raise TimeoutError(_LATE)

        rewind = partial(client.assign, [confluent().TopicPartition(topic, 0, 0)])
        rewind()
        return Consumer(rewind, receive, client.close)


class _WebService(queries.AdminClient):
    def send(self, method: str, path: str) -> None:
        """Send a request that changes something, also to the broker that owns the topic."""
        url, headers = f"{self._url}/admin/v2/{path}", {"Content-Type": "application/json", **self._headers}
        while True:
            request = urllib.request.Request(url, None, headers, method=method)
            try:
                self._opener.open(request, timeout=self._timeout_seconds).close()
                return
            except urllib.error.HTTPError as error:
                error.close()
                if error.code not in (307, 308):
                    text = f"the web service refused {method} {path} ({error.code})"
                    raise queries.AdminError(text, status=error.code) from error
                url, headers = error.headers["Location"], {"Content-Type": "application/json"}


class Pulsar:
    """A cluster and its web service."""

    def __init__(self, target: queries.PulsarTarget) -> None:
        trust = queries.trusting(target.ca_file, option="CLAIMCHECK_PULSAR_TLS_TRUST_CERTS_FILE_PATH")
        self._admin = _WebService(
            target.admin_url or "", headers=queries.bearer(target.token), trust=trust, timeout_seconds=_SECONDS
        )
        self._client, self._limit = target.client(seconds=int(_SECONDS)), queries.MAX_MESSAGE_BYTES
        with contextlib.suppress(queries.AdminError):  # this token may not read it
            self._limit = self._admin.max_message_bytes("claimcheck-compare-nothing")
        self.label = f"Pulsar (pulsar-client {queries.vendor().__version__})"

    def create(self, topic: str, largest: int = 0) -> None:
        self._admin.send("PUT", queries.topic_path(topic))

    def delete(self, topic: str) -> None:
        try:
            self._admin.send("DELETE", f"{queries.topic_path(topic)}?force=true")
        except queries.AdminError as error:
            if error.status != 404:
                raise

    def size(self, topic: str) -> int:
        return int(queries.internal_stats(self._admin, topic)["totalSize"])

    def producer(self, strategy: Strategy, topic: str, cc: ClaimCheck) -> Producer:
        options: dict[str, Any] = {"block_if_queue_full": True}
        if strategy == "native":  # with more chunks than pending messages, the client waits for itself for ever
            options |= {"chunking_enabled": True, "max_pending_messages": 20_000}
        client = self._client.create_producer(queries.full_name(topic), **options)
        if strategy != "native":
            client = pulsar.PulsarProducer(client, cc, max_message_bytes=self._limit)
        results: queue.SimpleQueue[Any] = queue.SimpleQueue()
        waiting: list[bytes] = []

        def send(payload: bytes) -> None:
            client.send_async(payload, lambda result, message_id: results.put(result))
            waiting.append(payload)

        def flush() -> None:
            client.flush()  # also waits until failed payloads are rolled back
            while waiting:
                waiting.pop()
                if (result := results.get(timeout=_WAIT_SECONDS)) != queries.vendor().Result.Ok:
                    raise error_of(result)

        return Producer(send, flush, client.close)

    def consumer(self, strategy: Strategy, topic: str, cc: ClaimCheck) -> Consumer:
        clients: list[Any] = []
        options = {
            "initial_position": queries.vendor().InitialPosition.Earliest,
            # So many messages of the largest size may wait: the client's default of 1,000 takes 5 GB.
            "receiver_queue_size": max(1, min(1000, _QUEUE_BYTES // self._limit)),
        }

        def rewind() -> None:  # with a new subscription: after a seek, the client waits before it connects again
            close()
            client = self._client.subscribe(queries.full_name(topic), uuid.uuid4().hex, **options)
            clients.append(client if strategy == "native" else pulsar.PulsarConsumer(client, cc))

        def receive() -> bytes:
            message = clients[0].receive(int(_WAIT_SECONDS * 1000))
            payload: bytes = message.data()
            clients[0].acknowledge(message)
            return payload

        def close() -> None:
            while clients:
                clients.pop().close()

        rewind()
        return Consumer(rewind, receive, close)

    def close(self) -> None:
        self._client.close()


Target = KafkaTarget | queries.PulsarTarget | Path
Broker = Embedded | Kafka | Pulsar


def connect(target: Target) -> Broker:
    if isinstance(target, Path):
        return Embedded(target)
    return Kafka(target) if isinstance(target, KafkaTarget) else Pulsar(target)
