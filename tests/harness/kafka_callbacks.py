"""A scripted Kafka consumer that calls back wherever librdkafka may, and the check of what is committed meanwhile.

`run` lets an application read a topic through a `KafkaConsumer`. At one of the client's calls something happens: a
rebalance, or a callback of the application that commits, seeks, pauses, unsubscribes or closes. The client does what
was observed on a real one: see `ScriptedClient`.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import confluent_kafka as kafka

import claimcheck
from claimcheck._wire.envelope import encode_chunk
from claimcheck.errors import IncompletePayloadError
from claimcheck.transports.kafka import KafkaConsumer, _consumer
from claimcheck.transports.kafka._partition import CommitMetadata

TOPIC = "t"
MOST_CALLS = 80


@dataclass(frozen=True)
class Payload:
    """What was sent: the offsets of its records in one partition; ``None`` as content for an incomplete one."""

    partition: int
    offsets: tuple[int, ...]
    content: bytes | None


@dataclass
class Topic:
    """Two partitions with records of every kind, and what the group committed."""

    cc: claimcheck.ClaimCheck
    records: list[list[bytes]] = field(default_factory=lambda: [[], []])
    payloads: list[Payload] = field(default_factory=list)
    committed: dict[int, tuple[int, str | None]] = field(default_factory=dict)

    def fill(self, layout: list[str]) -> None:
        for name, partition in map(str.split, layout):
            getattr(self, name)(int(partition))

    def plain(self, partition: int) -> None:
        content = b"plain-%d-%d" % (partition, len(self.records[partition]))
        self._add(partition, content, [content])

    def pointer(self, partition: int) -> None:
        content = b"stored-%d-%d" % (partition, len(self.records[partition]))
        with self.cc.outbound(content, destination=TOPIC) as out:
            self._add(partition, content, [bytes(each.data or b"") for each in out.envelopes])

    def chunks(self, partition: int, *, complete: bool = True) -> None:
        """Add a payload in three chunks, with a plain record between them; without the last one if incomplete."""
        content = b"in chunks-%d-%d" % (partition, len(self.records[partition]))
        uuid = f"00000000-0000-4000-8000-{partition:04}{len(self.records[partition]):08}"
        parts = [encode_chunk(uuid, n, 3, content[5 * n : 5 * n + 5] if n < 2 else content[10:]) for n in range(3)]
        first = self._append(partition, parts[0])
        self.plain(partition)
        offsets = [first, *(self._append(partition, part) for part in parts[1 : 3 if complete else 2])]
        self.payloads.append(Payload(partition, tuple(offsets), content if complete else None))

    def incomplete(self, partition: int) -> None:
        self.chunks(partition, complete=False)

    def _add(self, partition: int, content: bytes, values: list[bytes]) -> None:
        offsets = tuple(self._append(partition, value) for value in values)
        self.payloads.append(Payload(partition, offsets, content))

    def _append(self, partition: int, value: bytes) -> int:
        self.records[partition].append(value)
        return len(self.records[partition]) - 1


LAYOUTS = {
    "plain": ["plain 0"] * 6 + ["plain 1"] * 5,
    "pointers": ["pointer 0", "pointer 1"] * 4 + ["pointer 0", "plain 0"],
    "chunks": ["plain 0", "chunks 0", "chunks 1", "plain 1", "plain 1", "chunks 0"],
    "mixed": ["plain 0", "plain 0", "pointer 0", "chunks 0", "plain 1", "pointer 1", "incomplete 1", "plain 1",
              "pointer 0", "plain 0", "plain 0"],
}  # fmt: skip
"""What is sent, in this order: the name of a method of `Topic`, and a partition."""


@dataclass
class Scenario:
    """One run.

    Attributes:
        auto_offset_store: The wrapper's option.
        auto_commit: The client's ``enable.auto.commit``; a stored offset may be committed at any time.
        layout: The records, by the name of a layout.
        receive: How many messages the application requests at once; 1 to poll.
        burst: How many records each call of the client finds.
        events: What happens, by the number of the point: each call of the client has at least one.
        on_revoke: What the application's callback does when partitions are revoked.
        manual: Whether the application assigns the partitions itself.
        prefetch_bytes: The wrapper's option.
    """

    auto_offset_store: bool
    auto_commit: bool
    layout: str = "mixed"
    receive: int = 1
    burst: int = 2
    events: dict[int, str] = field(default_factory=dict)
    on_revoke: str = "nothing"
    manual: bool = False
    prefetch_bytes: int | None = None


EVENTS = ("revoke", "revoke one", "lost", "commit", "commit position", "seek back", "seek on", "pause", "unsubscribe",
          "unassign one", "close")  # fmt: skip
ON_REVOKE = ("nothing", "commit", "commit position", "raise", "close")


class CallbackError(Exception):
    """Raised by the application's callback."""


