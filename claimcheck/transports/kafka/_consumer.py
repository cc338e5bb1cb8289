"""Receives payloads of any size from a consumer of confluent-kafka, whatever strategy their writers used."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypedDict, cast

from claimcheck._validation import check_cc
from claimcheck.errors import ClaimCheckError, ConfigError
from claimcheck.transports._common.dead_letters import origin
from claimcheck.transports._common.dispatch import dispatch, passes_plain, resolver_of
from claimcheck.transports._common.received import DEFAULT_THREADS, Prefetch
from claimcheck.transports.kafka._client import NativeClient, OffsetStoreError, exception_of, unwrapped, vendor
from claimcheck.transports.kafka._message import KafkaMessage
from claimcheck.transports.kafka._partition import Assignment, place
from claimcheck.transports.kafka._receiver import Receiver

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message, Producer, TopicPartition

    from claimcheck._client import ClaimCheck

_POLL_SECONDS = 0.1

RebalanceCallback = Callable[[Any, list[Any]], object]


class ConsumerOptions(TypedDict, total=False):
    """The options of a `KafkaConsumer`, which documents them."""

    auto_offset_store: bool
    dead_letter_producer: Producer | None
    prefetch_bytes: int | None
    prefetch_threads: int
    clock: Callable[[], float]


class KafkaConsumer(NativeClient):
    """Wraps a `confluent_kafka.Consumer` and has its methods; each message that it returns is a whole payload.

    Plain messages are the client's own. A payload that was offloaded is a `KafkaMessage`, which is also a
    `confluent_kafka.Message`; its offset is the lowest of its records. Committed offsets never move past the first
    record of an incomplete payload. Payloads delivered beyond it are recorded in the commit metadata, so that they are
    not delivered twice.

    Every incomplete payload ends. Its chunks are read again, at most ``chunking.max_redeliveries`` times; then it is
    returned as a message whose value raises `IncompletePayloadError`, and commits move past it.
    ``chunking.on_expire`` and ``on_evict`` change this: ``ack`` skips the chunks, and ``dead_letter`` returns that
    message at once. The chunks of a payload that its writer aborted are skipped.

    Not thread-safe, like the client's consumer.

    Args:
        consumer: A `confluent_kafka.Consumer`, also an instrumented one, but not one that deserializes; with
            ``enable.auto.offset.store`` set to ``False``: otherwise it stores offsets beyond incomplete payloads.
        cc: A `claimcheck.ClaimCheck` with the writers' stores.
        auto_offset_store: Whether to do what ``enable.auto.offset.store`` does: a message is included in the next
            automatic commit once the following one is requested.
        dead_letter_producer: A `confluent_kafka.Producer` for `dead_letter`. It is not closed. With it, chunks are in
            memory twice, until the application drops the message.
        prefetch_bytes: Bytes of stored payloads to read ahead; 0 for none. By default up to 64 MiB, and only while the
            application reads the payloads that it receives.
        prefetch_threads: Payloads to read ahead concurrently.
        clock: Seconds, monotonic.

    Raises:
        ConfigError: An argument is out of range or of the wrong type; for an object also a `TypeError`.
        OffsetStoreError: The consumer stores offsets itself.
    """

    delegated = NativeClient.delegated | {
        "assignment", "committed", "consumer_group_metadata", "get_watermark_offsets", "memberid", "offsets_for_times",
    }  # fmt: skip

    def __init__(
        self,
        consumer: Consumer,
        cc: ClaimCheck,
        *,
        auto_offset_store: bool = False,
        dead_letter_producer: Producer | None = None,
        prefetch_bytes: int | None = None,
        prefetch_threads: int = DEFAULT_THREADS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        native = unwrapped("consumer", consumer, "Consumer")
        check_cc(cc)
        if dead_letter_producer is not None:
            unwrapped("dead_letter_producer", dead_letter_producer, "Producer")
        prefetch = Prefetch(prefetch_bytes, threads=prefetch_threads)
        _check_offset_store(native)
        self._native: Consumer = native
        self._client, self._poll = consumer, cast("Any", consumer.poll)
        self._dead_letter_producer: Any = dead_letter_producer
        self._assignment = Assignment(
            native, resolver_of(cc, clock=clock), partial(dispatch, cc), clock,
            keeps_chunks=dead_letter_producer is not None, wait_seconds=cc.config.chunking.expire_after_seconds,
        )  # fmt: skip
        header = cc.config.header if passes_plain(cc) else b""
        self._receiver = Receiver(
            self._assignment, consumer, prefetch, checked_start=header, stores_offsets=auto_offset_store
        )

    def poll(self, timeout: float = -1) -> Any:
        """Wait for the next payload. One that cannot be delivered is returned too; its value raises the error.

        Args:
            timeout: Seconds; by default there is no limit.

        Returns:
            A `confluent_kafka.Message`, or ``None`` on timeout. One with an ``error()`` is an event of the client.

        Raises:
            KafkaException: An error of the client.
        """
        receiver = self._receiver
        if not (receiver.ready or receiver.in_steps or receiver.assignment.busy or receiver.errors):
            poll = self._poll  # called as a local variable: faster
            native = poll(timeout)
            if receiver.errors:
                if native is not None:
                    receiver.take(native)
                receiver.raise_deferred()
            if native is None:
                return None
            if (offsets := receiver.plain(native)) is not None:  # written here: a call less
                offsets.read = offsets.taken = offsets.position = native.offset() + 1
                offsets.changed = True
                return native
            receiver.prefetch.begin_receive()
            receiver.take(native)
        messages = receiver.receive(1, timeout)
        return messages[0] if messages else None

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Any]:
        """Wait for up to ``num_messages`` payloads; returns those that came in time. Raises as `poll` does."""
        return self._receiver.receive(num_messages, timeout) if num_messages else []

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
        if message is None and offsets is None:
            return self._commit_stored(asynchronous)
        return self._commit(self._safe(message, offsets), asynchronous)

    def store_offsets(self, message: Message | None = None, offsets: list[TopicPartition] | None = None) -> None:
        """Store an offset for the next automatic commit, but never one past an incomplete payload."""
        self._receiver.store(self._safe(message, offsets))

    def dead_letter(self, message: Message, topic: str, *, reason: str = "rejected") -> None:
        """Send a payload's records to a dead-letter topic, and wait until they are in it. Then commit the message.

        The records are unchanged. Each gets the headers ``dead-letter-topic``, ``-partition``, ``-offset`` and
        ``-reason``, unless it is so close to the producer's ``message.max.bytes`` that they do not fit.

        Raises:
            ConfigError: There is no ``dead_letter_producer``.
            KafkaException: An error of the client. Some of the records may be in the dead-letter topic.
        """
        if self._dead_letter_producer is None:
            raise ConfigError("there is no dead_letter_producer", path="dead_letter_producer")
        producer, reports = self._dead_letter_producer, list[Any]()
        on_delivery = lambda error, _: reports.append(error)  # noqa: E731
        source, partition = str(message.topic()), message.partition() or 0
        records: tuple[Any, ...] = message.records if isinstance(message, KafkaMessage) else (message,)
        if not records:
            text = "the chunks were not kept: pass dead_letter_producer to the consumer that received them"
            raise ClaimCheckError(text)
        for each in records:
            headers = list(each.headers() or [])
            labels = [*headers, *origin(source, partition, each.offset(), reason)]
            produce = partial(producer.produce, topic, each.value(), key=each.key(), on_delivery=on_delivery)
            _produce(producer, produce, labels, headers)
        while len(reports) < len(records):
            producer.poll(_POLL_SECONDS)
        for error in filter(None, reports):
            raise exception_of(error)

    def position(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Return where to continue after the last message: the offset that may be committed, with its metadata.

        Pass the result to `KafkaProducer.send_offsets_to_transaction` unchanged.
        """
        known = [(each.topic, each.partition) for each in partitions]
        found = [(source, self._assignment.partitions.get(source)) for source in known]
        return [
            place(source) if at is None or at.offsets.position is None else at.safe(at.offsets.position)
            for source, at in found
        ]

    def seek(self, partition: TopicPartition) -> None:
        """Continue at an offset; chunks read before the seek never complete with chunks read after it.

        Payloads that begin before the offset are skipped. With the metadata of `position` or `committed`, payloads that
        it marks as delivered are not delivered again.
        """
        self._native.seek(partition)
        self._receiver.drop([partition])
        self._assignment.begin(partition, "sought")

    def subscribe(
        self,
        topics: list[str],
        on_assign: RebalanceCallback | None = None,
        on_revoke: RebalanceCallback | None = None,
        on_lost: RebalanceCallback | None = None,
    ) -> None:
        """Subscribe like the client. Callbacks receive this consumer; `poll` raises their exceptions."""
        # Deferred: the client replaces a callback's exception with a KafkaError, which is not an exception class.
        receiver, defer = self._receiver, self._receiver.defer_errors

        def call(callback: RebalanceCallback | None, partitions: list[TopicPartition]) -> None:
            if callback is not None:
                defer(lambda: callback(self, partitions))

        def assigned(_: Consumer, partitions: list[TopicPartition]) -> None:
            starts = receiver.starts(partitions)
            receiver.begin(starts)
            call(on_assign, partitions)
            defer(lambda: receiver.assign_moved(starts))

        def revoked(_: Consumer, partitions: list[TopicPartition]) -> None:
            receiver.store_offsets()
            call(on_revoke, partitions)
            receiver.forget(partitions)

        def lost(_: Consumer, partitions: list[TopicPartition]) -> None:
            call(on_revoke if on_lost is None else on_lost, partitions)
            receiver.forget(partitions)

        self._native.subscribe(topics, on_assign=assigned, on_revoke=revoked, on_lost=lost)

    def unsubscribe(self) -> None:
        """Unsubscribe. The next receive call revokes the partitions, except for those that were assigned manually."""
        self._receiver.store_offsets()
        self._native.unsubscribe()

    def assign(self, partitions: list[TopicPartition]) -> None:
        """Assign partitions manually, at their offsets or at the group's committed offsets."""
        self._receiver.store_offsets()
        starts = self._receiver.starts(partitions)
        self._native.assign([start.at for start in starts])
        self._receiver.forget()
        self._receiver.begin(starts)

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        """Assign additional partitions."""
        starts = self._receiver.starts(partitions)
        self._native.incremental_assign([start.at for start in starts])
        self._receiver.begin(starts)

    def unassign(self) -> None:
        """Remove all partitions from the assignment, and forget chunks and waiting messages."""
        self._receiver.store_offsets()
        self._native.unassign()
        self._receiver.forget()

    def incremental_unassign(self, partitions: list[TopicPartition]) -> None:
        """Remove some partitions from the assignment."""
        self._receiver.store_offsets()
        self._native.incremental_unassign(partitions)
        self._receiver.forget(partitions)

    def pause(self, partitions: list[TopicPartition]) -> None:
        """Pause partitions, including messages that were received ahead."""
        self._native.pause(partitions)
        self._receiver.paused |= {(each.topic, each.partition) for each in partitions}

    def resume(self, partitions: list[TopicPartition]) -> None:
        """Resume paused partitions."""
        self._native.resume(partitions)
        self._receiver.paused -= {(each.topic, each.partition) for each in partitions}

    def close(self) -> None:
        """Close the consumer; messages that were not committed are redelivered to other members.

        While an exception propagates, no more offsets are stored: the application may have failed on the last message.
        """
        self.stop_storing_after_error()
        self._receiver.store_offsets()
        self._client.close()
        self._receiver.forget()
        self._receiver.raise_deferred()

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

    def stop_storing_after_error(self) -> None:
        """Store no more offsets while an exception of the application propagates; for `close`."""
        if sys.exception() is not None:
            self._receiver.stores_offsets = False  # also for the callback that `close` causes

    def _safe(self, message: Any, offsets: list[TopicPartition] | None) -> list[TopicPartition]:
        """Return what to commit in place of these offsets, or for a message and all before it."""
        if message is not None:
            after = message.next_offset if isinstance(message, KafkaMessage) else message.offset() + 1
            offsets = [vendor().TopicPartition(message.topic(), message.partition(), after)]
        if offsets is None:
            raise ValueError("store_offsets needs a message or offsets")
        return [self._receiver.safe_for(given) for given in offsets]

    def _commit(self, offsets: list[TopicPartition], asynchronous: bool) -> Any:
        commit: Any = self._native.commit  # its overloads distinguish True and False
        return commit(offsets=offsets, asynchronous=asynchronous)

    def _commit_stored(self, asynchronous: bool) -> Any:
        """Commit stored offsets explicitly: the client ignores an offset if only its metadata is new."""
        self._receiver.store_offsets()
        known = [each.offsets for each in self._assignment.partitions.values()]
        stored = {offsets: offsets.stored for offsets in known if offsets.stored is not None}
        if not stored:
            commit: Any = self._native.commit
            return commit(asynchronous=asynchronous)
        committed = self._commit(list(stored.values()), asynchronous)
        for offsets in stored:
            offsets.stored = None
        return committed


def _produce(producer: Producer, produce: Callable[..., None], labels: list[Any], headers: list[Any]) -> None:
    """Produce a dead letter with its labels, or without them if it would be too large for the producer."""
    while True:
        try:
            produce(headers=labels)
            return
        except BufferError:
            producer.poll(_POLL_SECONDS)
        except vendor().KafkaException as error:
            if labels is headers or error.args[0].code() != vendor().KafkaError.MSG_SIZE_TOO_LARGE:
                raise
            labels = headers


def _check_offset_store(consumer: Consumer) -> None:
    try:
        consumer.store_offsets(offsets=[])
    except vendor().KafkaException as error:
        if error.args[0].name() != "_INVALID_ARG":
            raise
        raise OffsetStoreError(
            "set 'enable.auto.offset.store': False in the consumer's configuration, because the client would commit "
            "offsets in the middle of payloads; pass auto_offset_store=True here to do the same with whole payloads"
        ) from error
