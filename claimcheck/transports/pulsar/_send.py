"""Sends a payload that was stored or cut into chunks: options, size limits, in-flight window, results, failures."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, TypedDict

from claimcheck._send.outbound import Outbound, SendLedger
from claimcheck._validation import check_type
from claimcheck._wire import headers as hints
from claimcheck._wire.envelope import Envelope
from claimcheck._wire.headers import WireLimit, byte_length
from claimcheck.transports._common.rollback_worker import RollbackWorker
from claimcheck.transports.pulsar._deadlines import Ticket, no_id
from claimcheck.transports.pulsar._errors import ChunkArgumentError, SendDeadlineError, error_of, vendor
from claimcheck.transports.pulsar._message import WholeMessageId

if TYPE_CHECKING:
    import pulsar

    from claimcheck.transports.pulsar._deadlines import SendCallback

_log = logging.getLogger(__name__)
_QUEUE_IS_FULL = "ProducerQueueIsFull"
_ABORT_SECONDS = 5.0
_CHUNK_BYTES = 1 << 20  # large enough to be fast, and small enough for receiver queues that count messages
_SPARE_BYTES = 1024  # less in each chunk, for the properties that a dead letter adds
_FIXED_BYTES = 10 + 7 + 7 + 3 + 12  # sequence id, publish time, uncompressed size, compression, schema version
_NOT_FOR_CHUNKS = ("sequence_id", "deliver_at", "deliver_after")


# Options and sizes -----------------------------------------------------------------------------------------------


class SendOptions(TypedDict, total=False):
    """Options of a send, as in `pulsar.Producer.send`. Chunks cannot have a sequence id or a delivery time."""

    ordering_key: str | None
    sequence_id: int | None
    replication_clusters: list[str] | None
    disable_replication: bool | None
    event_timestamp: int | None
    deliver_at: int | None
    deliver_after: timedelta | None


def checked_options(options: Mapping[str, object]) -> dict[str, object]:
    """Return the options that are set."""
    if not options:
        return {}
    if unknown := options.keys() - SendOptions.__annotations__.keys():
        raise TypeError(f"unexpected keyword arguments: {', '.join(sorted(unknown))}")
    return {name: value for name, value in options.items() if value}


def delay_seconds(options: Mapping[str, object], *, clock: Callable[[], float] = time.time) -> float:
    """Return how long the broker will hold a message with these options back."""
    after, at = options.get("deliver_after"), options.get("deliver_at")
    if isinstance(after, timedelta):
        return max(0.0, after.total_seconds())
    return max(0.0, at / 1000 - clock()) if isinstance(at, int) else 0.0


def metadata_bytes(key: object, properties: object) -> int:
    """Return the bytes beside the payload, without the producer's name and the rarer options; at most 30 too many."""
    size = _FIXED_BYTES + (_field(byte_length(key)) if key else 0)
    for name, value in hints.pairs(properties):
        size += _field(_field(byte_length(name)) + _field(byte_length(value)))
    return size


def wire_limit(max_message_bytes: int, *, producer_name: str, options: Mapping[str, object]) -> WireLimit:
    """Return the limit for one send."""
    room = max_message_bytes - _field(byte_length(producer_name)) - sum(map(_option_bytes, options.items()))
    return WireLimit(room, metadata_bytes, chunk_message_bytes=min(_CHUNK_BYTES, room - _SPARE_BYTES))