class ScriptedClient:
    """A `confluent_kafka.Consumer` of one topic, with events at its points.

    Revoked partitions come back with the next call. Records that one call has collected and not returned are discarded
    if their partition is revoked, sought or paused. ``unsubscribe`` revokes with the next call, and keeps partitions
    that were assigned manually. A commit without arguments commits what was stored.
    """

    def __init__(self, world: World, events: dict[int, str]) -> None:
        self.world, self.topic, self.events = world, world.topic, events
        self.positions: dict[int, int] = {}
        self.stored: dict[int, Any] = {}
        self.paused: set[int] = set()
        self.callbacks: dict[str, Any] = {}
        self.pending: list[str] = []  # rebalances that the next call serves
        self.collected: list[Any] = []
        self.point = 0
        self.closed = self.in_callback = False

    # What the application may call

    def subscribe(self, topics: list[str], **callbacks: Any) -> None:
        self.callbacks, self.pending = callbacks, ["assign"]

    def unsubscribe(self) -> None:
        self._reach_point()
        self.pending = [*(["revoke"] if self.callbacks else []), "leave"]

    def poll(self, timeout: float = -1) -> Any:
        found = self.consume(1, timeout)
        return found[0] if found else None

    def consume(self, count: int = 1, timeout: float = -1) -> list[Any]:
        self._check_open()
        self._serve()
        self._reach_point()
        outer, self.collected = self.collected, []
        while len(self.collected) < min(count, self.world.scenario.burst) and (record := self._fetch()) is not None:
            self.collected.append(record)
            if count > 1:
                self._reach_point()
        found, self.collected = self.collected, outer
        waited = max(timeout, 0.3) if found else 8.0
        self.world.now += 0.3 if len(found) == count else waited
        return found

    def commit(self, message: Any = None, offsets: Any = None, asynchronous: bool = True) -> Any:
        self._check_open()
        self._reach_point()
        if offsets is None:
            newer = [each for n, each in self.stored.items() if each.offset > self.topic.committed.get(n, (-1, ""))[0]]
            if not newer:
                raise kafka.KafkaException(kafka.KafkaError(kafka.KafkaError._NO_OFFSET))
            offsets = newer
        self._commit(offsets)
        return offsets

    def close(self) -> None:
        if self.closed:
            return
        self._reach_point()
        if self.callbacks and self.positions:
            self._rebalance("revoke")
        self.closed = True
        self.positions.clear()

    def store_offsets(self, offsets: list[Any]) -> None:
        self._check_open()
        for each in offsets:
            if each.partition not in self.positions:
                raise kafka.KafkaException(kafka.KafkaError(kafka.KafkaError._STATE))
            self.stored[each.partition] = each
            if self.world.scenario.auto_commit:
                self._commit([each])

    def assign(self, partitions: list[Any]) -> None:
        self._check_open()
        self.positions = {each.partition: self._start(each) for each in partitions}

    def incremental_assign(self, partitions: list[Any]) -> None:
        self.positions |= {each.partition: self._start(each) for each in partitions}

    def unassign(self) -> None:
        self._remove(list(self.positions))

    def incremental_unassign(self, partitions: list[Any]) -> None:
        self._remove([each.partition for each in partitions])

    def seek(self, partition: Any) -> None:
        self._check_open()
        if partition.partition not in self.positions:
            raise kafka.KafkaException(kafka.KafkaError(kafka.KafkaError._UNKNOWN_PARTITION))
        self.positions[partition.partition] = partition.offset
        self._discard([partition.partition])

    def pause(self, partitions: list[Any]) -> None:
        numbers = [each.partition for each in partitions]
        self.paused |= {*numbers}
        for record in reversed(self.collected):
            if record.partition() in numbers:
                self.positions[record.partition()] = record.offset()
        self._discard(numbers)

    def resume(self, partitions: list[Any]) -> None:
        self.paused -= {each.partition for each in partitions}

    def assignment(self) -> list[Any]:
        return [kafka.TopicPartition(TOPIC, number) for number in self.positions]

    def committed(self, partitions: list[Any], timeout: float = -1) -> list[Any]:
        found: list[Any] = [
            self.topic.committed.get(each.partition, (kafka.OFFSET_INVALID, None)) for each in partitions
        ]
        return [
            kafka.TopicPartition(TOPIC, each.partition, offset, *cast("Any", [] if metadata is None else [metadata]))
            for each, (offset, metadata) in zip(partitions, found, strict=True)
        ]

    def get_watermark_offsets(self, partition: Any, **_: Any) -> tuple[int, int]:
        return 0, len(self.topic.records[partition.partition])

    # What happens inside

    def _reach_point(self) -> None:
        """Let the event of this point happen, unless this is inside a callback."""
        if not self.in_callback:
            self.point += 1
            if event := self.events.get(self.point):
                self.world.happened.append(event)
                self._happen(event)

    def _happen(self, event: str) -> None:
        if event in ("revoke", "revoke one", "lost"):
            if self.callbacks and self.positions:
                self._rebalance(event)
                self.pending.append("assign")
            return
        self.in_callback = True
        try:
            with contextlib.suppress(kafka.KafkaException, RuntimeError, CallbackError):
                self.world.act(event)
        finally:
            self.in_callback = False

    def _serve(self) -> None:
        pending, self.pending = self.pending, []
        for event in pending:
            if event == "leave":
                self.callbacks = {}
            elif self.callbacks and (event == "assign" or self.positions):
                self._rebalance(event)

    def _rebalance(self, kind: str) -> None:
        numbers = [0, 1] if kind == "assign" else list(self.positions)[: 1 if kind == "revoke one" else 2]
        if kind == "assign":
            numbers = [number for number in numbers if number not in self.positions]
        partitions = [kafka.TopicPartition(TOPIC, number) for number in numbers]
        before, nested, self.in_callback = set(self.positions), self.in_callback, True
        try:
            self.callbacks[{"assign": "on_assign", "lost": "on_lost"}.get(kind, "on_revoke")](self, partitions)
        finally:
            self.in_callback = nested
        if kind != "assign":
            self._remove(numbers, keep_stored=kind != "lost")
        elif set(self.positions) == before and not self.closed:  # the callback did not assign them
            self.incremental_assign(partitions)

    def _remove(self, numbers: list[int], *, keep_stored: bool = True) -> None:
        for number in numbers:
            self.positions.pop(number, None)
            self.stored.pop(number, None)
        self._discard(numbers)

    def _discard(self, numbers: list[int]) -> None:
        self.collected = [each for each in self.collected if each.partition() not in numbers]

    def _fetch(self) -> Any:
        for number, offset in self.positions.items():
            if number not in self.paused and offset < len(self.topic.records[number]):
                self.positions[number] = offset + 1
                value = self.topic.records[number][offset]
                # The next record comes from another partition, if there is one.
                self.positions = {each: self.positions[each] for each in [*self.positions][1:] + [*self.positions][:1]}
                return kafka.Message(topic=TOPIC, partition=number, offset=offset, value=value, timestamp=(1, 1))
        return None

    def _start(self, given: Any) -> int:
        return given.offset if given.offset >= 0 else self.topic.committed.get(given.partition, (0, None))[0]

    def _commit(self, offsets: list[Any]) -> None:
        for each in offsets:
            if each.offset >= 0:
                self.topic.committed[each.partition] = each.offset, each.metadata
                self.world.check_commit(each)

    def _check_open(self) -> None:
        if self.closed:
            raise RuntimeError("Consumer closed")


