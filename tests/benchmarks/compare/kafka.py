"""Apache Kafka as the broker under test: confluent-kafka, alone for ``native`` and in the library's wrappers else."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from confluent_kafka import admin

from claimcheck._wire.headers import kafka_overhead
from claimcheck.errors import ClaimCheckError, TransportError
from claimcheck.transports.kafka import KafkaConsumer, KafkaProducer
from claimcheck.transports.kafka._client import exception_of, vendor
from claimcheck.transports.kafka._queries import MAX_MESSAGE_BYTES, Cluster, Place, log_offsets
from tests.benchmarks.compare.broker import Broker, BrokerAddress, Done, Received, TopicSettings, received
from tests.benchmarks.compare.model import CompareError, Mode, NotMeasuredError

if TYPE_CHECKING:
    from claimcheck._client import ClaimCheck

_quiet = logging.getLogger(f"{__name__}.client")  # the client would write to standard error
_quiet.addHandler(logging.NullHandler())
_quiet.propagate = False

_SECONDS = 15.0
_POLL_SECONDS = 0.05
_ROOM_SECONDS = 60.0
_MIN_SEGMENT_BYTES = 1 << 20  # since Kafka 4.0
_MAX_REQUEST_BYTES = 1_000_000_000
_PASSING = {"_PARTITION_EOF", "_TRANSPORT", "_ALL_BROKERS_DOWN", "_RESOLVE", "UNKNOWN_TOPIC_OR_PART"}
_NOT_ASSIGNED = {"_STATE", "_UNKNOWN_PARTITION"}
_MISSING = {"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC"}

# Of a partition: several chunks, as the guide recommends. With the client's default, 1 MiB, each chunk is a round trip,
# and the client requests new memory for each: reading chunks took up to three times the processor time.
_FETCH_BYTES = 16 << 20


class KafkaBroker(Broker):
    """A connection to a Kafka cluster; options are settings of librdkafka. Raises `CompareError` if none answers."""

    retention_source = "the topic's retention.ms"
    bytes_source = "the sizes of the records, without batches"

    def __init__(self, address: BrokerAddress) -> None:
        self.address = address
        self._conf: dict[str, Any] = {**dict(address.options), "bootstrap.servers": address.url}
        self._cluster = Cluster(self._conf, path="the client's settings")
        self._admin = self._cluster.admin
        try:
            metadata = self._admin.list_topics(timeout=_SECONDS)
        except vendor().KafkaException as error:
            raise CompareError(self._cluster.explain(error)) from error
        count = len(metadata.brokers)
        self.label = f"Kafka ({count} broker{'s' * (count > 1)}, confluent-kafka {vendor().__version__})"
        self._settings = self._described_broker(min(metadata.brokers))
        # The producer's default: less than the broker's, which is for a batch.
        self.limit_bytes = min(MAX_MESSAGE_BYTES, int(self._settings.get("message.max.bytes", MAX_MESSAGE_BYTES)))

    def _described_broker(self, number: int) -> dict[str, str]:
        """Return the settings of a broker; empty if they are not known."""
        resource = admin.ConfigResource(admin.ResourceType.BROKER, str(number))
        try:
            entries = self._admin.describe_configs([resource], request_timeout=_SECONDS)[resource].result()
        except vendor().KafkaException:  # not permitted
            return {}
        return {key: entry.value for key, entry in entries.items() if entry.value is not None}

    # Topics ----------------------------------------------------------------------------------------------------

    def create_topic(self, topic: str, settings: TopicSettings) -> None:
        limit = settings.max_message_bytes or 0
        found = int(self._settings.get("socket.request.max.bytes", limit))
        if found < limit:
            text = f"the broker accepts requests of at most {found} bytes, and this run needs {limit}"
            raise NotMeasuredError(f"{text}: raise socket.request.max.bytes, or compare smaller sizes")
        new = admin.NewTopic(topic, settings.partitions, -1, config=_config(settings))
        with _explained(f"create topic {topic}", NotMeasuredError if limit else CompareError):
            self._admin.create_topics([new], request_timeout=_SECONDS)[topic].result()
        self._wait_for_leaders(topic, settings.partitions)

    def _wait_for_leaders(self, topic: str, partitions: int) -> None:
        end = time.monotonic() + _SECONDS
        while time.monotonic() < end:
            with contextlib.suppress(vendor().KafkaException):  # the broker that answers may not know it yet
                found = self._described(topic).partitions
                if len(found) == partitions and all(each.leader is not None for each in found):
                    return
            time.sleep(_POLL_SECONDS)
        raise CompareError(f"topic {topic} has no leaders after {_SECONDS:g} s: check that all brokers run")

    def _described(self, topic: str) -> Any:
        topics = vendor().TopicCollection([topic])
        return self._admin.describe_topics(topics, request_timeout=_SECONDS)[topic].result()

    def delete_topic(self, topic: str) -> None:
        with _explained(f"delete topic {topic}"):
            try:
                self._admin.delete_topics([topic], request_timeout=_SECONDS)[topic].result()
            except vendor().KafkaException as error:
                if _name(error) not in _MISSING:
                    raise

    # Contents --------------------------------------------------------------------------------------------------

    def topic_bytes(self, topic: str) -> list[int]:
        starts, ends = self._offsets(topic)
        sizes = Counter({partition: 0 for _, partition in ends})
        with _explained(f"read topic {topic}"):
            for record in self._cluster.read(starts, ends):
                size = len(record.value() or b"") + kafka_overhead(record.key(), record.headers())
                sizes[record.partition()] += size
        return [sizes[partition] for partition in sorted(sizes)]

    def readable_messages(self, topic: str) -> int:
        starts, ends = self._offsets(topic)
        return sum(ends[place] - starts[place] for place in ends)

    def positions(self, topic: str, partition: int) -> list[int]:
        starts, ends = self._offsets(topic)
        return list(range(starts[topic, partition], ends[topic, partition]))

    def _offsets(self, topic: str) -> tuple[dict[Place, int], dict[Place, int]]:
        """Return the lowest offset, and the one after the highest, of each partition."""
        with _explained(f"describe topic {topic}"):
            places = [(topic, each.id) for each in self._described(topic).partitions]
            return log_offsets(self._admin, places, "earliest"), log_offsets(self._admin, places, "latest")

    # Clients ---------------------------------------------------------------------------------------------------

    def producer(self, mode: Mode, topic: str, cc: ClaimCheck) -> _KafkaTestProducer:
        limit = _MAX_REQUEST_BYTES if mode == "native" else MAX_MESSAGE_BYTES
        # Without idempotence a batch that is retried, as the first ones of a new topic are, comes after later ones.
        own = {"linger.ms": 0, "enable.idempotence": True, "message.max.bytes": limit}
        native = vendor().Producer({**self._conf, **own}, logger=_quiet)
        client = native if mode == "native" else KafkaProducer(native, cc, max_message_bytes=limit)
        return _KafkaTestProducer(client, topic)

    def consumer(self, mode: Mode, topic: str, cc: ClaimCheck, *, group: str) -> _KafkaTestConsumer:
        native = vendor().Consumer(_consumer_conf(self._conf, group), logger=_quiet)
        client = native if mode == "native" else KafkaConsumer(native, cc)
        client.subscribe([topic])
        return _KafkaTestConsumer(client, topic)


class _KafkaTestProducer:
    """Sends to one topic with a `KafkaProducer`, or with the client's own producer."""

    def __init__(self, client: Any, topic: str) -> None:
        self._client, self._topic = client, topic

    def send(self, payload: bytes, *, done: Done) -> None:
        def delivered(error: Any, message: Any) -> None:
            done(None, message.partition()) if error is None else done(exception_of(error), None)

        end = time.monotonic() + _ROOM_SECONDS
        while True:
            try:
                self._client.produce(self._topic, payload, on_delivery=delivered)
            except BufferError as error:  # the queue is full
                if time.monotonic() < end:
                    self._client.poll(_POLL_SECONDS)
                    continue
                done(error, None)
            except (ClaimCheckError, vendor().KafkaException) as error:
                done(error, None)
            self._client.poll(0)
            return

    def flush(self, timeout: float) -> None:
        left = self._client.flush(timeout)
        if left:
            raise TimeoutError(f"{left} records have no delivery report after {timeout:g} s")

    def close(self) -> None:
        self._client.close()


