"""Apache Pulsar as the broker under test: pulsar-client, with its own chunking for ``native``, and the wrappers else.

Without an address of the web service, topics have one partition and no expiry, their bytes are counted by reading them,
and they are not deleted.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import re
import threading
import time
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from claimcheck.errors import ClaimCheckError
from claimcheck.transports.pulsar import PulsarConsumer, PulsarProducer
from claimcheck.transports.pulsar._message import _native as native_id
from claimcheck.transports.pulsar._message import id_of, natives
from claimcheck.transports.pulsar._queries import MAX_MESSAGE_BYTES, full_name, trusting, vendor
from claimcheck.transports.pulsar._send import error_of
from tests.benchmarks.compare.broker import BrokerAddress, Done, Errors, Received, TopicSettings
from tests.benchmarks.compare.model import CompareError, Mode, NotMeasuredError
from tests.benchmarks.compare.pulsar_admin import TopicAdmin

if TYPE_CHECKING:
    import pulsar

    from claimcheck._client import ClaimCheck

_log = logging.getLogger(__name__)

_MAX_PENDING_CHUNKS = 20_000
_SECONDS = 15.0
_POLL_SECONDS = 0.01
_ACK_GROUPING_SECONDS = 0.2  # twice the time for which the client holds acknowledgements back
_QUEUE_BYTES = 16 << 20
_MAX_QUEUE = 1000
_UNLOADING = {"NotConnected", "BrokerMetadataError", "ServiceUnitNotReady", "Disconnected"}
_PARTITION = re.compile(r"-partition-(\d+)$")
_RANGE = re.compile(r"\((-?\d+):(-?\d+)\.\.(-?\d+):(-?\d+)\]")


def connect(address: BrokerAddress) -> PulsarBroker:
    """Return a connection. Raises `CompareError` if no broker answers."""
    return PulsarBroker(address)


class PulsarBroker:
    """A connection to a Pulsar cluster.

    Args:
        address: Its options are ``token``, ``tls_trust_certs_file_path``, ``listener_name``, and the ``namespace`` of
            new topics, by default ``public/default``.
    """

    def __init__(self, address: BrokerAddress) -> None:
        self.address = address
        options = dict(address.options)
        self._namespace = options.get("namespace", "public/default")
        self._client = _client(address.url, options)
        self._admin = _admin(address, options)
        if self._admin is not None:
            self._admin.check(self._namespace)
        self._version = self._admin.version() if self._admin else None
        self._limit = (self._admin.max_message_bytes() if self._admin else None) or MAX_MESSAGE_BYTES
        self._connect()

    @property
    def label(self) -> str:
        """Version of the broker if it is known, and of the client."""
        return f"Pulsar {self._version or ''}".rstrip() + f" (pulsar-client {vendor().__version__})"

    @property
    def limit_bytes(self) -> int:
        """The broker's limit; Pulsar's default if the web service does not tell."""
        return self._limit

    @property
    def has_retention(self) -> bool:
        """Whether the expiry of topics can be set: with a web service."""
        return self._admin is not None

    @property
    def retention_source(self) -> str | None:
        """Messages that were read are kept or deleted by another policy, which does not apply to unread ones."""
        return "the message TTL of unread messages, which the broker applies on request" if self._admin else None

    @property
    def bytes_source(self) -> str:
        """The broker's statistics, or the messages themselves."""
        return "the broker's statistics" if self._admin else "the sizes of the messages, without metadata"

    # Topics ----------------------------------------------------------------------------------------------------

    def create_topic(self, topic: str, settings: TopicSettings) -> None:
        """Create a topic.

        A limit is not needed, because the client's chunking splits larger messages. The retention is that of unread
        messages, Pulsar's message TTL, in whole seconds.
        """
        name = self._full(topic)
        if self._admin is None:
            if settings.partitions > 1 or settings.retention_seconds is not None:
                what = "several partitions" if settings.partitions > 1 else "an expiry"
                raise NotMeasuredError(f"a topic with {what} needs Pulsar's web service: pass --admin-url")
            with _translated(f"create topic {topic}"):
                self._client.create_producer(name).close()  # creates it, where the broker permits that
            return
        self._admin.create(name, settings.partitions)
        if settings.retention_seconds is not None:
            self._admin.set_expiry(name, max(1, math.ceil(settings.retention_seconds)))

    def delete_topic(self, topic: str) -> None:
        """Delete a topic with its subscriptions; without the web service, only log that it stays."""
        if self._admin is not None:
            self._admin.delete(self._full(topic))
        else:
            _log.warning("topic %s is not deleted, because that needs the web service: pass --admin-url", topic)

    def expire(self, topic: str) -> None:
        """Expire messages and delete them, which the broker otherwise does every few minutes."""
        if self._admin is not None:
            self._admin.expire(self._full(topic))

    # Contents --------------------------------------------------------------------------------------------------

    def topic_bytes(self, topic: str) -> list[int]:
        """Return the bytes of each partition's ledgers, or of its messages."""
        if self._admin is None:
            return [sum(len(each.data()) for each in self._messages(name)) for name in self._partitions_of(topic)]
        return [int(self._admin.internal_stats(name)["totalSize"]) for name in self._partitions_of(topic)]

    def readable_messages(self, topic: str) -> int:
        """Return the number of entries in the topic's ledgers, or of messages that a reader receives."""
        return sum(len(self._positions(name)) for name in self._partitions_of(topic))

    def positions(self, topic: str, partition: int) -> list[str]:
        """Return ledger and entry of each message; without the web service, a native chunked message is one."""
        return self._positions(self._partitions_of(topic)[partition])

    # Clients ---------------------------------------------------------------------------------------------------

    def producer(
        self, mode: Mode, topic: str, cc: ClaimCheck, *, max_message_bytes: int | None = None
    ) -> _PulsarTestProducer:
        """Return a producer with the client's defaults, except that it waits while its queue is full."""
        options: dict[str, Any] = {"block_if_queue_full": True}
        if mode == "native":  # with more chunks than pending messages, the client waits for itself and never returns
            options |= {"chunking_enabled": True, "max_pending_messages": _MAX_PENDING_CHUNKS}
        with _translated(f"connect a producer to topic {topic}"):
            native = self._client.create_producer(self._full(topic), **options)
        limit = min(max_message_bytes or self._limit, self._limit)
        return _PulsarTestProducer(native if mode == "native" else PulsarProducer(native, cc, max_message_bytes=limit))

    def consumer(
        self, mode: Mode, topic: str, cc: ClaimCheck, *, group: str, session_seconds: float | None = None
    ) -> _PulsarTestConsumer:
        """Return a consumer of a Failover subscription; the broker notices at once that a member has died."""
        kind = vendor().ConsumerType.Failover
        with _translated(f"connect a consumer to topic {topic}"):
            native = self._client.subscribe(
                self._full(topic),
                group,
                consumer_type=kind,
                initial_position=vendor().InitialPosition.Earliest,
                start_message_id_inclusive=True,
                receiver_queue_size=self._queue_size,
            )
        names = self._partitions_of(topic)
        if mode == "native":
            return _PulsarTestConsumer(native, names, group, self._admin)
        wrapped = PulsarConsumer(native, cc, consumer_type=kind, start_message_id_inclusive=True)
        return _PulsarTestConsumer(wrapped, names, group, self._admin)

    def close(self) -> None:
        """Close the client and everything that it created."""
        self._client.close()

    # Internals -------------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        """Ask for a topic that does not exist, which creates nothing."""
        with contextlib.suppress(vendor().TopicNotFound):
            self._partitions_of(f"claimcheck-compare-{uuid.uuid4()}")

    @property
    def _queue_size(self) -> int:
        """So many messages of the largest size may wait in a consumer: the client's default of 1,000 takes 5 GB."""
        return max(1, min(_MAX_QUEUE, _QUEUE_BYTES // self._limit))

    def _full(self, topic: str) -> str:
        return full_name(topic if "/" in topic else f"{self._namespace}/{topic}")

    def _partitions_of(self, topic: str) -> list[str]:
        """Return the full names of the topic's partitions, or of the topic."""
        try:
            names: list[str] = self._client.get_topic_partitions(self._full(topic))
        except vendor().TopicNotFound:
            raise
        except (vendor().PulsarException, ValueError) as error:
            raise CompareError(
                f"no Pulsar broker answered ({type(error).__name__}): check that it runs, the address, and the token"
            ) from error
        return names

    def _positions(self, name: str) -> list[str]:
        if self._admin is None:
            return [_serialized(message.message_id()) for message in self._messages(name)]
        ledgers = ledgers_of(self._admin.internal_stats(name))
        return [f"{ledger}:{entry}" for ledger, entries in ledgers for entry in range(entries)]

    def _messages(self, name: str) -> Iterator[pulsar.Message]:
        """Iterate over the messages of a partition, without a durable subscription."""
        start = vendor().MessageId.earliest
        options = {"start_message_id_inclusive": True, "receiver_queue_size": self._queue_size}
        with _translated(f"connect a reader to topic {name}"):
            reader = self._client.create_reader(name, start, **options)
        try:
            while reader.has_message_available():
                yield reader.read_next(int(_SECONDS * 1000))
        finally:
            reader.close()


class _PulsarTestProducer:
    """Sends to one topic with a `PulsarProducer`, or with the client's own producer."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._changed = threading.Condition()
        self._in_flight = 0
        self._errors = Errors()

    def send(self, payload: bytes, *, key: bytes | None = None, done: Done | None = None) -> None:
        """Send; errors go to ``done``, or are raised by `flush` without it."""
        report = done or self._errors.note

        def sent(result: Any, message_id: Any) -> None:
            if result == vendor().Result.Ok:
                report(None, max(0, message_id.partition()))
            else:
                report(_explained(error_of(result)), None)
            self._count(-1)

        self._count(1)
        try:
            self._client.send_async(payload, sent, partition_key=None if key is None else key.decode("latin-1"))
        except (ClaimCheckError, vendor().PulsarException) as error:
            report(_explained(error), None)
            self._count(-1)

    def flush(self, timeout: float) -> None:
        """Wait for all answers. Raises the first error of a send that had no ``done``."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._in_flight == 0, timeout):
                raise TimeoutError(f"{self._in_flight} payloads have no answer after {timeout:g} s")
        self._client.flush()  # also waits until failed payloads are rolled back
        self._errors.raise_first()

    def close(self) -> None:
        """Close the producer."""
        self._client.close()

    def _count(self, change: int) -> None:
        with self._changed:
            self._in_flight += change
            self._changed.notify_all()


class _PulsarTestConsumer:
    """Reads one topic with a `PulsarConsumer`, or with the client's own consumer."""

    def __init__(self, client: Any, names: list[str], group: str, admin: TopicAdmin | None) -> None:
        self._client, self._names, self._group, self._admin = client, names, group, admin
        self._closed = False
        self._position = _position if isinstance(client, PulsarConsumer) else _serialized

    def receive(self, timeout: float) -> Received | None:
        """Return the next payload. Raises the client's errors."""
        try:
            message = self._client.receive(int(timeout * 1000))
        except vendor().Timeout:
            return None
        try:
            payload, error = message.data(), None
        except ClaimCheckError as refused:
            payload, error = None, refused
        partition = _partition_number(message.topic_name())
        return Received(payload, error, partition, self._position(message.message_id()), message)

    def commit(self, received: Received) -> None:
        """Acknowledge all messages of this payload, and wait until the broker's cursor has moved."""
        message: Any = received.handle
        self._client.acknowledge(message)
        if self._admin is None:
            time.sleep(_ACK_GROUPING_SECONDS)
            if len(self._names) == 1:
                self._client.get_last_message_id()  # answered after the acknowledgement on the same connection
            return
        wanted = [(each.ledger_id(), each.entry_id()) for each in natives(id_of(message))]
        end = time.monotonic() + _SECONDS
        while not is_acknowledged(self._cursor(message.topic_name()), wanted):
            if time.monotonic() > end:
                raise CompareError(f"the broker did not store an acknowledgement within {_SECONDS:g} s")
            time.sleep(_POLL_SECONDS)

    def seek(self, partition: int, position: int | str) -> None:
        """Continue at a message, which may be a chunk; waits while the topic is being unloaded."""
        target, end = self._target(self._names[partition], partition, str(position)), time.monotonic() + _SECONDS
        while True:
            try:
                self._client.seek(target)
                return
            except vendor().PulsarException as error:
                if type(error).__name__ not in _UNLOADING or time.monotonic() > end:
                    raise
                time.sleep(_POLL_SECONDS)

    def _target(self, name: str, partition: int, position: str) -> pulsar.MessageId:
        if ":" not in position:
            return vendor().MessageId.deserialize(bytes.fromhex(position), topic=name)
        ledger, entry, *batch = map(int, position.split(":"))
        number = partition if len(self._names) > 1 else -1
        return native_id(name, number, ledger, entry, batch[0] if batch else -1)

    def close(self) -> None:
        """Close the consumer; its subscription stays. A second call does nothing."""
        if not self._closed:
            self._closed = True
            self._client.close()

    def _cursor(self, name: str) -> dict[str, Any]:
        assert self._admin is not None
        cursor: dict[str, Any] = self._admin.internal_stats(name).get("cursors", {}).get(self._group, {})
        return cursor


def _explained(error: Exception) -> Exception:
    if type(error).__name__ != "MessageTooBig":
        return error
    text = "the broker rejected a message as too large: its limit is lower than expected; pass --admin-url to read it"
    return CompareError(text)


@contextlib.contextmanager
def _translated(what: str) -> Iterator[None]:
    """Raise `CompareError` for an error of the client."""
    try:
        yield
    except vendor().PulsarException as error:
        advice = "permit the role to produce and consume, or pass --admin-url if topics are not created automatically"
        raise CompareError(f"the broker did not {what} ({type(error).__name__}): {advice}") from error


def _client(url: str, options: dict[str, str]) -> pulsar.Client:
    pulsar = vendor()
    token = options.get("token")
    try:
        return pulsar.Client(
            url,
            authentication=pulsar.AuthenticationToken(token) if token else None,
            operation_timeout_seconds=int(_SECONDS),
            tls_trust_certs_file_path=options.get("tls_trust_certs_file_path"),
            tls_validate_hostname=True,
            listener_name=options.get("listener_name"),
            # By default the client writes to standard output. It passes messages of every level to a Python logger, and
            # writes those that are not text, for example with a payload, to standard output nevertheless.
            logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull),
        )
    except (pulsar.PulsarException, ValueError, RuntimeError) as error:
        raise CompareError(
            f"the client does not accept the address ({type(error).__name__}): use pulsar://HOST:PORT, or pulsar+ssl://"
        ) from error


def _admin(address: BrokerAddress, options: dict[str, str]) -> TopicAdmin | None:
    if not address.admin_url:
        return None
    trust = trusting(options.get("tls_trust_certs_file_path"), option="--tls-ca-file")
    return TopicAdmin(address.admin_url, token=options.get("token"), trust=trust)


def _position(message_id: Any) -> str:
    """Return the position of a payload's first message."""
    first = natives(message_id)[0]
    return f"{first.ledger_id()}:{first.entry_id()}:{first.batch_index()}"


def _serialized(message_id: Any) -> str:
    """Return the position of a native message: an id of the client's chunking shows only the last chunk."""
    return bytes(message_id.serialize()).hex()


def _partition_number(name: str) -> int:
    found = _PARTITION.search(name)
    return int(found[1]) if found else 0


def ledgers_of(stats: dict[str, Any]) -> list[tuple[int, int]]:
    """Return ids and numbers of entries; the list of ledgers does not count the entries of the open one."""
    found = [(int(each["ledgerId"]), int(each["entries"])) for each in stats.get("ledgers", ())]
    if found and not found[-1][1]:
        found[-1] = (found[-1][0], int(stats.get("currentLedgerEntries", 0)))
    return found


def is_acknowledged(cursor: dict[str, Any], wanted: list[tuple[int, int]]) -> bool:
    """Whether a cursor counts all these entries as acknowledged."""
    ledger, _, entry = str(cursor.get("markDeletePosition", "-1:-1")).partition(":")
    mark = (int(ledger), int(entry))
    found = [tuple(map(int, each)) for each in _RANGE.findall(str(cursor.get("individuallyDeletedMessages", "")))]
    ranges = [((a, b), (c, d)) for a, b, c, d in found]
    return all(each <= mark or any(low < each <= high for low, high in ranges) for each in wanted)
