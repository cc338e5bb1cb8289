"""Receives payloads of any size from a consumer of confluent-kafka, whatever strategy their writers used."""

from __future__ import annotations

import logging
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any, TypedDict

from claimcheck._validation import check_cc, check_int, check_type
from claimcheck.transports._common.received import DEFAULT_THREADS, Prefetch, passes_plain
from claimcheck.transports.kafka._assignment import Assignment, ReadyMessage, Start
from claimcheck.transports.kafka._client import NativeClient, OffsetStoreError, vendor
from claimcheck.transports.kafka._dead_letters import DeadLetters
from claimcheck.transports.kafka._message import KafkaMessage
from claimcheck.transports.kafka._partition import Partition

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message, Producer, TopicPartition

    from claimcheck._client import ClaimCheck
    from claimcheck.transports.kafka._client import Record

_log = logging.getLogger(__name__)

_STORE_SECONDS = 0.2  # how often offsets are stored
_STEP_SECONDS = 0.2  # how long one call of the client may wait while something else is to be done
_FOREVER = float("inf")

RebalanceCallback = Callable[[Any, list[Any]], object]


class ConsumerOptions(TypedDict, total=False):
    """The options of a `KafkaConsumer`, which documents them."""

    auto_offset_store: bool
    dead_letter_producer: Producer | None
    max_redeliveries: int | None
    prefetch_bytes: int | None
    prefetch_threads: int
    clock: Callable[[], float]