class World:
    """The application of one scenario: receives, commits, and notes what went wrong in `faults`."""

    def __init__(self, scenario: Scenario, cc: claimcheck.ClaimCheck) -> None:
        self.scenario, self.now = scenario, 0.0
        self.topic = Topic(cc)
        self.topic.fill(LAYOUTS[scenario.layout])
        self.returned: list[Payload] = []
        self.faults: list[str] = []
        self.happened: list[str] = []
        self.client: Any = None
        self.consumer: Any = None

    def run(self) -> None:
        """Read everything with one consumer, then what is left with another one."""
        self._open(self.scenario.events)
        self._receive_all()
        self._end()
        missing = set(self.topic.payloads) - set(self.returned)
        if missing or self.client.events:  # the next owner of the partitions
            self._open({})
            self._receive_all()
            self._end()
        missing = set(self.topic.payloads) - set(self.returned)
        self.faults += [f"lost: {each}" for each in missing]
        if self.scenario.auto_offset_store and self.scenario.auto_commit and self._is_orderly():
            twice = {each for each in self.returned if self.returned.count(each) > 1}
            self.faults += [f"returned twice: {each}" for each in twice]

    def act(self, event: str) -> None:
        """Do what a callback of the application does."""
        consumer, partitions = self.consumer, self.client.assignment()
        if event == "commit":
            consumer.commit(asynchronous=False)
        elif event == "commit position":
            consumer.commit(offsets=consumer.position(partitions), asynchronous=False)
        elif event in ("seek back", "seek on") and partitions:
            number = partitions[0].partition
            known = consumer.position(partitions[:1])[0].offset
            offset = 0 if event == "seek back" or known < 0 else known
            consumer.seek(kafka.TopicPartition(TOPIC, number, offset))
        elif event == "pause":
            consumer.pause(partitions)
        elif event == "unassign one":
            consumer.incremental_unassign(partitions[:1])
        elif event in ("unsubscribe", "close"):
            getattr(consumer, event)()
        elif event == "raise":
            raise CallbackError

    def check_commit(self, at: Any) -> None:
        """Note every payload that the commit covers although no call has returned it."""
        mark = CommitMetadata.decode(at.metadata)
        for payload in set(self.topic.payloads) - set(self.returned):
            first, last = payload.offsets[0], payload.offsets[-1]
            # The mark says nothing about payloads without a last record.
            is_marked = mark is not None and payload.content and last < mark.upto and first not in mark.owed
            if payload.partition == at.partition and (first < at.offset or is_marked):
                self.faults.append(f"a commit of {at.offset} {mark} covers {payload}, which no call has returned")

    def _is_orderly(self) -> bool:
        return not {"lost", "seek back", "seek on", "close"} & set(self.happened) and self.scenario.on_revoke != "close"

    def _open(self, events: dict[int, str]) -> None:
        self.client = ScriptedClient(self, events)
        scenario = self.scenario
        self.consumer = KafkaConsumer(
            self.client, self.topic.cc, auto_offset_store=scenario.auto_offset_store, clock=lambda: self.now,
            prefetch_bytes=scenario.prefetch_bytes,
        )  # fmt: skip
        if scenario.manual:
            self.consumer.assign([kafka.TopicPartition(TOPIC, number) for number in (0, 1)])
        else:
            reaction = scenario.on_revoke if events else "nothing"
            self.consumer.subscribe([TOPIC], on_revoke=lambda *_: self.act(reaction), on_lost=lambda *_: None)

    def _receive_all(self) -> None:
        idle = 0
        for _ in range(MOST_CALLS):
            try:
                messages = self._receive()
            except CallbackError:
                continue
            except (kafka.KafkaException, RuntimeError):
                if self.client.closed:
                    return
                continue  # raised by a commit in a callback
            for message in messages:
                self._check_source(message)
            self.returned += [self._payload_of(message) for message in messages]
            self._after(messages)
            idle = 0 if messages else idle + 1
            if idle > 9 or self.client.closed:
                return

    def _receive(self) -> list[Any]:
        if self.scenario.receive > 1:
            return list(self.consumer.consume(self.scenario.receive, 3.0))
        message = self.consumer.poll(3.0)
        return [] if message is None else [message]

    def _after(self, messages: list[Any]) -> None:
        """Do what an application does between two calls."""
        if messages and not self.scenario.auto_offset_store and not self.client.closed:
            with contextlib.suppress(kafka.KafkaException):
                if self.scenario.auto_commit:
                    self.consumer.store_offsets(messages[-1])
                else:
                    self.consumer.commit(message=messages[-1], asynchronous=False)
        if not messages and self.client.paused:
            self.consumer.resume(self.client.assignment())
            self.client.paused.clear()
        if not messages and not self.client.callbacks and not self.scenario.manual and not self.client.pending:
            self.consumer.subscribe([TOPIC])  # again, after it unsubscribed
        if not messages and self.scenario.manual and len(self.client.positions) < 2 and not self.client.closed:
            self.consumer.assign([kafka.TopicPartition(TOPIC, number) for number in (0, 1)])

    def _end(self) -> None:
        for _ in range(3):  # a callback may raise
            with contextlib.suppress(CallbackError, kafka.KafkaException, RuntimeError):
                self.consumer.close()
                return

    def _check_source(self, message: Any) -> None:
        number = message.partition()
        if self.client.closed:
            return
        if number not in self.client.positions:
            self.faults.append(f"returned offset {message.offset()} of partition {number}, which was revoked before")
        if number in self.client.paused:
            self.faults.append(f"returned offset {message.offset()} of partition {number}, which was paused before")

    def _payload_of(self, message: Any) -> Payload:
        at = message.partition(), message.offset()
        found = next((each for each in self.topic.payloads if (each.partition, each.offsets[0]) == at), None)
        assert found is not None, f"a message at {at}, where no payload begins"
        try:
            content = message.value()
        except IncompletePayloadError:
            content = None
        if content != found.content:
            self.faults.append(f"wrong content of {found}: {content!r}")
        return found


@contextlib.contextmanager
def scripted() -> Iterator[Callable[[Scenario], list[str]]]:
    """Yield a function that runs a scenario and returns its faults."""
    client = types.SimpleNamespace(**{**vars(kafka), "Consumer": ScriptedClient})
    options = {
        "strategy": "external", "threshold_bytes": 1, "chunking": {"expire_after_seconds": 30, "max_redeliveries": 1},
        "stores": {"m": {"type": "memory"}},
    }  # fmt: skip
    module: Any = _consumer
    real, module.vendor = module.vendor, lambda: client

    def run(scenario: Scenario) -> list[str]:
        with claimcheck.from_dict(options) as cc:
            world = World(scenario, cc)
            world.run()
            return world.faults

    try:
        yield run
    finally:
        module.vendor = real
