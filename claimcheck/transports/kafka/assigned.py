"""The partitions that a consumer has: where each begins, what may be committed of it, and what is read again."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from claimcheck.transports.kafka.errors import vendor
from claimcheck.transports.kafka.inbox import Inbox
from claimcheck.transports.kafka.marks import Mark
from claimcheck.transports.kafka.partition import Begins, Partition

__all__ = ["Assigned"]

_log = logging.getLogger(__name__)

_ASK_SECONDS = 10.0
_LOOK_BACK = 16  # records, for each chunk that is missing: so many payloads may have been sent at once


class Assigned:
    """Keeps a `Partition` for each that records come from.

    Args:
        native: A `confluent_kafka.Consumer`.
        inbox: Holds their chunks.
        wait_seconds: How long a payload that was let go of waits at most to be read again.
        clock: Seconds, monotonic.

    Attributes:
        known: By topic and number.
    """

    def __init__(
        self, native: Any, inbox: Inbox, *, wait_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._native = native
        self._inbox = inbox
        self._wait_seconds = wait_seconds
        self._clock = clock
        self.known: dict[tuple[str, int], Partition] = {}

    def all(self) -> list[Partition]:
        """All that anything is known of."""
        return list(self.known.values())

    def find(self, topic: str, number: int) -> Partition | None:
        """The partition, if anything is known of it."""
        return self.known.get((topic, number))

    def of(self, native: Any) -> Partition:
        """The partition of a record; of one that was never assigned by this consumer, as of now."""
        source = native.topic(), native.partition()
        partition = self.known.get(source)
        if partition is None:
            partition = self.known[source] = Partition(source)
        if partition.start is None:
            partition.start = native.offset()
        return partition

    # Assignment ------------------------------------------------------------------------------------------------

    def begin(self, assigned: list[Any]) -> None:
        """Take over partitions: where no offset is given, from where the group has committed."""
        unknown = (vendor().OFFSET_INVALID, vendor().OFFSET_STORED)
        asked = [vendor().TopicPartition(each.topic, each.partition) for each in assigned if each.offset in unknown]
        for each in assigned:
            if each.offset not in unknown:
                self._start(each, "sought" if each.offset >= 0 else "reset")
        for each in self._committed(asked) if asked else []:
            self._start(each, "committed" if each.offset >= 0 else "reset")

    def seek(self, target: Any) -> None:
        """Forget what is held of a partition, which is read from somewhere else now."""
        self._start(target, "sought")

    def end(self, revoked: list[Any]) -> None:
        """Forget partitions."""
        for each in revoked:
            self._inbox.forget((each.topic, each.partition))
            self.known.pop((each.topic, each.partition), None)

    def end_all(self) -> None:
        """Forget all partitions."""
        self._inbox.forget()
        self.known.clear()

    # Offsets ---------------------------------------------------------------------------------------------------

    def safe(self, partition: Partition, upto: int) -> Any:
        """How far the group may be told that everything below ``upto`` is done, with the mark of what lies behind."""
        unsettled = self._inbox.resolver.safe_position(partition.source)
        offset = partition.lowest(upto, unsettled)
        partition.forget_below(upto)
        topic, number = partition.source
        if offset == upto:
            return vendor().TopicPartition(topic, number, offset)
        return vendor().TopicPartition(topic, number, offset, partition.mark(upto).encode())

    def safe_for(self, given: Any) -> Any:
        """The same for an offset that the user names; a mark of his own takes the place of ours."""
        partition = self.find(given.topic, given.partition)
        if partition is None or given.offset < 0 or Mark.decode(given.metadata) is not None:
            return given
        safe = self.safe(partition, given.offset)
        if not given.metadata:
            return safe
        return vendor().TopicPartition(given.topic, given.partition, safe.offset, given.metadata)

    # Reading again ---------------------------------------------------------------------------------------------

    def reread(self) -> None:
        """Go back for a payload that was let go of: when nothing else is being put together, or after a while.

        One at a time, since they could not be held together before.
        """
        for partition in self.known.values():
            if not partition.owed or partition.focus in partition.owed:
                continue
            uuid, oldest = min(partition.owed.items(), key=lambda item: item[1].first)
            idle = not self._inbox.resolver.pending_payloads
            if (idle and not partition.rereads) or self._clock() - oldest.since > self._wait_seconds:
                partition.focus = uuid
                if partition.read is None or partition.read > oldest.first:  # else it will be met
                    self._go_back(partition, oldest.first)

    def look_back(self, partition: Partition, chunk_position: int) -> None:
        """Go back before the group's offset, once, for the first chunks of a payload.

        Somebody may have committed an offset in its middle, who knew nothing of chunks.
        """
        if partition.looked_back or partition.begins != "committed" or partition.start is None:
            return
        partition.looked_back = True
        low = self._low(partition)
        target = max(low, partition.start - _LOOK_BACK * (chunk_position + 64))
        if target < partition.start:
            self._inbox.forget(partition.source)  # a duplicate that was met first must not complete what was delivered
            self._go_back(partition, target)

    def lost_head(self, partition: Partition) -> bool:
        """Whether chunks that were never seen should have been there: the broker no longer has them."""
        if partition.begins == "reset":
            return partition.start is not None and partition.start <= self._low(partition)
        return partition.begins == "committed"

    # Within ----------------------------------------------------------------------------------------------------

    def _start(self, at: Any, begins: Begins) -> None:
        source = at.topic, at.partition
        self._inbox.forget(source)
        partition = self.known[source] = Partition(source, begins, start=at.offset if at.offset >= 0 else None)
        partition.restore(Mark.decode(at.metadata))

    def _committed(self, asked: list[Any]) -> list[Any]:
        """Ask the group; without an answer payloads may come twice."""
        try:
            return list(self._native.committed(asked, timeout=_ASK_SECONDS))
        except (vendor().KafkaException, RuntimeError) as error:
            _log.warning("nobody tells what was delivered before; some of it may come again: %s", error)
            return asked

    def _low(self, partition: Partition) -> int:
        topic, number = partition.source
        try:
            low, _ = self._native.get_watermark_offsets(vendor().TopicPartition(topic, number), timeout=_ASK_SECONDS)
        except vendor().KafkaException as error:
            _log.warning("%s[%d]: the broker does not tell where it begins: %s", topic, number, error)
            return 0
        return int(low)

    def _go_back(self, partition: Partition, offset: int) -> None:
        """Read again from somewhere below; what was delivered is passed over."""
        topic, number = partition.source
        self._native.seek(vendor().TopicPartition(topic, number, offset))
        partition.go_back(offset)
