"""From native records to payloads: what came of each, without any call that moves the consumer."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import Any

from claimcheck import hints
from claimcheck.envelope import Abort, Chunk, Literal, PointerData, decode
from claimcheck.errors import EnvelopeError
from claimcheck.resolver import Dropped, Outcome, Resolved, Resolver
from claimcheck.transports.kafka.message import KafkaMessage, failed, of_chunks
from claimcheck.transports.kafka.partition import Owed, Partition
from claimcheck.transports.kafka.pointers import pointed_at
from claimcheck.transports.needs import Resolves

__all__ = ["Arrival", "Inbox"]

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Arrival:
    """A message that waits for its receiver.

    Attributes:
        partition: Where it came from; ``None`` for an event of the client's.
        message: It, or the native one.
        first: The lowest offset of its records.
        last: The highest.
        outcome: Of chunks.
    """

    partition: Partition | None
    message: Any
    first: int = 0
    last: int = 0
    outcome: Outcome | None = None

    @property
    def held_bytes(self) -> int:
        """What it holds in memory, or will hold."""
        return len(self.message)

    @property
    def stored_bytes(self) -> int:
        """Of that, what is still to be read."""
        return self.message.stored_bytes if isinstance(self.message, KafkaMessage) else 0

    def fetch(self, executor: Executor) -> None:
        """Begin to read it."""
        self.message.fetch(executor)


class Inbox:
    """Takes native records, and keeps account of chunks. For one thread.

    Args:
        cc: A `claimcheck.ClaimCheck` that knows the writers' stores.
        max_redeliveries: How often a payload that was let go of is read again.
        headless: Told of each chunk of a payload of which the first was not seen yet.
        lost_head: Asked whether a first chunk that never came should have been there.
        clock: Seconds, monotonic.

    Attributes:
        chunked: Whether there was ever a chunk.
    """

    def __init__(
        self,
        cc: Resolves,
        *,
        max_redeliveries: int,
        headless: Callable[[Partition, Chunk], object],
        lost_head: Callable[[Partition], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cc = cc
        self._headless = headless
        self._lost_head = lost_head
        self.chunked = False
        self.header = cc.config.header
        self._max_redeliveries = max_redeliveries
        self._clock = clock
        self.resolver: Resolver = cc.resolver(clock=clock)
        self._partitions: dict[tuple[str, int], Partition] = {}

    def take(self, partition: Partition, native: Any) -> list[Arrival]:
        """Take a record that is no plain message; gives what came of it, of a chunk perhaps nothing yet."""
        offset, value = native.offset(), native.value()
        try:
            envelope = decode(value, header=self.header)
        except EnvelopeError as error:
            return self._single(partition, failed(native, error), offset)
        if isinstance(envelope, Chunk | Abort):
            return self._chunk(partition, native, envelope)
        if isinstance(envelope, PointerData):
            return self._single(partition, pointed_at(self._cc, native, value), offset)
        if isinstance(envelope, Literal):
            native.set_value(bytes(envelope.payload))
            native.set_headers(hints.strip(native.headers()))
        return self._single(partition, native, offset)

    def tick(self) -> list[Arrival]:
        """Let go of chunks whose time is over."""
        return self._arrivals(self.resolver.tick()) if self.resolver.pending_payloads else []

    def forget(self, source: tuple[str, int] | None = None) -> None:
        """Forget the chunks of one partition, or of all."""
        self.resolver.clear(source)
        if source is None:
            self._partitions.clear()
        else:
            self._partitions.pop(source, None)

    # Within ----------------------------------------------------------------------------------------------------

    def _single(self, partition: Partition, message: Any, offset: int) -> list[Arrival]:
        if not partition.wants(offset, offset, None):
            return []
        return [Arrival(partition, message, offset, offset)]

    def _chunk(self, partition: Partition, native: Any, envelope: Chunk | Abort) -> list[Arrival]:
        self._partitions[partition.source] = partition
        self.chunked = True
        if envelope.uuid in partition.owed and partition.focus not in (None, envelope.uuid):
            return []  # its own turn comes
        value, headers, key = native.value(), native.headers(), native.key()
        headless = isinstance(envelope, Chunk) and self._is_headless(partition, envelope, key)
        native.set_value(None)  # the piece is held, and nothing else
        outcomes = self.resolver.feed(partition.source, native.offset(), value, headers=headers, key=key, handle=native)
        arrivals = self._arrivals(outcomes)
        if headless and isinstance(envelope, Chunk):
            self._headless(partition, envelope)
        return arrivals

    def _is_headless(self, partition: Partition, chunk: Chunk, key: Any) -> bool:
        if chunk.position == 0:
            partition.headless.discard(chunk.uuid)
        elif chunk.uuid not in partition.owed and not self.resolver.knows(partition.source, chunk.uuid, key=key):
            partition.headless.add(chunk.uuid)
        return chunk.uuid in partition.headless

    def _arrivals(self, outcomes: Iterable[Outcome]) -> list[Arrival]:
        found = (self._arrival(outcome) for outcome in outcomes)
        return [arrival for arrival in found if arrival is not None]

    def _arrival(self, outcome: Outcome) -> Arrival | None:
        partition = self._partitions[outcome.source]  # type: ignore[index]
        first, last = outcome.positions[0], outcome.positions[-1]
        if isinstance(outcome, Dropped):
            if self._let_go(partition, outcome):
                return None
        elif not partition.wants(first, last, outcome.uuid):
            self.resolver.settle(outcome, acked=True)
            partition.owed.pop(outcome.uuid or "", None)
            return None
        message = of_chunks(outcome)
        kept = replace(outcome, payload=None) if isinstance(outcome, Resolved) else outcome
        return Arrival(partition, message, first, last, kept)

    def _let_go(self, partition: Partition, dropped: Dropped) -> bool:
        """Do what the configuration says with records that became no payload; gives whether that is all."""
        uuid, first = dropped.uuid or "", dropped.positions[0]
        owed = partition.owed.get(uuid)
        if dropped.action == "ack" or uuid in partition.given_up or self._begins_before(partition, dropped):
            partition.owed.pop(uuid, None)
            for each in (*(owed.dropped if owed else ()), dropped):
                self.resolver.settle(each, acked=True)
            partition.passed_over(dropped.positions[-1])
            return True
        if dropped.reason == "expired" and uuid in partition.headless:  # to read again would not bring it
            partition.given_up.add(uuid)
            return False
        behind = owed is not None and first > owed.first  # of one that was let go of, and is to be read again
        if not behind and (dropped.action == "dead_letter" or (owed.times if owed else 0) >= self._max_redeliveries):
            partition.given_up.add(uuid)
            return False
        if owed is None:
            owed = partition.owed[uuid] = Owed(first, partition.skip_below, self._clock(), times=0)
        if not behind:
            owed.times, owed.since, owed.dropped = owed.times + 1, self._clock(), []
            partition.focus = None
        owed.dropped.append(dropped)
        self.resolver.settle(dropped, acked=False)
        return True

    def _begins_before(self, partition: Partition, dropped: Dropped) -> bool:
        """Whether a payload never came whole because it begins before what the user asked for."""
        if dropped.reason != "expired" or dropped.uuid not in partition.headless or self._lost_head(partition):
            return False
        _log.info("%s[%d]: a payload that begins before the start is passed over", *partition.source)
        return True
