"""The embedded transport: a broker in one SQLite file, and a producer and a consumer of payloads of any size.

A group has one open consumer: opening another one takes the group over, and every read and commit checks that. Delivery
is at least once: a position never passes the oldest payload that is not acknowledged.
"""

from __future__ import annotations

import uuid
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from claimcheck._content.source import Payload
from claimcheck._receive.resolver import Dropped, Failed, Outcome, Resolved
from claimcheck._send.classification import NEVER, classifier
from claimcheck._validation import check_cc, check_int, check_seconds, check_type, fail
from claimcheck._wire import headers as hints
from claimcheck._wire.buffers import Buffer
from claimcheck._wire.envelope import Envelope
from claimcheck._wire.headers import WireLimit, byte_length
from claimcheck.errors import ClaimCheckError
from claimcheck.transports._common.delegation import Closing
from claimcheck.transports._common.received import StoredPayload
from claimcheck.transports.local._broker import (
    MESSAGE_OVERHEAD_BYTES,
    BrokerBusyError,
    BrokerClosedError,
    BrokerCommitError,
    BrokerStorageError,
    GroupTakenOverError,
    Headers,
    LocalBroker,
    LocalMessage,
    MessageId,
    MessageTooLargeError,
    TopicStats,
    UnknownPartitionError,
    UnknownTopicError,
    check_name,
    encode_message,
    read_messages,
)

if TYPE_CHECKING:
    from claimcheck._client import ClaimCheck

__all__ = [
    "MESSAGE_OVERHEAD_BYTES",
    "BrokerBusyError",
    "BrokerClosedError",
    "BrokerCommitError",
    "BrokerStorageError",
    "GroupTakenOverError",
    "LocalBroker",
    "LocalConsumer",
    "LocalMessage",
    "LocalProducer",
    "MessageId",
    "MessageTooLargeError",
    "ReceivedMessage",
    "TopicStats",
    "UnknownPartitionError",
    "UnknownTopicError",
]

_POLL_SECONDS = 0.05  # the pause between two reads of the file while no messages arrive
_BUSY_SECONDS = 1.0  # how long to read on beyond the timeout while chunks arrive, but no payload

_Place = tuple[str, int]  # topic and partition


class LocalProducer:
    """Sends to topics of one broker. Keeps nothing open, and is as thread-safe as the broker.

    Args:
        broker: Payloads above its ``max_message_bytes`` are offloaded.
        cc: A `claimcheck.ClaimCheck`.
    """

    def __init__(self, broker: LocalBroker, cc: ClaimCheck) -> None:
        check_type("broker", broker, valid=isinstance(broker, LocalBroker), expected="a LocalBroker")
        check_cc(cc)
        self._broker = broker
        self._cc = cc
        self._limit = WireLimit(broker.max_message_bytes, _overhead)

    def send(
        self,
        topic: str,
        payload: Payload | Envelope | None,
        *,
        key: Buffer | str | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
    ) -> MessageId:
        """Send bytes, a readable binary file, or ``None`` for a tombstone; once this returns, every reader sees it.

        The other arguments are those of `LocalBroker.append`. All chunks of a payload share a partition.

        Returns:
            The position of the payload's message, or of the first of its chunks.

        Raises:
            BrokerCommitError: The message may be in the topic; the stored payload is kept.
            TransportError: The broker refused the message; the stored payload is deleted.
            PartialSendError: Some chunks are or may be in the topic; an abort envelope followed if possible.
            ClaimCheckError: An argument is invalid, the payload cannot be read, or the store failed. Nothing was sent.
        """
        encode_message(topic, None, key, headers)  # raises before anything is stored
        with self._cc.outbound(
            payload, destination=topic, key=key, headers=headers, limit=self._limit, text_key=False, classify=classify
        ) as out:
            append = partial(self._broker.append, topic, partition=partition)  # chunks have one key, so one partition
            return out.send(lambda each: append(each.data, key=each.key, headers=each.headers))


classify = classifier({("claimcheck", "TransportError"): frozenset(), ("claimcheck", "BrokerCommitError"): NEVER})


def _overhead(key: object, headers: object) -> int:
    """Return what the broker counts in addition to the value, before it is encoded."""
    in_headers = sum(byte_length(part) for pair in hints.pairs(headers) for part in pair)
    return MESSAGE_OVERHEAD_BYTES + byte_length(key) + in_headers