def _field(size: int) -> int:
    """Bytes of a Protobuf field of ``size`` bytes, with its length and its number, if that is below 16."""
    return size + 2 if size < 128 else 1 - (-size.bit_length() // 7) + size


def _option_bytes(option: tuple[str, object]) -> int:
    name, value = option
    if value is None or value is False:
        return 0
    if isinstance(value, list):  # of replication clusters
        return sum(_field(byte_length(cluster)) for cluster in value)
    return 1 + _field(byte_length(value)) if name == "ordering_key" else 12


# Sending ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SendSettings:
    """Settings that all sends of one producer share. ``late`` is called when a message has had no answer in time."""

    raw: pulsar.Producer  # without its schema
    topic: str
    window_bytes: int  # in flight for each payload; one message is always allowed
    deadline_seconds: float  # for each message
    late: Callable[[], None] = lambda: None
    clock: Callable[[], float] = time.monotonic

    def send(self, envelope: Envelope, callback: SendCallback, options: Mapping[str, object]) -> None:
        """Pass one message to the client, which accepts only ``bytes``."""
        data = envelope.data
        if data is not None and type(data) is not bytes:
            data = bytes(data)
        self.raw.send_async(data, callback, properties=envelope.headers, partition_key=envelope.key, **options)

    def no_answer(self, advice: str = "") -> SendDeadlineError:
        """Return the error for a message without an answer."""
        text = f"{self.topic}: no answer in {self.deadline_seconds:g} s{advice}"
        return SendDeadlineError(text, destination=self.topic)


class InFlightWindow:
    """Sends messages and records their results in a ledger."""

    def __init__(
        self, settings: SendSettings, options: Mapping[str, object] | None = None, ledger: SendLedger | None = None
    ) -> None:
        self._settings = settings
        self._options = options or {}
        self._ledger = ledger or SendLedger()
        self._changed = threading.Condition()
        self._in_flight: dict[int, tuple[float, int]] = {}  # launch time and size
        self._again: list[tuple[int, Envelope, int]] = []  # rejected by a full queue, with the number in flight then
        self._closed = False
        self.on_finished: Callable[[], None] = lambda: None
        self.launched = 0
        self.result: pulsar.Result | None = None

    def launch(self, envelope: Envelope) -> None:
        """Send one message, when there is room for it."""
        room = self._settings.window_bytes - len(envelope.data or b"")
        with self._changed:
            self._wait(lambda: not self._in_flight or self._bytes() <= room)
            number = self._ledger.launched()
        self._launch(number, envelope)
        self.launched += 1

    def wait(self) -> list[pulsar.MessageId]:
        """Wait until every message is in the topic, and return their ids in order."""
        with self._changed:
            self._wait(lambda: not self._in_flight)
        return self._ledger.results

    def drain(self) -> None:
        """Wait until the client has accepted all messages. Raises as `launch`."""
        with self._changed:
            self._wait(lambda: True)

    def settle(self) -> None:
        """After an error, wait for the results of the messages in flight, until they are overdue."""
        with self._changed:
            while self._in_flight and (left := self._left()) > 0:
                self._changed.wait(left)
            if self._in_flight:
                self._settings.late()

    def close(self) -> None:
        """Stop launching; ``on_finished`` may be called from now on."""
        with self._changed:
            self._closed = True
            done = not self._in_flight
        if done:
            self.on_finished()

    def _launch(self, number: int, envelope: Envelope) -> None:
        kept = [envelope]  # a full queue is reported before `send` returns; then the next chunk reuses the memory

        def callback(result: pulsar.Result, message_id: pulsar.MessageId) -> None:
            self._record(number, kept, result, message_id)

        with self._changed:
            self._in_flight[number] = self._settings.clock(), len(envelope.data or b"")
        try:
            self._settings.send(envelope, callback, self._options)
        except BaseException as error:
            with self._changed:
                self._in_flight.pop(number, None)
                self._ledger.failed(number, error)
            raise
        finally:
            kept.clear()

    def _record(self, number: int, kept: list[Envelope], result: pulsar.Result, message_id: pulsar.MessageId) -> None:
        """Record a result, in the client's thread: an exception here would end the process."""
        envelope = next(iter(kept), None)
        with self._changed:
            self._in_flight.pop(number, None)
            if result.name == "Ok":  # several times as fast as a comparison of the members
                self._ledger.acknowledged(number, message_id)
            elif result.name == _QUEUE_IS_FULL and envelope and self._in_flight and not self._closed:
                self._again.append((number, envelope, len(self._in_flight)))
                self._ledger.postponed(number)
            else:
                self.result = self.result or result
                self._ledger.failed(number, error_of(result))
            done = self._closed and not self._in_flight
            self._changed.notify_all()
        if done:
            self.on_finished()

    def _wait(self, ready: Callable[[], bool]) -> None:
        while True:
            if self._ledger.error is not None:
                raise self._ledger.error
            if self._again and len(self._in_flight) < self._again[0][2]:  # one of ours has its result: there is room
                self._retry()
            elif ready() and not self._again:
                return
            elif (left := self._left()) <= 0:
                self._settings.late()
                raise self._settings.no_answer("; the topic may have a lower limit than the producer: set admin_url")
            else:
                self._changed.wait(left)

    def _retry(self) -> None:
        number, envelope, _ = self._again.pop(0)
        self._ledger.resumed(number)
        self._changed.release()  # the client may call back before it returns
        try:
            self._launch(number, envelope)
        finally:
            self._changed.acquire()

    def _left(self) -> float:
        """Seconds until the oldest message is overdue."""
        oldest = min(launched for launched, _ in self._in_flight.values())
        return oldest + self._settings.deadline_seconds - self._settings.clock()

    def _bytes(self) -> int:
        return sum(size for _, size in self._in_flight.values())


class PayloadSend:
    """One payload. Call either `launch` and `wait`, or `launch_for`, once."""

    def __init__(
        self, settings: SendSettings, rollbacks: RollbackWorker, out: Outbound, options: Mapping[str, object]
    ) -> None:
        self._settings = settings
        self._rollbacks = rollbacks
        self._out = out
        self._options = options
        self._window = InFlightWindow(settings, options, out.ledger)

    def launch(self) -> None:
        """Pass all messages to the client, each when there is room for it. Raises as `wait`."""
        with self._breaking_off():
            self._launch_all()

    def wait(self) -> pulsar.MessageId | WholeMessageId:
        """Wait until all messages are in the topic, and return the payload's id."""
        with self._breaking_off():
            ids = self._window.wait()
        self._out.finish()
        return self._id(ids)

    def drop(self) -> None:
        """Delete the stored payload instead of launching it."""
        with contextlib.suppress(Exception):  # was logged; the stored payload expires
            self._out.settle(None)

    def launch_for(self, ticket: Ticket) -> None:
        """Pass all messages to the client; the ticket is called when the last of them has its result."""
        self._window.on_finished = lambda: self._finish(ticket)
        ticket.late = self._late
        try:
            self._launch_all()
        except BaseException as error:
            if not self._window.launched or not isinstance(error, Exception):  # the ticket will not be called
                self._break_off(error)
                raise
            self._out.ledger.stopped(error)
        self._window.close()

    def _launch_all(self) -> None:
        refused = [name for name in _NOT_FOR_CHUNKS if name in self._options]
        if refused and self._out.uuid is not None:
            raise ChunkArgumentError(
                f"{', '.join(refused)}: not possible for a payload in {self._out.total} chunks; use strategy external"
            )
        for envelope in self._out.messages:
            self._window.launch(envelope)
        self._window.drain()

    @contextlib.contextmanager
    def _breaking_off(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self._break_off(error)
            raise

    def _break_off(self, error: BaseException) -> None:
        if isinstance(error, Exception):
            self._window.settle()
        # After an interrupt the program should end, and a lost producer gets no answer to the abort envelope either.
        waits = isinstance(error, Exception) and not isinstance(error, SendDeadlineError)
        self._out.break_off(error, lambda abort: self._send_abort(abort, _ABORT_SECONDS if waits else 0))

    def _send_abort(self, abort: Envelope, seconds: float = _ABORT_SECONDS) -> None:
        answered = threading.Event()
        self._settings.send(abort, lambda result, message_id: answered.set(), self._options)
        answered.wait(seconds)

    def _finish(self, ticket: Ticket) -> None:
        """Finish in the client's thread, which must neither wait nor raise."""
        if self._out.ledger.error is None:
            self._out.finish()
            ticket(vendor().Result.Ok, self._id(self._out.ledger.results))
            return
        self._rollbacks.submit(self._failed)
        ticket(self._window.result or vendor().Result.UnknownError, no_id())

    def _failed(self) -> None:
        self._out.tell_readers(self._send_abort)
        self._out.finish()

    def _late(self) -> None:
        """Finish in the thread that expires tickets."""
        self._out.ledger.stopped(self._settings.no_answer())
        self._out.finish()

    def _id(self, ids: list[pulsar.MessageId]) -> pulsar.MessageId | WholeMessageId:
        topic = self._settings.topic
        if any(message_id.ledger_id() < 0 for message_id in ids):
            _log.warning("%s: stored, but the broker's deduplication returned no position; the id has none", topic)
        return ids[0] if self._out.uuid is None else WholeMessageId.of_sent(ids, topic)


def without_schema(producer: pulsar.Producer) -> pulsar.Producer:
    """Return a native producer that sends encoded bytes through the same connection."""
    pulsar = vendor()
    check_type("producer", producer, valid=hasattr(producer, "_producer"), expected="a pulsar.Producer")
    raw = pulsar.Producer()
    raw._producer, raw._schema, raw._client = producer._producer, pulsar.schema.BytesSchema(), producer._client
    return raw
