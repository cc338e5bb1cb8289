"""Receives payloads of any size from a consumer of confluent-kafka, whatever their writers made of them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from claimcheck._validation import check_cc, check_int, check_type
from claimcheck.transports.kafka._assignment import Start
from claimcheck.transports.kafka._errors import OffsetStoreError, vendor
from claimcheck.transports.kafka._message import KafkaMessage
from claimcheck.transports.kafka._partition import Partition
from claimcheck.transports.kafka._receiver import Receiving

if TYPE_CHECKING:
    from claimcheck._client import ClaimCheck

__all__ = ["KafkaConsumer"]

_log = logging.getLogger(__name__)

_STORE_SECONDS = 0.2


class KafkaConsumer(Receiving):
    """Has the methods of a `confluent_kafka.Consumer`; each message that it returns is a whole payload.

    Plain messages are the client's own; a payload that was offloaded is a `KafkaMessage`, which is one, too. Its offset
    is the lowest of its records. Committed offsets never move past the first record of an incomplete payload; payloads
    that were delivered behind it are recorded in the commit metadata, so that they are not delivered twice.

    Every incomplete payload ends. Its chunks are read again, at most ``max_redeliveries`` times; if it is still
    incomplete it is returned as a message whose value raises `IncompletePayloadError`, and commits move past it. If
    retention has removed its first records, that happens at once. ``chunking.on_expire``, ``on_evict`` and ``on_abort``
    say otherwise: ``ack`` skips the chunks, ``dead_letter`` returns that message without reading them again.

    Not thread-safe, as the client's consumer is not.

    Args:
        consumer: A `confluent_kafka.Consumer`, not one that deserializes, with ``enable.auto.offset.store`` set to
            ``False``: the client's own storing would pass incomplete payloads.
        cc: A `claimcheck.ClaimCheck` that knows the writers' stores.
        auto_offset_store: Whether to do what ``enable.auto.offset.store`` does: have the offset of each message
            committed with the next automatic commit, once the next message is asked for.
        max_redeliveries: How often the chunks of an incomplete payload are read again, from 0; by default
            ``chunking.max_redeliveries``.
        prefetch_bytes: Bytes of look-ahead: stored payloads of the next messages are read while the current one is
            handled; 0 for none.
        prefetch_threads: Payloads that are read ahead at once.
        clock: Seconds, monotonic.

    Raises:
        ConfigError: A number is out of range.
        OffsetStoreError: The consumer stores offsets itself.
        ArgumentTypeError: An object of the wrong type; a `ConfigError` that is also a `TypeError`.
    """

    def __init__(
        self,
        consumer: Any,
        cc: ClaimCheck,
        *,
        auto_offset_store: bool = False,
        max_redeliveries: int | None = None,
        prefetch_bytes: int = 0,
        prefetch_threads: int = 4,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        expected = "a confluent_kafka.Consumer, not a subclass; deserialize what value() returns"
        check_type("consumer", consumer, valid=type(consumer) is vendor().Consumer, expected=expected)
        check_cc(cc)
        if max_redeliveries is not None:
            check_int("max_redeliveries", max_redeliveries, minimum=0)
        check_int("prefetch_bytes", prefetch_bytes, minimum=0)
        check_int("prefetch_threads", prefetch_threads, minimum=1)
        _check_offset_store(consumer)
        super().__init__(
            consumer,
            cc,
            max_redeliveries=max_redeliveries,
            prefetch_bytes=prefetch_bytes,
            prefetch_threads=prefetch_threads,
            steps=auto_offset_store or prefetch_bytes > 0,
            clock=clock,
        )
        self._auto_offset_store = auto_offset_store
        self._stored_at = 0.0

    # Receiving -------------------------------------------------------------------------------------------------

    def poll(self, timeout: float = -1) -> Any:
        """Wait for the next payload; one that cannot be had is returned, too, and its value raises the error.

        Args:
            timeout: Seconds; by default for ever.

        Returns:
            A `confluent_kafka.Message`; one with an ``error()`` is an event of the client's; ``None`` when time is up.

        Raises:
            KafkaException: The client's own.
        """
        if not (self._ready or self._steps or self._inbox.busy):
            native = self._native_poll(timeout)
            if native is None or self._is_plain(native):
                return native
            self._take(native)
        return self._wait(timeout)

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Any]:
        """Wait for several payloads: as many as asked for, or what came in time. Raises as `poll` does."""
        if num_messages < 0:
            return list(self._native.consume(num_messages, timeout))  # says what is wrong with that
        end, found = self._end(timeout), list[Any]()
        while True:
            if not found:  # else they would be committed before their user has them
                self._between()
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
            return self._commit_stored(asynchronous)
        return self._native.commit(offsets=offsets, asynchronous=asynchronous)

    def store_offsets(self, message: Any = None, offsets: Any = None) -> None:
        """Have an offset committed with the next automatic commit; as the client does, and as `commit` is careful."""
        if message is None and offsets is None:
            raise ValueError("store_offsets wants a message or offsets")
        if message is not None:
            offsets = [self._safe_behind(message)]
        self._store([self._assigned.safe_for(given) for given in offsets])

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
            starts = self._assigned.begin(partitions)
            call(on_assign, self, partitions)
            self._assign_moved(starts)

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
        starts = self._assigned.starts(partitions)
        self._native.assign([start.at for start in starts])
        self._forget()
        self._assigned.begin_at(starts)

    def incremental_assign(self, partitions: list[Any]) -> None:
        """Take more partitions."""
        starts = self._assigned.starts(partitions)
        self._native.incremental_assign([start.at for start in starts])
        self._assigned.begin_at(starts)

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

    def __repr__(self) -> str:
        return f"<KafkaConsumer of {len(self._assigned.all())} partitions, {self.pending_payloads} incomplete payloads>"

    # Within ----------------------------------------------------------------------------------------------------

    def _assign_moved(self, starts: list[Start]) -> None:
        """Within a rebalance: assign partitions, which the client does by itself unless one begins elsewhere."""
        if not any(start.is_moved for start in starts):
            return
        places = [start.at for start in starts]
        held = {(each.topic, each.partition) for each in self._native.assignment()}
        if not any((place.topic, place.partition) in held for place in places):  # else the user has done it
            self._rebalances.assign(self._native, places)

    def _safe(self, partition: Partition) -> Any:
        return self._assigned.safe(partition, partition.position or 0)

    def _safe_behind(self, message: Any) -> Any:
        """What to commit for a message and all before it."""
        behind = message.behind if isinstance(message, KafkaMessage) else message.offset() + 1
        return self._assigned.safe_for(vendor().TopicPartition(message.topic(), message.partition(), behind))

    def _store(self, offsets: list[Any]) -> None:
        self._native.store_offsets(offsets=offsets)
        for each in offsets:
            partition = self._assigned.find(each.topic, each.partition)
            if partition is not None:
                partition.stored = each

    def _commit_stored(self, asynchronous: bool) -> Any:
        """Commit what is stored, by its offsets: the client leaves out one of which only the metadata is new."""
        self._store_offsets()
        partitions = [each for each in self._assigned.all() if each.stored is not None]
        if not partitions:
            return self._native.commit(asynchronous=asynchronous)
        committed = self._native.commit(offsets=[each.stored for each in partitions], asynchronous=asynchronous)
        for partition in partitions:
            partition.stored = None
        return committed

    def _between(self) -> None:
        """The user is done with everything that was handed out."""
        if self._auto_offset_store and self._clock() - self._stored_at > _STORE_SECONDS:
            self._store_offsets()

    def _store_offsets(self) -> None:
        """Tell the client how far everything that was handed out may be committed."""
        self._stored_at = self._clock()
        changed = [each for each in self._assigned.all() if each.changed] if self._auto_offset_store else []
        if not changed:
            return
        try:
            self._store([self._safe(each) for each in changed])
        except (vendor().KafkaException, RuntimeError) as error:  # not ours any more: it comes again, to others
            _log.info("offsets were not stored: %s", error)
        for partition in changed:
            partition.changed = False


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