@dataclass(frozen=True, slots=True, eq=False)
class ReceivedMessage:
    """One payload, or the error in its place. A chunked payload is one message, with the offset of its first chunk.

    Attributes:
        key: As it was sent.
        headers: As they were sent.
        timestamp: Seconds since 1970 when the message, or its first chunk, was appended.
        redelivery_count: How often this consumer negatively acknowledged it before, from 0.
        error: Why there was no payload when the message was received; ``None`` if there was one.
        outcome: The `claimcheck.Resolved` or `claimcheck.Failed` behind the message.
    """

    topic: str
    partition: int
    offset: int
    key: bytes | None = field(repr=False)
    headers: list[tuple[str, bytes]] = field(repr=False)
    timestamp: float
    redelivery_count: int
    error: ClaimCheckError | None
    outcome: Resolved | Failed = field(repr=False)
    _retry: StoredPayload | None = field(default=None, repr=False)

    @property
    def value(self) -> Any:
        """The payload, complete and verified; ``None`` for a tombstone.

        Raises:
            ClaimCheckError: The payload could not be read. If the error is ``retryable``, this call has just tried
                again, and so does the next one.
        """
        if isinstance(self.outcome, Resolved):
            return self.outcome.payload
        if self._retry is None:
            raise self.outcome.error
        return self._retry.get()

    @property
    def positions(self) -> tuple[int, ...]:
        """The offsets of all messages of the payload, lowest first."""
        return self.outcome.positions


class _Delivery(NamedTuple):
    message: LocalMessage  # without its value, which would be in memory twice
    redelivery_count: int
    seeks: int  # in its partition, before it was read


