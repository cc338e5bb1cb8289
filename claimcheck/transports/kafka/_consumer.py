"""Receives payloads of any size from a consumer of confluent-kafka, whatever their writers made of them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from claimcheck._validation import check_cc, check_int, check_type
from claimcheck.transports.kafka._assignment import Start
from claimcheck.transports.kafka._client import NativeClient, vendor
from claimcheck.transports.kafka._errors import OffsetStoreError
from claimcheck.transports.kafka._message import KafkaMessage
from claimcheck.transports.kafka._partition import Partition
from claimcheck.transports.kafka._receiver import Receiver

if TYPE_CHECKING:
    from claimcheck._client import ClaimCheck

__all__ = ["KafkaConsumer"]

_log = logging.getLogger(__name__)

_STORE_SECONDS = 0.2


class KafkaConsumer(NativeClient):
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
            committed with the next automatic commit, once the next message is requested.
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
        super().__init__(consumer)
        self._receiver = Receiver(
            consumer,
            cc,
            max_redeliveries=max_redeliveries,
            prefetch_bytes=prefetch_bytes,
            prefetch_threads=prefetch_threads,
            before_next=self._store_offsets_in_time if auto_offset_store else _nothing,
            is_timed=auto_offset_store,
            clock=clock,
        )
        self._assigned = self._receiver.assigned
        self._rebalances = self._receiver.rebalances
        self._clock = clock
        self._auto_offset_store = auto_offset_store
        self._stored_at = 0.0

    # Receiving -------------------------------------------------------------------------------------------------

    def poll(self, timeout: float = -1) -> Any:
        """Wait for the next payload; a bad one is returned, too, and its value raises the error.

        Args:
            timeout: Seconds; by default there is no limit.

        Returns:
            A `confluent_kafka.Message`, or ``None`` on time-out. One with an ``error()`` is an event of the client.

        Raises:
            KafkaException: The client's own.
        """
        return self._receiver.poll(timeout)

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Any]:
        """Wait for up to ``num_messages`` payloads; returns those that came in time. Raises as `poll` does."""
        if num_messages < 0:
            return list(self._native.consume(num_messages, timeout))  # raises the client's own error
        return self._receiver.consume(num_messages, timeout)

    # Offsets ---------------------------------------------------------------------------------------------------

    def commit(self, message: Any = None, offsets: Any = None, asynchronous: bool = True) -> Any:
        """Commit as the client does, but never past an incomplete payload.

        Args:
            message: Commits everything up to it.
            offsets: Named by the user, whose own metadata replaces ours; payloads may be delivered twice then.
            asynchronous: Whether to return at once.

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
        """Store an offset for the next automatic commit, but never one past an incomplete payload."""
        if message is None and offsets is None:
            raise ValueError("store_offsets needs a message or offsets")
        if message is not None:
            offsets = [self._safe_behind(message)]
        self._store([self._assigned.safe_for(given) for given in offsets])

    def position(self, partitions: list[Any]) -> list[Any]:
        """Return where to continue after the last message: the offset that may be committed, and its metadata.

        Pass it to `KafkaProducer.send_offsets_to_transaction` unchanged.
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
        """Return the committed offsets, as the client does; the metadata may be ours."""
        return self._native.committed(partitions, timeout=timeout)

    def seek(self, partition: Any) -> None:
        """Continue at an offset; chunks read before the seek never complete with chunks read after it.

        A payload that begins before the offset is skipped. With the metadata of `position` or `committed`, payloads
        that it marks as delivered are not delivered again.
        """
        self._native.seek(partition)
        self._receiver.drop([partition])
        self._assigned.seek(partition)

    # Assignment ------------------------------------------------------------------------------------------------

    def subscribe(
        self,
        topics: list[str],
        on_assign: Callable[[Any, list[Any]], None] | None = None,
        on_revoke: Callable[[Any, list[Any]], None] | None = None,
        on_lost: Callable[[Any, list[Any]], None] | None = None,
    ) -> None:
        """Subscribe as the client does; callbacks receive this consumer, and `poll` raises what they raise."""
        call = self._rebalances.call

        def assigned(_: Any, partitions: list[Any]) -> None:
            starts = self._assigned.starts(partitions)
            self._assigned.begin_at(starts)
            call(on_assign, self, partitions)
            self._assign_moved(starts)

        def revoked(_: Any, partitions: list[Any]) -> None:
            self._store_offsets()
            call(on_revoke, self, partitions)
            self._receiver.revoke(partitions)

        def lost(_: Any, partitions: list[Any]) -> None:
            call(on_revoke if on_lost is None else on_lost, self, partitions)
            self._receiver.revoke(partitions)

        self._native.subscribe(topics, on_assign=assigned, on_revoke=revoked, on_lost=lost)

    def unsubscribe(self) -> None:
        """Unsubscribe; what is held is forgotten."""
        self._native.unsubscribe()
        self._receiver.forget()

    def assign(self, partitions: list[Any]) -> None:
        """Assign partitions by hand, from their offsets or from the group's committed offsets."""
        starts = self._assigned.starts(partitions)
        self._native.assign([start.at for start in starts])
        self._receiver.forget()
        self._assigned.begin_at(starts)

    def incremental_assign(self, partitions: list[Any]) -> None:
        """Assign more partitions."""
        starts = self._assigned.starts(partitions)
        self._native.incremental_assign([start.at for start in starts])
        self._assigned.begin_at(starts)

    def unassign(self) -> None:
        """Remove all assigned partitions; what is held is forgotten."""
        self._native.unassign()
        self._receiver.forget()

    def incremental_unassign(self, partitions: list[Any]) -> None:
        """Remove some partitions from the assignment."""
        self._native.incremental_unassign(partitions)
        self._receiver.revoke(partitions)

    def pause(self, partitions: list[Any]) -> None:
        """Pause partitions; messages that were received ahead wait, too."""
        self._native.pause(partitions)
        self._receiver.paused |= {(each.topic, each.partition) for each in partitions}

    def resume(self, partitions: list[Any]) -> None:
        """Resume paused partitions."""
        self._native.resume(partitions)
        self._receiver.paused -= {(each.topic, each.partition) for each in partitions}

    def close(self) -> None:
        """Close; messages that were not committed are redelivered to other members."""
        self._store_offsets()
        self._native.close()
        self._receiver.forget()
        self._rebalances.raise_kept()

    # The rest of the client's consumer -------------------------------------------------------------------------

    def assignment(self) -> Any:
        """Return the partitions that are assigned to this consumer."""
        return self._native.assignment()

    def consumer_group_metadata(self) -> Any:
        """Return the argument for `KafkaProducer.send_offsets_to_transaction`."""
        return self._native.consumer_group_metadata()

    def memberid(self) -> Any:
        """Return this consumer's member id in its group."""
        return self._native.memberid()

    def get_watermark_offsets(self, partition: Any, timeout: float = -1, cached: bool = False) -> Any:
        """Return the lowest offset of a partition, and the one behind its highest."""
        return self._native.get_watermark_offsets(partition, timeout=timeout, cached=cached)

    def offsets_for_times(self, partitions: list[Any], timeout: float = -1) -> Any:
        """Return the first offsets at or after given times; a payload may begin before one."""
        return self._native.offsets_for_times(partitions, timeout=timeout)

    @property
    def pending_payloads(self) -> int:
        """Payloads of which some chunks are held."""
        return self._receiver.records.resolver.pending_payloads

    @property
    def pending_bytes(self) -> int:
        """Bytes of the chunks that are held."""
        return self._receiver.records.resolver.pending_bytes

    def __repr__(self) -> str:
        return f"<KafkaConsumer of {len(self._assigned.known)} partitions, {self.pending_payloads} incomplete payloads>"

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
        """Return the offset to commit for a message and all before it."""
        behind = message.behind if isinstance(message, KafkaMessage) else message.offset() + 1
        return self._assigned.safe_for(vendor().TopicPartition(message.topic(), message.partition(), behind))

    def _store(self, offsets: list[Any]) -> None:
        self._native.store_offsets(offsets=offsets)
        for each in offsets:
            partition = self._assigned.find(each.topic, each.partition)
            if partition is not None:
                partition.stored = each

    def _commit_stored(self, asynchronous: bool) -> Any:
        """Commit stored offsets explicitly: the client skips an offset of which only the metadata is new."""
        self._store_offsets()
        partitions = [each for each in self._assigned.known.values() if each.stored is not None]
        if not partitions:
            return self._native.commit(asynchronous=asynchronous)
        committed = self._native.commit(offsets=[each.stored for each in partitions], asynchronous=asynchronous)
        for partition in partitions:
            partition.stored = None
        return committed

    def _store_offsets_in_time(self) -> None:
        """Store offsets if that was not done for a while; the user has processed everything that was handed out."""
        if self._clock() - self._stored_at > _STORE_SECONDS:
            self._store_offsets()

    def _store_offsets(self) -> None:
        """Store the offset of everything that was handed out, for the next automatic commit."""
        self._stored_at = self._clock()
        changed = [each for each in self._assigned.known.values() if each.changed] if self._auto_offset_store else []
        if not changed:
            return
        try:
            self._store([self._safe(each) for each in changed])
        except (vendor().KafkaException, RuntimeError) as error:  # revoked: another member gets it again
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


def _nothing() -> None:
    """Offsets are stored by the user."""
