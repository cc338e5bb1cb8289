"""Sends payloads of any size through a producer of confluent-kafka."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from claimcheck import _hints as hints
from claimcheck._envelope import Envelope
from claimcheck._outbound import Outbound
from claimcheck._validation import check_cc, check_int, check_seconds, check_type
from claimcheck._wire_size import kafka_overhead
from claimcheck.errors import ClaimCheckError
from claimcheck.transports._common.rollback_worker import Undoing
from claimcheck.transports.kafka._callbacks import Serving
from claimcheck.transports.kafka._errors import classify, vendor
from claimcheck.transports.kafka._in_flight_window import Flight
from claimcheck.transports.kafka._message import report_of
from claimcheck.transports.kafka._topic_limits import MAX_MESSAGE_BYTES, Topics

if TYPE_CHECKING:
    from claimcheck._client import ClaimCheck

__all__ = [
    "KafkaProducer",
    "ROOM_SECONDS",
    "Transaction",
    "WINDOW_BYTES",
]


class Transaction:
    """Holds what would delete the payloads that were sent, from the begin of a transaction to its end.

    Args:
        undoing: Deletes what an aborted transaction stored.
    """

    def __init__(self, undoing: Undoing) -> None:
        self._undoing = undoing
        self._held: list[Callable[[], None]] | None = None

    def begin(self) -> None:
        """Hold from now on."""
        self._held = []

    def sent(self, out: Outbound) -> None:
        """Note a payload that was delivered: inside a transaction, an abort still deletes it."""
        if self._held is not None and (undo := out.release_undo()) is not None:
            self._held.append(undo)

    def committed(self) -> None:
        """Its messages can be read: all is kept."""
        self._held = None

    def aborted(self) -> None:
        """Readers of committed messages cannot see its messages: all is deleted."""
        held, self._held = self._held or [], None
        for undo in held:
            self._undoing.submit(undo)

    def unknown(self) -> None:
        """The outcome is unknown after a fatal error: what was stored stays until it expires."""
        self.committed()


WINDOW_BYTES = 16 << 20
ROOM_SECONDS = 60.0
_REMEMBERED_TOPICS = 10_000
_SMALL_BYTES = 1000  # fits every limit that a topic can have here
_BARE = kafka_overhead(None, None)

DeliveryCallback = Callable[[Any, Any], None]


class KafkaProducer:
    """Has the methods of a `confluent_kafka.Producer`, and sends payloads that are too large for it.

    Safe under threads. The producer stays as it is: partitioner, compression, idempotence and transactions are its own.
    Delivery reports come as they always do, from `poll` and `flush`; `produce` serves them, too, while the chunks of a
    payload wait for room or for their partition.

    Args:
        producer: A `confluent_kafka.Producer`, not one that serializes.
        cc: A `claimcheck.ClaimCheck`.
        max_message_bytes: The producer's own ``message.max.bytes``, if it is not the client's default.
        admin: A `confluent_kafka.admin.AdminClient`, which is asked once for each topic: how large a record may be,
            whether the topic is compacted (no chunks then), and how much it holds. The first `produce` to each
            topic waits for the answer. It is asked again after the topic refused a record as too large.
        window_bytes: Bytes of the chunks of one payload that are on their way at once.
        room_seconds: How long an offloaded payload waits for room in the producer's queue.

    Raises:
        ConfigError: An argument is out of range or of the wrong type; for an object also a `TypeError`.
    """

    def __init__(
        self,
        producer: Any,
        cc: ClaimCheck,
        *,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        admin: Any = None,
        window_bytes: int = WINDOW_BYTES,
        room_seconds: float = ROOM_SECONDS,
    ) -> None:
        native = type(producer) is vendor().Producer
        check_type(
            "producer", producer, valid=native, expected="a confluent_kafka.Producer; serialize values before produce"
        )
        check_cc(cc)
        check_int("max_message_bytes", max_message_bytes, minimum=_SMALL_BYTES)
        check_int("window_bytes", window_bytes, minimum=1)
        check_seconds("room_seconds", room_seconds)
        asks = admin is None or hasattr(admin, "describe_configs")
        check_type("admin", admin, valid=asks, expected="a confluent_kafka.admin.AdminClient")
        self._native = producer
        self._cc = cc
        self._asks = admin is not None
        self._topics = Topics(admin, max_message_bytes)
        self._header = cc.config.header
        self._produce = producer.produce
        self._rooms: dict[str, int] = {}  # what a value and its key may have to go as they are, without headers
        self._window_bytes = window_bytes
        self._room_seconds = room_seconds
        self._serving = Serving(producer)
        self._closed = False
        self._undoing = Undoing()
        self._transaction = Transaction(self._undoing)

    def produce(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int = -1,
        callback: DeliveryCallback | None = None,
        on_delivery: DeliveryCallback | None = None,
        timestamp: int = 0,
        headers: Any = None,
    ) -> None:
        """Send one payload; arguments as of `confluent_kafka.Producer.produce`.

        What is stored is stored before this returns. Chunks go one by one as those before them land, all to the
        partition of the first; the last ``window_bytes`` of them are on their way when this returns.

        Args:
            topic: Where to.
            value: ``str``, bytes-like, or a readable binary file; ``None`` is a tombstone.
            key: Chunks of a payload without one get its uuid, which spreads payloads over partitions; readers take it
                away again.
            partition: By default the producer's partitioner chooses.
            callback: Called once by `poll` or `flush`, with an error or ``None``, and with a report that says where
                the record is: of chunks the lowest offset, when the last has its report. Its value is the envelope;
                of chunks there is none. It is never called for what this raises.
            on_delivery: The same, if there is no ``callback``.
            timestamp: Milliseconds since 1970; by default now.
            headers: A mapping or a list of pairs. Names beginning with ``claimcheck-`` are ours.

        Raises:
            TypeError: A callback that is not callable, or another argument that the client does not take. Nothing was
                sent.
            BufferError: The producer's queue is full; nothing was sent and nothing is stored.
            CompactedTopicError: It would go as chunks to a compacted topic. Nothing was sent.
            PartialSendError: Some chunks are or may be in the topic; an abort envelope followed where it could.
            KafkaException: The client's own, unchanged; what was stored is deleted if it was definitely not sent.
            ClaimCheckError: The payload could not be offloaded; nothing was sent.
        """
        if on_delivery is not None or not (callback is None or callable(callback)):
            callback = _callback(callback, on_delivery)
        if headers is None and type(value) is bytes and (key is None or type(key) is bytes):
            size = len(value) if key is None else len(value) + len(key)
            if size <= self._rooms.get(topic, -1) and not value.startswith(self._header):
                if self._asks:
                    self._produce_plain(topic, value, key, partition, callback, timestamp, None)
                else:
                    self._produce(topic, value, key, partition, callback, callback, timestamp)  # None hides the other
                return
        value = value.encode() if isinstance(value, str) else value
        if self._is_plain(topic, value, key, headers):
            self._produce_plain(topic, value, key, partition, callback, timestamp, headers)
            return
        self._offload(topic, value, key, partition, callback, timestamp, headers)

    def produce_batch(
        self,
        topic: str,
        messages: Sequence[dict[str, Any]],
        partition: int = -1,
        callback: DeliveryCallback | None = None,
        on_delivery: DeliveryCallback | None = None,
    ) -> int:
        """Send several payloads, each a mapping of arguments of `produce`; unlike the client's, headers are sent.

        The arguments of a message take precedence over those of the batch.

        Returns:
            How many were sent; each of the others has its error under ``_error``.

        Raises:
            TypeError: One of them is no mapping, or a callback of the batch is not callable. Nothing was sent.
        """
        callback = _callback(callback, on_delivery)
        if not all(isinstance(message, dict) for message in messages):
            raise TypeError("messages are dicts of the arguments of produce")
        sent = 0
        for message in messages:
            arguments = {"partition": partition} | message
            if not {"callback", "on_delivery"} & arguments.keys():
                arguments["callback"] = callback
            arguments.pop("_error", None)
            try:
                self.produce(topic, **arguments)
                sent += 1
            except BufferError:
                message["_error"] = vendor().KafkaError(vendor().KafkaError._QUEUE_FULL)
            except vendor().KafkaException as error:
                message["_error"] = error.args[0]
            except (ClaimCheckError, TypeError, ValueError) as error:
                message["_error"] = vendor().KafkaError(vendor().KafkaError._INVALID_ARG, str(error))
        return sent

    def sends_plain(self, topic: str, value: Any, key: Any, headers: Any) -> bool:
        """Whether this payload would go as it is, with nobody to ask, nothing stored and nothing to wait for."""
        known = self._topics.knows(topic) or (value is not None and topic in self._rooms)
        return known and self._is_plain(topic, value, key, headers)

    def poll(self, timeout: float = -1) -> int:
        """Serve delivery reports; as the client has it, but that none is lost when the producer is at its end."""
        return self._serving.poll(-1 if timeout is None else timeout)

    def serve(self, seconds: float) -> int:
        """Serve delivery reports; what is raised there waits for the next `poll` or `flush`."""
        return self._serving.quietly(seconds)

    def flush(self, timeout: float = -1) -> int:
        """Wait until every record has its report and what failed is undone; gives the number of records left."""
        timeout = -1 if timeout is None else timeout
        left = self._serving.flush(timeout)
        self._undoing.wait()
        return self._serving.flush(timeout) if len(self._native) else left  # undoing may send an abort envelope

    def purge(self, in_queue: bool = True, in_flight: bool = True, blocking: bool = True) -> None:
        """Give up what is queued, or on its way; reports say which, and only what was queued is undone."""
        self._native.purge(in_queue=in_queue, in_flight=in_flight, blocking=blocking)

    def close(self) -> bool:
        """Flush and close; gives whether every record has its report. Twice does no harm."""
        if self._closed:
            return True
        self._closed = True
        with contextlib.ExitStack() as closing:
            closing.callback(self._undoing.close)
            closing.callback(self._native.close)
            return self.flush() == 0

    # Transactions ----------------------------------------------------------------------------------------------

    def init_transactions(self, timeout: float = -1) -> None:
        """As the client has it."""
        self._native.init_transactions(timeout)

    def begin_transaction(self) -> None:
        """Begin; what is stored from now on is kept by a commit and removed by an abort."""
        self._native.begin_transaction()
        self._transaction.begin()

    def send_offsets_to_transaction(self, positions: list[Any], group_metadata: Any, timeout: float = -1) -> None:
        """As the client has it; give it `KafkaConsumer.position`, which never passes an incomplete payload."""
        self._native.send_offsets_to_transaction(positions, group_metadata, timeout)

    def commit_transaction(self, timeout: float = -1) -> None:
        """Flush and commit.

        Raises:
            KafkaException: The client's own. Where it may be tried again, or has to be aborted, what was stored waits
                for that; otherwise it stays.
        """
        self._serving.flush(timeout)
        try:
            self._native.commit_transaction(timeout)
        except vendor().KafkaException as error:
            if not (error.args[0].retriable() or error.args[0].txn_requires_abort()):
                self._transaction.unknown()
            raise
        self._transaction.committed()

    def abort_transaction(self, timeout: float = -1) -> None:
        """Abort, and remove what was stored. A reader of uncommitted messages may see pointers to nothing then."""
        try:
            self._native.abort_transaction(timeout)
        except vendor().KafkaException as error:
            if not error.args[0].retriable():
                self._transaction.unknown()
            raise
        self._serving.flush(timeout)
        self._transaction.aborted()

    # The rest of the client's producer -------------------------------------------------------------------------

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Any:
        """As the client has it."""
        return self._native.list_topics(*([] if topic is None else [topic]), timeout=timeout)

    def cluster_id(self, timeout: float = -1) -> Any:
        """As the client has it."""
        return self._native.cluster_id(timeout)

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """As the client has it."""
        self._native.set_sasl_credentials(username, password)

    def __len__(self) -> int:
        return len(self._native)

    def __bool__(self) -> bool:
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<KafkaProducer, {len(self)} records without a report>"

    # Within ----------------------------------------------------------------------------------------------------

    def _is_plain(self, topic: str, value: Any, key: Any, headers: Any) -> bool:
        """Whether a payload is small, and nobody could take it for an envelope."""
        if value is None:
            return True
        if type(value) is not bytes or value.startswith(self._header) or hints.is_ours(headers):
            return False
        return len(value) + kafka_overhead(key, headers) - _BARE <= self._room(topic)

    def _room(self, topic: str) -> int:
        room = self._rooms.get(topic)
        if room is None:
            room = self._cc.threshold(topic, self._topics.of(topic).limit) - _BARE
            if self._topics.knows(topic) and len(self._rooms) < _REMEMBERED_TOPICS:
                self._rooms[topic] = room
        return room

    def _offload(
        self, topic: str, value: Any, key: Any, partition: int, callback: Any, timestamp: int, headers: Any
    ) -> None:
        limit = self._topics.of(topic).limit
        block = self._cc.outbound(
            value, destination=topic, key=key, headers=headers, limit=limit, text_key=False, classify=classify
        )
        out = block.__enter__()
        flight = Flight(
            self._native, self._serving, out.ledger, topic=topic, partition=partition, timestamp=timestamp,
            window_bytes=self._window_bytes, room_seconds=self._room_seconds,
        )  # fmt: skip
        try:
            if out.uuid is not None:
                self._topics.check_chunks(topic, _size(value))
            for envelope in out.messages:
                flight.launch(envelope)
        except BaseException as error:
            if isinstance(error, Exception):
                flight.settle()
            self._learn(topic, flight.error)
            out.break_off(error, lambda abort: self._send_abort(topic, abort, flight))
            raise
        flight.close(lambda: self._landed(topic, key, out, flight, callback))

    def _landed(self, topic: str, key: Any, out: Outbound, flight: Flight, callback: DeliveryCallback | None) -> None:
        """In whatever thread serves the producer."""
        if flight.error is None:
            self._transaction.sent(out)
            out.finish()
            report = flight.first() if out.uuid is None else report_of(flight.first(), key, flight.last_offset())
        else:
            self._learn(topic, flight.error)
            self._undoing.submit(lambda: self._failed(topic, out, flight))
            report = flight.failed
        if callback is not None:
            callback(flight.error, report)

    def _failed(self, topic: str, out: Outbound, flight: Flight) -> None:
        out.tell_readers(lambda abort: self._send_abort(topic, abort, flight))
        out.finish()

    def _send_abort(self, topic: str, abort: Envelope, flight: Flight) -> None:
        self._produce(topic, abort.data, abort.key, flight.partition, headers=abort.headers)

    def _produce_plain(
        self, topic: str, value: Any, key: Any, partition: int, callback: Any, timestamp: int, headers: Any
    ) -> None:
        if self._asks and value is not None and len(value) > _SMALL_BYTES:
            callback = functools.partial(self._reported, topic, callback)
        self._produce(topic, value, key, partition, callback, callback, timestamp, headers)

    def _reported(self, topic: str, callback: DeliveryCallback | None, error: Any, report: Any) -> None:
        """A plain record has its report; in whatever thread serves the producer."""
        self._learn(topic, error)
        if callback is not None:
            callback(error, report)

    def _learn(self, topic: str, error: Any) -> None:
        """Ask for a topic's limit again when it refused a record as too large: the limit may have been lowered."""
        if self._asks and error is not None and error.name() == "MSG_SIZE_TOO_LARGE":
            self._topics.ask_again(topic)
            self._rooms.pop(topic, None)


def _callback(callback: Any, on_delivery: Any) -> Any:
    """The one of two callbacks that is called: the client's own choice if both are given.

    Raises:
        TypeError: One is not callable; the client finds out when it has a report for it, which is lost then.
    """
    for given in (callback, on_delivery):
        if not (given is None or callable(given)):
            raise TypeError(f"a delivery callback must be callable, not {type(given).__name__}")
    return on_delivery if callback is None else callback


def _size(value: Any) -> int | None:
    return len(value) if hasattr(value, "__len__") else None