class KafkaConsumer(NativeClient):
    """Wraps a `confluent_kafka.Consumer` and has its methods; each message that it returns is a whole payload.

    Plain messages are the client's own. A payload that was offloaded is a `KafkaMessage`, which is also a
    `confluent_kafka.Message`; its offset is the lowest of its records. Committed offsets never move past the first
    record of an incomplete payload. Payloads delivered beyond it are recorded in the commit metadata, so that they are
    not delivered twice.

    Every incomplete payload ends. Its chunks are read again, at most ``max_redeliveries`` times. If it is still
    incomplete, it is returned as a message whose value raises `IncompletePayloadError`, and commits move past it. If
    retention has removed its first records, that happens immediately. ``chunking.on_expire``, ``on_evict`` and
    ``on_abort`` change this: ``ack`` skips the chunks, and ``dead_letter`` returns that message without reading them
    again.

    Not thread-safe, like the client's consumer.

    Args:
        consumer: A `confluent_kafka.Consumer`, not one that deserializes, with ``enable.auto.offset.store`` set to
            ``False``: otherwise the client stores offsets beyond incomplete payloads.
        cc: A `claimcheck.ClaimCheck` with the writers' stores.
        auto_offset_store: Whether to do what ``enable.auto.offset.store`` does: a message is included in the next
            automatic commit once the following one is requested.
        dead_letter_producer: A `confluent_kafka.Producer` for `dead_letter`. It is not closed. With it, chunks are in
            memory twice, until the application drops the message.
        max_redeliveries: How often the chunks of an incomplete payload are read again, from 0; by default
            ``chunking.max_redeliveries``.
        prefetch_bytes: Bytes of stored payloads to read ahead while the current message is processed; 0 for none. By
            default up to 64 MiB, as many as needed, and only while the application reads the payloads that it receives.
        prefetch_threads: Payloads to read ahead concurrently.
        clock: Seconds, monotonic.

    Raises:
        ConfigError: A number is out of range.
        OffsetStoreError: The consumer stores offsets itself.
        ArgumentTypeError: An argument has the wrong type; a `ConfigError` that is also a `TypeError`.
    """

    def __init__(
        self,
        consumer: Consumer,
        cc: ClaimCheck,
        *,
        auto_offset_store: bool = False,
        dead_letter_producer: Producer | None = None,
        max_redeliveries: int | None = None,
        prefetch_bytes: int | None = None,
        prefetch_threads: int = DEFAULT_THREADS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        expected = "a confluent_kafka.Consumer, not a subclass; deserialize what value() returns"
        check_type("consumer", consumer, valid=type(consumer) is vendor().Consumer, expected=expected)
        check_cc(cc)
        check_int("max_redeliveries", 0 if max_redeliveries is None else max_redeliveries, minimum=0)
        self._prefetch = Prefetch(prefetch_bytes, threads=prefetch_threads)
        _check_offset_store(consumer)
        self._native: Consumer = consumer
        self._poll: Callable[[float], Record | None] = consumer.poll  # type: ignore[assignment]
        self._consume: Callable[[int, float], list[Record]] = consumer.consume  # type: ignore[assignment]
        # Records whose values begin like this are decoded and checked before they are delivered.
        self._checked_start = cc.config.header if passes_plain(cc) else b""
        self._checked_first = self._checked_start[:1] or bytes(range(256))
        self._dead_letters = DeadLetters(cc, dead_letter_producer)
        self._assignment = Assignment(
            consumer,
            cc,
            max_redeliveries=max_redeliveries,
            keep=bool(self._dead_letters),
            clock=clock,
        )
        self._partitions = self._assignment.partitions
        self._paused: set[tuple[str, int]] = set()
        self._ready: deque[ReadyMessage] = deque()  # not delivered: never committed, dropped by a seek or a revocation
        self._errors: list[Exception] = []  # of rebalance callbacks
        self._clock = clock
        self._auto_offset_store = auto_offset_store
        self._stored_at = 0.0
        self._in_steps = auto_offset_store or self._prefetch.always

    def poll(self, timeout: float = -1) -> Any:
        """Wait for the next payload. One that cannot be delivered is returned too; its value raises the error.

        Args:
            timeout: Seconds; by default there is no limit.

        Returns:
            A `confluent_kafka.Message`, or ``None`` on timeout. One with an ``error()`` is an event of the client.

        Raises:
            KafkaException: An error of the client.
        """
        if not (self._ready or self._in_steps or self._assignment.busy or self._errors):
            poll = self._poll  # called as a local variable: faster
            native = poll(timeout)
            if self._errors:
                if native is not None:
                    self._take(native)
                self._raise_deferred()
            if native is None or self._is_plain(native):
                return native
            self._prefetch.begin_receive()
            self._take(native)
        messages = self._receive(1, timeout)
        return messages[0] if messages else None

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Any]:
        """Wait for up to ``num_messages`` payloads; returns those that came in time. Raises as `poll` does."""
        if num_messages < 0:
            return list(self._native.consume(num_messages, timeout))  # raises the client's own error
        return self._receive(num_messages, timeout) if num_messages else []

    def commit(
        self, message: Message | None = None, offsets: list[TopicPartition] | None = None, asynchronous: bool = True
    ) -> Any:
        """Commit like the client, but never past an incomplete payload.

        Args:
            message: Commit everything up to this message.
            offsets: Commit these offsets. Metadata in them replaces ours, so payloads may be delivered twice.
            asynchronous: Whether to return immediately.

        Raises:
            KafkaException: An error of the client.
        """
        if message is not None:
            offsets = [self._safe_after(message)]
        elif offsets is not None:
            offsets = [self._assignment.safe_for(given) for given in offsets]
        else:
            return self._commit_stored(asynchronous)
        return self._commit(offsets, asynchronous)

    def store_offsets(self, message: Message | None = None, offsets: list[TopicPartition] | None = None) -> None:
        """Store an offset for the next automatic commit, but never one past an incomplete payload."""
        if message is not None:
            offsets = [self._safe_after(message)]
        if offsets is None:
            raise ValueError("store_offsets needs a message or offsets")
        self._store([self._assignment.safe_for(given) for given in offsets])

    def dead_letter(self, message: Message, topic: str, *, reason: str = "rejected") -> None:
        """Send a payload's records to a dead-letter topic, and wait until they are in it. Then commit the message.

        The records are unchanged, readable or not, except for a pointer whose payload's lifetime was extended, see
        ``dead_letter_ttl_seconds``. Each gets the headers ``dead-letter-topic``, ``-partition``, ``-offset`` and
        ``-reason``, unless it is so close to the producer's ``message.max.bytes`` that they do not fit.

        Args:
            message: As it was received.
            topic: The dead-letter topic.
            reason: For the header.

        Raises:
            ConfigError: There is no ``dead_letter_producer``.
            StoreUnavailableError: The lifetime of the payload could not be extended now; nothing was sent.
            KafkaException: An error of the client. Some of the records may be in the dead-letter topic.
        """
        self._dead_letters.send(message, topic, reason)

    def position(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Return where to continue after the last message: the offset that may be committed, with its metadata.

        Pass the result to `KafkaProducer.send_offsets_to_transaction` unchanged.
        """
        positions = []
        for each in partitions:
            partition = self._assignment.find(each)
            if partition is None or partition.position is None:
                positions.append(vendor().TopicPartition(each.topic, each.partition))
            else:
                positions.append(self._safe(partition))
        return positions

    def committed(self, partitions: list[TopicPartition], timeout: float = -1) -> list[TopicPartition]:
        """Return the committed offsets, like the client; the metadata may be ours."""
        return self._native.committed(partitions, timeout=timeout)

    def seek(self, partition: TopicPartition) -> None:
        """Continue at an offset; chunks read before the seek never complete with chunks read after it.

        Payloads that begin before the offset are skipped. With the metadata of `position` or `committed`, payloads that
        it marks as delivered are not delivered again.
        """
        self._native.seek(partition)
        self._drop([partition])
        self._assignment.seek(partition)

    def subscribe(
        self,
        topics: list[str],
        on_assign: RebalanceCallback | None = None,
        on_revoke: RebalanceCallback | None = None,
        on_lost: RebalanceCallback | None = None,
    ) -> None:
        """Subscribe like the client. Callbacks receive this consumer; `poll` raises their exceptions."""
        # Deferred: the client replaces a callback's exception with a KafkaError, which is not an exception class.
        defer = self._defer_errors

        def call(callback: RebalanceCallback | None, partitions: list[TopicPartition]) -> None:
            if callback is not None:
                defer(lambda: callback(self, partitions))

        def assigned(_: Consumer, partitions: list[TopicPartition]) -> None:
            starts = self._assignment.starts(partitions)
            self._assignment.begin_at(starts)
            call(on_assign, partitions)
            defer(lambda: self._assign_moved(starts))

        def revoked(_: Consumer, partitions: list[TopicPartition]) -> None:
            self._store_offsets()
            call(on_revoke, partitions)
            self._revoke(partitions)

        def lost(_: Consumer, partitions: list[TopicPartition]) -> None:
            call(on_revoke if on_lost is None else on_lost, partitions)
            self._revoke(partitions)

        self._native.subscribe(topics, on_assign=assigned, on_revoke=revoked, on_lost=lost)

    def unsubscribe(self) -> None:
        """Unsubscribe. The next receive call revokes the partitions, except for those that were assigned manually."""
        self._store_offsets()
        self._native.unsubscribe()

    def assign(self, partitions: list[TopicPartition]) -> None:
        """Assign partitions manually, at their offsets or at the group's committed offsets."""
        self._store_offsets()
        starts = self._assignment.starts(partitions)
        self._native.assign([start.at for start in starts])
        self._forget()
        self._assignment.begin_at(starts)

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        """Assign additional partitions."""
        starts = self._assignment.starts(partitions)
        self._native.incremental_assign([start.at for start in starts])
        self._assignment.begin_at(starts)

    def unassign(self) -> None:
        """Remove all partitions from the assignment, and forget chunks and waiting messages."""
        self._store_offsets()
        self._native.unassign()
        self._forget()

    def incremental_unassign(self, partitions: list[TopicPartition]) -> None:
        """Remove some partitions from the assignment."""
        self._store_offsets()
        self._native.incremental_unassign(partitions)
        self._revoke(partitions)

    def pause(self, partitions: list[TopicPartition]) -> None:
        """Pause partitions, including messages that were received ahead."""
        self._native.pause(partitions)
        self._paused |= {(each.topic, each.partition) for each in partitions}

    def resume(self, partitions: list[TopicPartition]) -> None:
        """Resume paused partitions."""
        self._native.resume(partitions)
        self._paused -= {(each.topic, each.partition) for each in partitions}

    def close(self) -> None:
        """Close the consumer; messages that were not committed are redelivered to other members.

        While an exception propagates, offsets that are not stored yet stay so: the application may have failed on the
        last message, which then comes again, with those of the last fifth of a second.
        """
        self._stop_storing_after_error()
        self._store_offsets()
        self._native.close()
        self._forget()
        self._raise_deferred()

    def assignment(self) -> list[TopicPartition]:
        """Return the partitions that are assigned to this consumer."""
        return self._native.assignment()

    def consumer_group_metadata(self) -> Any:
        """Return the argument for `KafkaProducer.send_offsets_to_transaction`."""
        return self._native.consumer_group_metadata()

    def memberid(self) -> str:
        """Return this consumer's member id in its group."""
        return self._native.memberid()

    def get_watermark_offsets(self, partition: TopicPartition, timeout: float = -1, cached: bool = False) -> Any:
        """Return a partition's lowest offset, and the offset after its highest one."""
        return self._native.get_watermark_offsets(partition, timeout=timeout, cached=cached)

    def offsets_for_times(self, partitions: list[TopicPartition], timeout: float = -1) -> list[TopicPartition]:
        """Return the first offsets at or after the given times; a payload may begin before such an offset."""
        return self._native.offsets_for_times(partitions, timeout=timeout)

    @property
    def pending_payloads(self) -> int:
        """Number of incomplete payloads with chunks in memory."""
        return self._assignment.resolver.pending_payloads

    @property
    def pending_bytes(self) -> int:
        """Bytes of the chunks in memory."""
        return self._assignment.resolver.pending_bytes

    def __repr__(self) -> str:
        count = len(self._assignment.partitions)
        return f"<KafkaConsumer of {count} partitions, {self.pending_payloads} incomplete payloads>"

    # The receive loop. On an event loop `_gather` waits, `_waiting` returns what arrived, `_hand_out` removes it.

    def _receive(self, count: int, timeout: float | None) -> list[Message]:
        """Wait for ``count`` messages; returns those that arrived in time, or before a callback raised an exception."""
        self._raise_deferred()
        end = self._end(timeout)
        while True:
            self._before_next()
            self._tick()
            found, left = len(self._waiting(count)), max(0.0, end - self._clock())
            if found and (found == count or left == 0):
                if messages := self._hand_out(found, look_ahead=True):
                    return messages
                continue
            natives = self._records(count - found, self._step(left))
            if self._errors:
                found = len(self._waiting(found))  # what came after the exception is for the next call
                self._take_all(natives)
                if messages := self._hand_out(found):
                    return messages
                self._raise_deferred()
            elif self._ready or self._prefetch.room or (len(natives) < count and self._clock() < end):
                self._take_all(natives)  # the client is called again before this returns
            elif messages := self._take_plain(natives):
                return messages
            if not natives and left == 0:
                return []

    def _gather(self, count: int, seconds: float) -> None:
        """Wait for up to ``count`` records; blocks, and may call the user's callbacks."""
        self._before_next()
        self._tick()
        self._take_all(self._records(count, seconds))
        self._raise_deferred()
        self._look_ahead()

    def _expire_and_look_ahead(self) -> None:
        """Take the records for which there is room; also expires incomplete payloads."""
        self._tick()
        self._look_ahead()
        self._raise_deferred()

    def _waiting(self, count: int) -> list[ReadyMessage]:
        """Return up to ``count`` of the next messages; they stay in the queue."""
        if not self._ready:
            return []
        return list(islice((ready for ready in self._ready if not self._is_paused(ready)), count))

    def _hand_out(self, count: int, *, look_ahead: bool = False) -> list[Message]:
        """Remove the next messages from the queue; they count as delivered."""
        chosen = self._waiting(count)
        for ready in chosen:
            self._prefetch.deliver(ready)
        if look_ahead:
            self._defer_errors(self._look_ahead)
            waiting = set(self._waiting(len(self._ready)))
            chosen = [ready for ready in chosen if ready in waiting]
        return [self._delivered(ready) for ready in chosen]

    def _delivered(self, ready: ReadyMessage) -> Message:
        self._ready.remove(ready)
        if ready.partition is not None:
            ready.partition.delivered(ready.first, ready.last)
            if isinstance(ready.message, KafkaMessage):
                ready.message.next_offset = ready.partition.position or 0
            if ready.outcome is not None:
                self._assignment.settle(ready.partition, ready.outcome)
        return ready.message

    def _records(self, count: int, seconds: float) -> list[Record]:
        """Wait for up to ``count`` records."""
        if count != 1:
            return self._consume(count, seconds)
        native = self._poll(seconds)
        return [] if native is None else [native]

    def _is_plain(self, native: Record) -> bool:
        """Whether a record is its own payload, as most are; then it counts as delivered."""
        value = native.value()
        may_be_ours = not value or value[0] in self._checked_first  # rules most records out
        if (may_be_ours and value is not None and value.startswith(self._checked_start)) or native.error() is not None:
            return False
        partition, offset = self._partitions.get((native.topic(), native.partition())), native.offset()
        if partition is None or partition.start is None:
            partition = self._assignment.of(native)
        if offset < partition.skip_below or partition.went_back:
            return False
        partition.read = partition.taken = partition.position = offset + 1
        partition.changed = True
        return True

    def _take_plain(self, natives: list[Record]) -> list[Any]:
        """Return records that are their own payloads, as most are; if one of them is not, they all go to the queue."""
        before = {each: (each.position, each.changed) for each in self._partitions.values()} if natives[1:2] else {}
        plain = len(list(takewhile(self._is_plain, natives)))
        if plain == len(natives):
            return natives
        for native in natives[:plain]:  # not delivered after all
            partition, offset = self._assignment.of(native), native.offset()
            partition.position, partition.changed = before.get(partition, (None, False))
            self._ready.append(ReadyMessage(partition, native, offset, offset))
        self._take_all(natives[plain:])
        return []

    def _take_all(self, natives: Iterable[Record]) -> None:
        stale: set[Partition] = set()
        for native in natives:
            partition = self._take(native, stale)
            if partition is not None and partition.went_back:
                stale.add(partition)  # the client returns its other records again

    def _take(self, native: Record, stale: Iterable[Partition] = ()) -> Partition | None:
        if native.error() is not None:
            self._add(ReadyMessage(None, native))
            return None
        partition, offset, value = self._assignment.of(native), native.offset(), native.value()
        if partition in stale:
            return None
        if partition.went_back and self._assignment.was_overtaken(partition, offset):
            return partition
        partition.read, partition.went_back = offset + 1, False
        if value is None or not value.startswith(self._checked_start):
            if offset >= partition.skip_below:
                self._add(ReadyMessage(partition, native, offset, offset))
            return partition
        for ready in self._assignment.take(partition, native):
            self._add(ready)
        return partition

    def _add(self, ready: ReadyMessage) -> None:
        if ready.partition is not None:
            ready.partition.taken = max(ready.partition.taken, ready.last + 1)
        self._ready.append(ready)
        self._prefetch.add(ready)

    def _remove(self, ready: ReadyMessage) -> None:
        self._ready.remove(ready)
        self._prefetch.remove(ready)

    def _is_paused(self, ready: ReadyMessage) -> bool:
        return ready.partition is not None and ready.partition.source in self._paused

    def _look_ahead(self) -> None:
        while self._prefetch.room and (native := self._poll(0)) is not None:
            self._take(native)

    def _tick(self) -> None:
        """Expire incomplete payloads, and go back for those that are to be read again."""
        if self._assignment.busy:
            for ready in self._assignment.tick(self._paused):
                self._add(ready)

    def _step(self, left: float) -> float:
        """Return how long one call of the client may wait: meanwhile chunks may expire, and offsets must be stored."""
        if self._in_steps or self._assignment.busy:
            return min(left, _STEP_SECONDS)
        return -1 if left == _FOREVER else left

    def _end(self, timeout: float | None) -> float:
        return _FOREVER if timeout is None or timeout < 0 else self._clock() + timeout

    def _drop(self, partitions: list[TopicPartition]) -> None:
        """Drop the waiting messages of these partitions."""
        dropped = {(each.topic, each.partition) for each in partitions}
        for ready in [each for each in self._ready if each.partition and each.partition.source in dropped]:
            self._remove(ready)

    def _revoke(self, partitions: list[TopicPartition]) -> None:
        """Forget partitions that now belong to another consumer."""
        self._drop(partitions)
        self._assignment.end(partitions)

    def _forget(self) -> None:
        """Forget all partitions and waiting messages."""
        self._ready.clear()
        self._prefetch.forget()
        self._assignment.end_all()

    def _defer_errors(self, work: Callable[[], object]) -> None:
        """Call ``work``, and keep its exception, which must not end a call of the client in the middle."""
        try:
            work()
        except Exception as error:
            self._errors.append(error)

    def _raise_deferred(self) -> None:
        """Raise the first exception that was kept, once."""
        errors, self._errors = self._errors, []
        if errors:
            raise errors[0]

    def _assign_moved(self, starts: list[Start]) -> None:
        """Within a rebalance: assign partitions, which the client does by itself unless one starts elsewhere."""
        if not any(start.is_moved for start in starts):
            return
        places = [start.at for start in starts]
        assigned = {(each.topic, each.partition) for each in self._native.assignment()}
        if any((place.topic, place.partition) in assigned for place in places):  # the user's callback assigned them
            return
        try:
            self._native.incremental_assign(places)
        except vendor().KafkaException as error:
            if error.args[0].code() != vendor().KafkaError._STATE:
                raise
            self._native.assign(places)  # an eager protocol

    def _safe(self, partition: Partition) -> TopicPartition:
        return self._assignment.safe(partition, partition.position or 0)

    def _safe_after(self, message: Any) -> TopicPartition:
        """Return the offset to commit for a message and all before it."""
        after = message.next_offset if isinstance(message, KafkaMessage) else message.offset() + 1
        return self._assignment.safe_for(vendor().TopicPartition(message.topic(), message.partition(), after))

    def _commit(self, offsets: list[TopicPartition], asynchronous: bool) -> Any:
        commit: Any = self._native.commit  # its overloads distinguish True and False
        return commit(offsets=offsets, asynchronous=asynchronous)

    def _store(self, offsets: list[TopicPartition]) -> None:
        self._native.store_offsets(offsets=offsets)
        for each in offsets:
            partition = self._assignment.find(each)
            if partition is not None:
                partition.stored = each

    def _commit_stored(self, asynchronous: bool) -> Any:
        """Commit stored offsets explicitly: the client ignores an offset if only its metadata is new."""
        self._store_offsets()
        partitions = [each for each in self._assignment.partitions.values() if each.stored is not None]
        if not partitions:
            commit: Any = self._native.commit
            return commit(asynchronous=asynchronous)
        committed = self._commit([each.stored for each in partitions if each.stored is not None], asynchronous)
        for partition in partitions:
            partition.stored = None
        return committed

    def _before_next(self) -> None:
        """Store offsets if that was not done for a while; the user has processed everything that was returned."""
        self._prefetch.begin_receive()
        if self._auto_offset_store and self._clock() - self._stored_at > _STORE_SECONDS:
            self._store_offsets()

    def _stop_storing_after_error(self) -> None:
        """Called by `close`, in the frame of which an exception of the application may propagate."""
        if sys.exception() is not None:
            self._auto_offset_store = False  # also for the callback that `close` causes

    def _store_offsets(self) -> None:
        """Store the offsets of everything that was returned, for the next automatic commit."""
        self._stored_at = self._clock()
        partitions = self._assignment.partitions.values() if self._auto_offset_store else ()
        changed = [each for each in partitions if each.changed]
        if not changed:
            return
        try:
            self._store([self._safe(each) for each in changed])
        except (vendor().KafkaException, RuntimeError) as error:  # revoked: another member reads them again
            _log.info("offsets were not stored: %s", error)
        for partition in changed:
            partition.changed = partition.is_rereading  # then a higher offset can be stored without another delivery


def _check_offset_store(consumer: Consumer) -> None:
    try:
        consumer.store_offsets(offsets=[])
    except vendor().KafkaException as error:
        if error.args[0].code() != vendor().KafkaError._INVALID_ARG:
            raise
        raise OffsetStoreError(
            "set 'enable.auto.offset.store': False in the consumer's configuration, because the client would commit "
            "offsets in the middle of payloads; pass auto_offset_store=True here to do the same with whole payloads"
        ) from error