class _KafkaTestConsumer:
    """Reads one topic with a `KafkaConsumer`, or with the client's own consumer."""

    def __init__(self, client: Any, topic: str) -> None:
        self._client, self._topic = client, topic

    def receive(self, timeout: float) -> Received | None:
        end = time.monotonic() + timeout
        while True:
            message = self._client.poll(max(0.0, end - time.monotonic()))
            if message is not None and (error := message.error()) is None:
                return received(message.value, message.partition(), message.offset(), message)
            if message is not None and error.name() not in _PASSING:
                raise exception_of(error)
            if time.monotonic() >= end:
                return None

    def commit(self, received: Received) -> None:
        self._client.commit(message=received.handle, asynchronous=False)

    def seek(self, partition: int, position: int | str) -> None:
        target, end = vendor().TopicPartition(self._topic, partition, int(position)), time.monotonic() + _SECONDS
        while True:
            try:
                self._client.seek(target)
                return
            except vendor().KafkaException as error:
                if _name(error) not in _NOT_ASSIGNED or time.monotonic() > end:
                    raise
            self._client.poll(_POLL_SECONDS)  # what comes before the seek is not wanted

    def close(self) -> None:
        self._client.close()


@contextlib.contextmanager
def _explained(what: str, kind: type[CompareError] = CompareError) -> Iterator[None]:
    """Raise `CompareError` for an error of the client."""
    try:
        yield
    except (vendor().KafkaException, TransportError) as error:
        raise kind(f"the broker did not {what} ({_name(error)}): check the user's permissions") from error


def _config(settings: TopicSettings) -> dict[str, str]:
    """Return the configuration of a topic. Small segments, so that a short retention can delete anything."""
    config = {"cleanup.policy": "delete"}
    if settings.max_message_bytes is not None:
        config["max.message.bytes"] = str(settings.max_message_bytes)
    if settings.retention_seconds is not None:
        milliseconds = max(1, int(settings.retention_seconds * 1000))
        config |= {"retention.ms": str(milliseconds), "segment.ms": str(milliseconds), "file.delete.delay.ms": "0"}
        config["segment.bytes"] = str(max(_MIN_SEGMENT_BYTES, settings.max_message_bytes or 0))
    return config


def _consumer_conf(conf: dict[str, Any], group: str) -> dict[str, Any]:
    """Return the settings of a consumer with the user's settings, which may replace the first two."""
    return {
        "max.partition.fetch.bytes": _FETCH_BYTES,
        "session.timeout.ms": 6000,  # the least that brokers accept by default: a killed member is soon removed
        **conf,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "fetch.wait.max.ms": 10,  # a seek waits for the request before it
        "fetch.queue.backoff.ms": 10,  # after a seek, a full queue would delay the next request by a second
        "receive.message.max.bytes": _MAX_REQUEST_BYTES,  # a larger record is fetched again and again
    }


def _name(error: Exception) -> str:
    cause = error.args[0] if error.args else None
    return str(cause.name()) if isinstance(cause, vendor().KafkaError) else type(error).__name__


connect = KafkaBroker