class LocalConsumer(Closing):
    """The consumer of a group, which returns payloads. For one thread at a time.

    What is not acknowledged comes again when the group is opened again, and so does everything behind it.

    Args:
        broker: The broker; it stays open when the consumer closes.
        cc: A `claimcheck.ClaimCheck` that knows the writers' stores; it stays open, too.
        topics: Existing topics, at least one.
        group: 1 to 249 of ``A-Z a-z 0-9 . _ / : -``. Its open consumer, if any, ends with a `GroupTakenOverError`.
        redelivery_delay_seconds: The time between a negative acknowledgement and the redelivery, from 0.

    Raises:
        ConfigError: An argument is invalid.
        UnknownTopicError: One of the topics does not exist.
    """

    def __init__(
        self,
        broker: LocalBroker,
        cc: ClaimCheck,
        *,
        topics: Iterable[str],
        group: str,
        redelivery_delay_seconds: float = 1.0,
    ) -> None:
        check_type("broker", broker, valid=isinstance(broker, LocalBroker), expected="a LocalBroker")
        check_cc(cc)
        check_seconds("redelivery_delay_seconds", redelivery_delay_seconds, allow_zero=True)
        check_name("group", group)
        names = () if isinstance(topics, str) else tuple(dict.fromkeys(topics))
        check_type("topics", topics, valid=bool(names), expected="a list of topics, at least one")
        self._broker, self._cc, self._delay = broker, cc, redelivery_delay_seconds
        self._group, self._topics, self._owner = group, names, uuid.uuid4().hex
        self._resolver = cc.resolver(clock=broker.clock)
        self._next = self._take_over()  # the next offset to read; the first partition is read first
        self._ready: deque[ReceivedMessage] = deque()
        self._due: dict[tuple[Any, int], tuple[float, list[_Delivery]]] = {}  # redeliveries, by their first offset
        self._uncommitted: set[Any] = set()
        self._seeks: Counter[_Place] = Counter()
        self._turn = 0
        self._closed = False

    def receive(self, *, timeout: float = 1.0) -> ReceivedMessage | None:
        """Return the next payload, or ``None`` if no message arrives for ``timeout`` seconds.

        A bad message is returned with its ``error``, never raised. So is a payload that stays incomplete, after
        ``chunking.max_redeliveries``, or at once where the action is ``dead_letter``. Chunks that have arrived are read
        to the end of their payload, for a second more if necessary.

        Raises:
            GroupTakenOverError: Another consumer of the group was opened.
            BrokerClosedError: The consumer or the broker was closed.
            BrokerStorageError: The broker's file cannot be used.
        """
        begin, waited = self._broker.clock(), 0.0
        while not self._ready:
            found = self._step()
            ended = self._broker.clock() - begin > max(timeout, _BUSY_SECONDS) if found else waited >= timeout
            if self._ready or ended:
                break
            if not found:
                pause = min(_POLL_SECONDS, timeout - waited)
                self._broker.sleep(pause)
                waited += pause
        return self._ready.popleft() if self._ready else None

    def ack(self, message: ReceivedMessage) -> None:
        """Acknowledge a payload with all its chunks: the group's position moves to the oldest one that is not.

        Does nothing if a seek came in between, which decides what is delivered next.

        Raises:
            GroupTakenOverError: Another consumer of the group was opened; nothing was acknowledged.
            BrokerClosedError: The consumer or the broker was closed; nothing was acknowledged.
        """
        if not self._is_stale(message):
            self._settle(message.outcome)
            self._commit()

    def nack(self, message: ReceivedMessage) -> None:
        """Negatively acknowledge a payload with all its chunks: it is redelivered, unless a seek came in between.

        Raises:
            BrokerClosedError: The consumer was closed; the payload is delivered to the next one.
        """
        if not self._is_stale(message):
            self._redeliver(message.outcome)

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """Move the position of the group to an offset from 0 to the partition's end.

        Messages received from the partition before are stale. Chunks from before the seek never complete with chunks
        from after it; if the offset is in the middle of a payload, its other chunks expire as configured.

        Raises:
            ConfigError: The topic is not one of the consumer's, or there is no such offset; nothing was changed.
            TransportError: There is no such partition, or the group was taken over; nothing was changed.
        """
        if topic not in self._topics:
            fail("topic", found=repr(topic), expected=f"one of this consumer's: {', '.join(self._topics)}")
        place = (topic, partition)
        check_int("offset", offset, minimum=0, maximum=self._broker.end_offset(*place))
        self._move(place, offset)
        self._next[place] = offset
        self._seeks[place] += 1
        self._resolver.clear(place)
        self._uncommitted.discard(place)
        self._ready = deque(message for message in self._ready if message.outcome.source != place)
        self._due = {key: each for key, each in self._due.items() if key[0] != place}

    def close(self) -> None:
        """Stop; the next consumer of the group receives what is not acknowledged. Closing twice is harmless."""
        self._closed = True
        self._ready.clear()
        self._due.clear()
        self._resolver.clear()

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{self._resolver.pending_payloads} payloads incomplete"
        return f"<LocalConsumer of {self._group} on {', '.join(self._topics)}: {state}>"

    # From messages to outcomes ---------------------------------------------------------------------------------

    def _step(self) -> bool:
        """Take a message, or a payload whose redelivery is due, in turn; return whether there was one."""
        self._turn ^= 1  # so that a payload that is always rejected does not delay the others
        takes = (self._take_next, self._take_due)
        found = takes[self._turn]() or takes[1 - self._turn]()
        if not found:
            self._process(self._resolver.tick())
        self._commit()
        return found

    def _take_next(self) -> bool:
        message = self._read_next()
        if message is None:
            return False
        place, outcomes = (message.topic, message.partition), self._feed(message, 0)
        del self._next[place]  # only now: a message whose resolving was interrupted comes again
        self._next[place] = message.offset + 1  # and its partition comes last, so that none waits for a busy one
        self._process(outcomes)
        return True

    def _read_next(self) -> LocalMessage | None:
        self._check_open()
        with self._broker.database.read() as db:
            owned = "SELECT count(*) FROM positions WHERE grp = ? AND owner = ?"
            if db.execute(owned, (self._group, self._owner)).fetchone()[0] != len(self._next):
                raise self._taken_over()
            for place, offset in self._next.items():
                for message in read_messages(db, *place, offset, 1):
                    return message
        return None

    def _take_due(self) -> bool:
        key = min(self._due, key=lambda each: self._due[each][0], default=None)
        if key is None or self._due[key][0] > self._broker.clock():
            return False
        due = self._due.pop(key)
        try:
            for delivery in due[1]:
                self._process(self._feed(self._original(delivery.message), delivery.redelivery_count + 1))
        except BaseException:
            self._due.setdefault(key, due)
            raise
        return True

    def _feed(self, message: LocalMessage, redelivery_count: int) -> list[Outcome]:
        place = (message.topic, message.partition)
        return self._resolver.feed(
            place,
            message.offset,
            message.value,
            headers=message.headers,
            key=message.key,
            handle=_Delivery(replace(message, value=None), redelivery_count, self._seeks[place]),
            destination=message.topic,
        )

    def _process(self, outcomes: Iterable[Outcome]) -> None:
        for outcome in outcomes:
            if not isinstance(outcome, Dropped):
                self._ready.append(self._received(outcome))
            elif outcome.action == "redeliver":
                self._redeliver(outcome)
            elif outcome.action == "ack":
                self._settle(outcome)
            else:  # there is no place for dead letters: the application decides
                self._ready.append(self._received(outcome.as_failed()))

    def _received(self, outcome: Resolved | Failed) -> ReceivedMessage:
        first: LocalMessage = min(outcome.slots, key=lambda slot: slot.position).handle.message
        error = outcome.error if isinstance(outcome, Failed) else None
        may_retry = error is not None and error.retryable and outcome.identity is None
        count = max(delivery.redelivery_count for delivery in outcome.handles)
        retry = StoredPayload(lambda: self._read_again(first)) if may_retry else None
        place = (first.topic, first.partition, first.offset)
        return ReceivedMessage(*place, outcome.key, outcome.headers, first.timestamp, count, error, outcome, retry)

    def _read_again(self, message: LocalMessage) -> bytes:
        original = self._original(message)
        payload = self._cc.resolve(original.value, destination=original.topic, headers=original.headers)
        assert isinstance(payload, bytes)
        return payload

    def _original(self, message: LocalMessage) -> LocalMessage:
        return self._broker.fetch(message.topic, message.partition, message.offset, 1)[0]

    # From outcomes to positions --------------------------------------------------------------------------------

    def _settle(self, outcome: Outcome) -> None:
        self._due.pop((outcome.source, outcome.positions[0]), None)
        self._resolver.settle(outcome, acked=True)
        self._uncommitted.add(outcome.source)

    def _redeliver(self, outcome: Outcome) -> None:
        self._resolver.settle(outcome, acked=False)
        deliveries = sorted(outcome.handles, key=lambda delivery: delivery.message.offset)
        self._due[outcome.source, outcome.positions[0]] = self._broker.clock() + self._delay, deliveries

    def _commit(self) -> None:
        """Move the group's positions to the oldest messages that are not settled; on failure, with the next call."""
        for place in tuple(self._uncommitted):
            unsettled = self._resolver.safe_position(place)
            self._move(place, self._next[place] if unsettled is None else unsettled)
            self._uncommitted.discard(place)

    def _take_over(self) -> dict[_Place, int]:
        """Become the owner of the group's positions, and return them; new ones are 0."""
        for topic in self._topics:
            self._broker.partitions(topic)  # raises where there is no such topic
        take = """INSERT INTO positions (grp, topic, partition, offset, owner)
            SELECT ?, topic, partition, 0, ? FROM partitions WHERE topic = ?
            ON CONFLICT (grp, topic, partition) DO UPDATE SET owner = excluded.owner"""
        query = "SELECT topic, partition, offset FROM positions WHERE grp = ? AND owner = ? ORDER BY topic, partition"
        with self._broker.database.write() as db:
            db.executemany(take, [(self._group, self._owner, topic) for topic in self._topics])
            rows = db.execute(query, (self._group, self._owner))
            return {(topic, partition): offset for topic, partition, offset in rows}

    def _move(self, place: _Place, offset: int) -> None:
        self._check_open()
        query = "UPDATE positions SET offset = ? WHERE grp = ? AND topic = ? AND partition = ? AND owner = ?"
        with self._broker.database.write() as db:
            if not db.execute(query, (offset, self._group, *place, self._owner)).rowcount:
                raise self._taken_over()

    def _taken_over(self) -> GroupTakenOverError:
        text = f"another consumer of group {self._group} was opened, or the group was deleted: close this consumer"
        return GroupTakenOverError(text)

    def _check_open(self) -> None:
        if self._closed:
            raise BrokerClosedError(f"this consumer of group {self._group} was closed; create a new one to continue")

    def _is_stale(self, message: ReceivedMessage) -> bool:
        self._check_open()
        return bool(message.outcome.handles[0].seeks != self._seeks[message.topic, message.partition])
