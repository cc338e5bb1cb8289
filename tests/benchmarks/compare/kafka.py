"""Apache Kafka as the broker under test: confluent-kafka, alone for ``native`` and in the library's wrappers else."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from confluent_kafka import admin

from claimcheck._wire.headers import kafka_overhead
from claimcheck.errors import ClaimCheckError, TransportError
from claimcheck.transports.kafka import KafkaConsumer, KafkaProducer
from claimcheck.transports.kafka._client import exception_of, vendor
from claimcheck.transports.kafka._queries import MAX_MESSAGE_BYTES, Cluster, log_offsets
from tests.benchmarks.compare.broker import (
    Broker,
    BrokerAddress,
    CompareError,
    Done,
    Mode,
    NotMeasuredError,
    Received,
    received,
)

if TYPE_CHECKING:
    from claimcheck._client import ClaimCheck

_quiet = logging.getLogger(f"{__name__}.client")  # the client would write to standard error
_quiet.addHandler(logging.NullHandler())
_quiet.propagate = False

_SECONDS = 15.0
_POLL_SECONDS = 0.05
_ROOM_SECONDS = 60.0
_MAX_REQUEST_BYTES = 1_000_000_000
_PASSING = {"_PARTITION_EOF", "_TRANSPORT", "_ALL_BROKERS_DOWN", "_RESOLVE", "UNKNOWN_TOPIC_OR_PART"}
_MISSING = {"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC"}

# Of a partition: several chunks, as the guide recommends. With the client's default, 1 MiB, each chunk is a round trip,
# and the client requests new memory for each: reading chunks took up to three times the processor time.
_FETCH_BYTES = 16 << 20


class KafkaBroker(Broker):
    """A connection to a Kafka cluster; options are settings of librdkafka. Raises `CompareError` if none answers."""

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

    def create_topic(self, topic: str, limit: int | None = None) -> None:
        found = int(self._settings.get("socket.request.max.bytes", limit or 0))
        if limit and found < limit:
            text = f"the broker accepts requests of at most {found} bytes, and this run needs {limit}"
            raise NotMeasuredError(f"{text}: raise socket.request.max.bytes, or compare smaller sizes")
        config = {"cleanup.policy": "delete", **({"max.message.bytes": str(limit)} if limit else {})}
        with _explained(f"create topic {topic}", NotMeasuredError if limit else CompareError):
            new = admin.NewTopic(topic, 1, -1, config=config)
            self._admin.create_topics([new], request_timeout=_SECONDS)[topic].result()
        end = time.monotonic() + _SECONDS
        while not self._has_leader(topic):
            if time.monotonic() > end:
                raise CompareError(f"topic {topic} has no leader after {_SECONDS:g} s: check that all brokers run")
            time.sleep(_POLL_SECONDS)

    def _has_leader(self, topic: str) -> bool:
        with contextlib.suppress(vendor().KafkaException):  # the broker that answers may not know it yet
            topics = vendor().TopicCollection([topic])
            found = self._admin.describe_topics(topics, request_timeout=_SECONDS)[topic].result()
            return bool(found.partitions and found.partitions[0].leader)
        return False

    def delete_topic(self, topic: str) -> None:
        with _explained(f"delete topic {topic}"):
            try:
                self._admin.delete_topics([topic], request_timeout=_SECONDS)[topic].result()
            except vendor().KafkaException as error:
                if _name(error) not in _MISSING:
                    raise

    def topic_bytes(self, topic: str) -> int:
        with _explained(f"read topic {topic}"):
            starts, ends = (log_offsets(self._admin, [(topic, 0)], which) for which in ("earliest", "latest"))
            return sum(
                len(record.value() or b"") + kafka_overhead(record.key(), record.headers())
                for record in self._cluster.read(starts, ends)
            )

    # Clients ---------------------------------------------------------------------------------------------------

    def producer(self, mode: Mode, topic: str, cc: ClaimCheck) -> _Producer:
        limit = _MAX_REQUEST_BYTES if mode == "native" else MAX_MESSAGE_BYTES
        # Without idempotence a batch that is retried, as the first ones of a new topic are, comes after later ones.
        own = {"linger.ms": 0, "enable.idempotence": True, "message.max.bytes": limit}
        native = vendor().Producer({**self._conf, **own}, logger=_quiet)
        client = native if mode == "native" else KafkaProducer(native, cc, max_message_bytes=limit)
        return _Producer(client, topic)

    def consumer(self, mode: Mode, topic: str, cc: ClaimCheck, *, group: str) -> _Consumer:
        settings = {
            "max.partition.fetch.bytes": _FETCH_BYTES,  # the user's settings may replace it
            **self._conf,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "fetch.wait.max.ms": 10,  # a seek waits for the request before it
            "fetch.queue.backoff.ms": 10,  # after a seek, a full queue would delay the next request by a second
            "receive.message.max.bytes": _MAX_REQUEST_BYTES,  # a larger record is fetched again and again
        }
        native = vendor().Consumer(settings, logger=_quiet)
        client = native if mode == "native" else KafkaConsumer(native, cc)
        client.subscribe([topic])
        return _Consumer(client, topic)


class _Producer:
    """Sends to one topic with a `KafkaProducer`, or with the client's own producer."""

    def __init__(self, client: Any, topic: str) -> None:
        self._client, self._topic = client, topic
        self.close = client.close

    def send(self, payload: bytes, *, done: Done) -> None:
        def delivered(error: Any, message: Any) -> None:
            done(None if error is None else exception_of(error))

        end = time.monotonic() + _ROOM_SECONDS
        while True:
            try:
                self._client.produce(self._topic, payload, on_delivery=delivered)
            except BufferError as error:  # the queue is full
                if time.monotonic() < end:
                    self._client.poll(_POLL_SECONDS)
                    continue
                done(error)
            except (ClaimCheckError, vendor().KafkaException) as error:
                done(error)
            self._client.poll(0)
            return

    def flush(self, timeout: float) -> None:
        left = self._client.flush(timeout)
        if left:
            raise TimeoutError(f"{left} records have no delivery report after {timeout:g} s")


class _Consumer:
    """Reads one topic with a `KafkaConsumer`, or with the client's own consumer."""

    def __init__(self, client: Any, topic: str) -> None:
        self._client, self._topic = client, topic
        self.close = client.close

    def receive(self, timeout: float) -> Received | None:
        end = time.monotonic() + timeout
        while True:
            message = self._client.poll(max(0.0, end - time.monotonic()))
            if message is not None and (error := message.error()) is None:
                return received(message.value, message.offset(), message)
            if message is not None and error.name() not in _PASSING:
                raise exception_of(error)
            if time.monotonic() >= end:
                return None

    def commit(self, received: Received) -> None:
        self._client.commit(message=received.handle, asynchronous=False)

    def seek(self, position: int | str) -> None:
        self._client.seek(vendor().TopicPartition(self._topic, 0, int(position)))


@contextlib.contextmanager
def _explained(what: str, kind: type[CompareError] = CompareError) -> Iterator[None]:
    """Raise `CompareError` for an error of the client."""
    try:
        yield
    except (vendor().KafkaException, TransportError) as error:
        raise kind(f"the broker did not {what} ({_name(error)}): check the user's permissions") from error


def _name(error: Exception) -> str:
    cause = error.args[0] if error.args else None
    return str(cause.name()) if isinstance(cause, vendor().KafkaError) else type(error).__name__


connect = KafkaBroker
