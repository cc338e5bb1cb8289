"""Receives payloads of any size from a consumer of confluent-kafka, whatever their writers made of them."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Self

from claimcheck.envelope import Chunk
from claimcheck.transports.kafka.assigned import Assigned
from claimcheck.transports.kafka.errors import OffsetStoreError, vendor
from claimcheck.transports.kafka.inbox import Arrival, Inbox
from claimcheck.transports.kafka.message import KafkaMessage
from claimcheck.transports.kafka.native import NativeConsumer
from claimcheck.transports.kafka.partition import Partition
from claimcheck.transports.kafka.rebalances import Rebalances
from claimcheck.transports.needs import Resolves
from claimcheck.transports.prefetch import Prefetch

__all__ = ["KafkaConsumer"]

_log = logging.getLogger(__name__)

_STEP_SECONDS = 0.2
_STORE_SECONDS = 0.2
_FOR_EVER = float("inf")


class KafkaConsumer(NativeConsumer):
    """Has the methods of a `confluent_kafka.Consumer`; a message that it gives is a whole payload.

    Plain messages are the client's own; of what was offloaded a `KafkaMessage` comes, which is one, too. Its offset is
    the lowest of its records. An offset that is committed never passes a payload of which only some chunks came: what
    was delivered behind it is said beside it, in the commit's metadata, so that it does not come twice.

    Chunks that never become a payload are read again, unless the configuration says otherwise
    (``chunking.on_expire``, ``on_evict``): ``ack`` passes them over, ``dead_letter`` hands them out at once as a
    message whose value raises what is wrong. So does ``redeliver`` after ``max_redeliveries``.

    Not safe under threads, as the client's is not.

    Args:
        consumer: A `confluent_kafka.Consumer`, not one that deserializes, with ``enable.auto.offset.store`` set to
            ``False``: the client's own storing would pass incomplete payloads.
        cc: A `claimcheck.ClaimCheck` that knows the writers' stores.
        auto_offset_store: Whether to do what ``enable.auto.offset.store`` does: have the offset of each message
            committed with the next automatic commit, once the next message is asked for.
        max_redeliveries: How often chunks that never became a payload are read again, from 0.
        prefetch_bytes: Stored payloads of the next messages that are read meanwhile, in order; 0 for none.
        prefetch_threads: How many at once.
        clock: Seconds, monotonic.

    Raises:
        OffsetStoreError: The consumer stores offsets itself.
        TypeError: It is no such consumer.
    """

    def __init__(
        self,
        consumer: Any,
        cc: Resolves,
        *,
        auto_offset_store: bool = False,
        max_redeliveries: int = 1,
        prefetch_bytes: int = 0,
        prefetch_threads: int = 4,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if type(consumer) is not vendor().Consumer:
            raise TypeError(
                f"a confluent_kafka.Consumer is wanted, not {type(consumer).__name__}; deserialize what value() gives"
            )
        _check_offset_store(consumer)
        super().__init__(consumer)
        self._inbox = Inbox(cc, max_redeliveries=max_redeliveries, headless=self._headless, clock=clock)
        self._header = self._inbox.header
        wait = cc.config.chunking.expire_after_seconds
        self._assigned = Assigned(consumer, self._inbox, wait_seconds=wait, clock=clock)
        self._auto_offset_store = auto_offset_store
        self._stored_at = 0.0
        self._clock = clock
        self._ready: deque[Arrival] = deque()
        self._rebalances = Rebalances()
        self._paused: set[tuple[str, int]] = set()
        self._looks_ahead = prefetch_bytes > 0
        self._prefetch = Prefetch(prefetch_bytes, threads=prefetch_threads)

    # Receiving -------------------------------------------------------------------------------------------------

    def poll(self, timeout: float = -1) -> Any:
        """Wait for the next payload; a bad one is handed out, too, and says so when its value is asked for.

        Args:
            timeout: Seconds; by default for ever.

        Returns:
            A `confluent_kafka.Message`; one with an ``error()`` is an event of the client's; ``None`` when time is up.

        Raises:
            KafkaException: The client's own.
        """
        self._store_offsets_at_times()
        if not self._ready and not self._looks_ahead and not self._inbox.chunked:
            native = self._native_poll(timeout)
            if native is None or self._is_plain(native):
                return native
            self._take(native)
        return self._wait(timeout)

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Any]:
        """Wait for several payloads: as many as asked for, or what came in time. Raises as `poll` does."""
        self._store_offsets_at_times()
        end, found = self._end(timeout), list[Any]()
        while True:
            self._do_chores()
            while len(found) < num_messages and (message := self._hand_out()) is not None:
                found.append(message)
            left = self._left(end)
            if len(found) >= num_messages or (left == 0 and found):
                return found
            natives = self._native.consume(num_messages - len(found), self._step(left))
            self._take_all(natives, found)
            self._rebalances.raise_kept()
            if not natives and left == 0:
                return found

    # Offsets ---------------------------------------------------------------------------------------------------

    def commit(self, message: Any = None, offsets: Any = None, asynchronous: bool = True) -> Any:
        """Commit as the client does, but never past an incomplete payload.

        Args:
            message: Commits everything up to it.
            offsets: Named by the user; metadata of his own takes the place of ours, and payloads may come twice then.
            asynchronous: Whether not to wait.

        Raises:
            KafkaException: The client's own.
        """
        if message is not None:
            offsets = [self._safe_behind(message)]
        elif offsets is not None:
            offsets = [self._assigned.safe_for(given) for given in offsets]
        else:
            self._store_offsets()
            return self._native.commit(asynchronous=asynchronous)
        return self._native.commit(offsets=offsets, asynchronous=asynchronous)

    def store_offsets(self, message: Any = None, offsets: Any = None) -> None:
        """Have an offset committed with the next automatic commit; as the client does, and as `commit` is careful."""
        if message is not None:
            offsets = [self._safe_behind(message)]
        self._native.store_offsets(offsets=[self._assigned.safe_for(given) for given in offsets or ()])

    def position(self, partitions: list[Any]) -> list[Any]:
        """Where to go on behind the last message: the offset that may be committed, and its metadata.

        Give it to `KafkaProducer.send_offsets_to_transaction` as it is.
        """
        found = []
        for asked in partitions:
            partition = self._assigned.find(asked.topic, asked.partition)
            if partition is None or partition.position is None:
                found.append(vendor().TopicPartition(asked.topic, asked.partition))
            else:
                found.append(self._safe(partition))
        return found

    def committed(self, partitions: list[Any], timeout: float = -1) -> Any:
        """As the client has it; the metadata may be ours."""
        return self._native.committed(partitions, timeout=timeout)

    def seek(self, partition: Any) -> None:
        """Go to an offset; chunks from before never complete with chunks from after.

        A payload that begins before it is passed over. With the metadata of `position` or `committed`, what they say
        was delivered does not come again.
        """
        self._native.seek(partition)
        self._drop([partition])
        self._assigned.seek(partition)

    # Assignment ------------------------------------------------------------------------------------------------

    def subscribe(
        self,
        topics: list[str],
        on_assign: Callable[[Any, list[Any]], None] | None = None,
        on_revoke: Callable[[Any, list[Any]], None] | None = None,
        on_lost: Callable[[Any, list[Any]], None] | None = None,
    ) -> None:
        """Subscribe as the client does; callbacks get this consumer, and what they raise comes out of `poll`."""
        call = self._rebalances.call

        def assigned(_: Any, partitions: list[Any]) -> None:
            self._assigned.begin(partitions)
            call(on_assign, self, partitions)

        def revoked(_: Any, partitions: list[Any]) -> None:
            self._store_offsets()
            call(on_revoke, self, partitions)
            self._end_of(partitions)

        def lost(_: Any, partitions: list[Any]) -> None:
            call(on_revoke if on_lost is None else on_lost, self, partitions)
            self._end_of(partitions)

        self._native.subscribe(topics, on_assign=assigned, on_revoke=revoked, on_lost=lost)

    def unsubscribe(self) -> None:
        """As the client has it."""
        self._native.unsubscribe()
        self._forget()

    def assign(self, partitions: list[Any]) -> None:
        """Take partitions by hand, from their offsets or from where the group has committed."""
        self._native.assign(partitions)
        self._forget()
        self._assigned.begin(partitions)

    def incremental_assign(self, partitions: list[Any]) -> None:
        """Take more partitions."""
        self._native.incremental_assign(partitions)
        self._assigned.begin(partitions)

    def unassign(self) -> None:
        """Give all partitions back; what is held is forgotten."""
        self._native.unassign()
        self._forget()

    def incremental_unassign(self, partitions: list[Any]) -> None:
        """Give some partitions back."""
        self._native.incremental_unassign(partitions)
        self._end_of(partitions)

    def pause(self, partitions: list[Any]) -> None:
        """Receive nothing from these partitions for a while, nor what was received ahead."""
        self._native.pause(partitions)
        self._paused |= {(each.topic, each.partition) for each in partitions}

    def resume(self, partitions: list[Any]) -> None:
        """Go on with them."""
        self._native.resume(partitions)
        self._paused -= {(each.topic, each.partition) for each in partitions}

    def close(self) -> None:
        """Close; what was not committed comes again, to others."""
        self._store_offsets()
        self._native.close()
        self._forget()
        self._rebalances.raise_kept()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pending_payloads(self) -> int:
        """Payloads of which some chunks are held."""
        return self._inbox.resolver.pending_payloads

    @property
    def pending_bytes(self) -> int:
        """Bytes of the chunks that are held."""
        return self._inbox.resolver.pending_bytes

    def __repr__(self) -> str:
        return f"<KafkaConsumer of {len(self._assigned.all())} partitions, {self.pending_payloads} incomplete payloads>"

    # Within ----------------------------------------------------------------------------------------------------

    def _is_plain(self, native: Any) -> bool:
        """Whether a message stands for itself, as most do, and is handed out by this."""
        value = native.value()
        if native.error() is not None or (value is not None and value.startswith(self._header)):
            return False
        partition, offset = self._assigned.of(native), native.offset()
        if offset < partition.skip_below:
            return False
        partition.read = partition.taken = partition.position = offset + 1
        partition.changed = True
        return True

    def _take_all(self, natives: Iterable[Any], found: list[Any]) -> None:
        """Take several messages; plain ones are found at once, as long as no other waits to be handed out."""
        stale: set[Partition] = set()
        for native in natives:
            if not self._ready and not stale and self._is_plain(native):
                found.append(native)
            elif (partition := self._take(native, stale)) is not None and partition.went_back:
                stale.add(partition)  # the rest of it comes again

    def _take(self, native: Any, stale: Iterable[Partition] = ()) -> Partition | None:
        if native.error() is not None:
            self._add(Arrival(None, native))
            return None
        partition, offset, value = self._assigned.of(native), native.offset(), native.value()
        if partition in stale:
            return None
        partition.read, partition.went_back = offset + 1, False
        if value is None or not value.startswith(self._header):
            if offset >= partition.skip_below:
                self._add(Arrival(partition, native, offset, offset))
            return partition
        for arrival in self._inbox.take(partition, native):
            self._add(arrival)
        return partition

    def _add(self, arrival: Arrival) -> None:
        if arrival.partition is not None:
            arrival.partition.taken = max(arrival.partition.taken, arrival.last + 1)
        self._ready.append(arrival)
        if self._looks_ahead:
            self._prefetch.add(arrival)

    def _hand_out(self) -> Any:
        """The next message that waits, if its partition is not paused."""
        for arrival in self._ready:
            if arrival.partition is None or arrival.partition.source not in self._paused:
                break
        else:
            return None
        self._ready.remove(arrival)
        if self._looks_ahead:
            self._prefetch.remove(arrival)
        if arrival.partition is not None:
            arrival.partition.handed_out(arrival.first, arrival.last, arrival.outcome.uuid if arrival.outcome else None)
            if isinstance(arrival.message, KafkaMessage):
                arrival.message.behind = arrival.partition.position or 0
        if arrival.outcome is not None:
            self._inbox.resolver.settle(arrival.outcome, acked=True)
        return arrival.message

    def _wait(self, timeout: float) -> Any:
        end = self._end(timeout)
        while True:
            self._do_chores()
            message = self._hand_out()
            if message is not None:
                self._look_ahead()
                return message
            left = self._left(end)
            native = self._native_poll(self._step(left))
            if native is not None:
                self._take(native)
            elif left == 0:
                return None

    def _look_ahead(self) -> None:
        while self._looks_ahead and self._prefetch.room and (native := self._native_poll(0)) is not None:
            self._take(native)

    def _do_chores(self) -> None:
        if self._inbox.chunked:
            for arrival in self._inbox.tick():
                self._add(arrival)
            self._assigned.reread()

    def _headless(self, partition: Partition, chunk: Chunk) -> list[Arrival]:
        """What to do at a chunk of a payload of which the first was not seen."""
        if self._assigned.look_back(partition, chunk.position) or chunk.position < chunk.count - 1:
            return []
        return self._inbox.end_headless(partition, chunk.uuid, lost=self._assigned.lost_head(partition))

    def _drop(self, partitions: list[Any]) -> None:
        """Forget what waits of these partitions."""
        gone = {(each.topic, each.partition) for each in partitions}
        for arrival in [each for each in self._ready if each.partition and each.partition.source in gone]:
            self._ready.remove(arrival)
            if self._looks_ahead:
                self._prefetch.remove(arrival)

    def _end_of(self, partitions: list[Any]) -> None:
        """They belong to somebody else now."""
        self._drop(partitions)
        self._assigned.end(partitions)

    def _native_poll(self, timeout: float) -> Any:
        native = self._native.poll(timeout)
        if self._rebalances.kept is not None:
            if native is not None:
                self._take(native)
            self._rebalances.raise_kept()
        return native

    def _forget(self) -> None:
        self._ready.clear()
        self._prefetch.forget()
        self._assigned.end_all()

    def _safe(self, partition: Partition) -> Any:
        return self._assigned.safe(partition, partition.position or 0)

    def _safe_behind(self, message: Any) -> Any:
        """What to commit for a message and all before it."""
        behind = message.behind if isinstance(message, KafkaMessage) else message.offset() + 1
        return self._assigned.safe_for(vendor().TopicPartition(message.topic(), message.partition(), behind))

    def _store_offsets_at_times(self) -> None:
        if self._auto_offset_store and self._clock() - self._stored_at > _STORE_SECONDS:
            self._store_offsets()

    def _store_offsets(self) -> None:
        """Tell the client how far everything that was handed out may be committed."""
        self._stored_at = self._clock()
        changed = [each for each in self._assigned.all() if each.changed] if self._auto_offset_store else []
        if not changed:
            return
        try:
            self._native.store_offsets(offsets=[self._safe(each) for each in changed])
        except (vendor().KafkaException, RuntimeError) as error:  # not ours any more: it comes again, to others
            _log.info("offsets were not stored: %s", error)
        for partition in changed:
            partition.changed = False

    def _step(self, left: float) -> float:
        """How long to wait for the client at once: chunks may expire meanwhile."""
        return min(left, _STEP_SECONDS) if self._inbox.chunked else (-1 if left == _FOR_EVER else left)

    def _end(self, timeout: float | None) -> float:
        return _FOR_EVER if timeout is None or timeout < 0 else self._clock() + timeout

    def _left(self, end: float) -> float:
        return max(0.0, end - self._clock())


def _check_offset_store(consumer: Any) -> None:
    try:
        consumer.store_offsets(offsets=[])
    except vendor().KafkaException as error:
        if error.args[0].code() != vendor().KafkaError._INVALID_ARG:
            raise
        raise OffsetStoreError(
            "set 'enable.auto.offset.store': False in the consumer's configuration, since it would commit offsets in "
            "the middle of payloads, and auto_offset_store=True here for the same with whole ones"
        ) from error
