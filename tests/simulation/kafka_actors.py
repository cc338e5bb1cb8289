"""Applications that send and receive with Kafka, in every way that the library offers; and one run of them."""

from __future__ import annotations

import contextlib
from typing import Any

import confluent_kafka as kafka

from claimcheck.errors import ClaimCheckError, PartialSendError
from claimcheck.transports.kafka import AsyncKafkaConsumer, AsyncKafkaProducer, KafkaConsumer, KafkaProducer
from claimcheck.transports.kafka._partition import CommitMetadata
from tests.harness.kafka_model import AioClient, ConsumerClient, Group, ProducerClient
from tests.harness.scheduler import OWNER, Scheduler
from tests.harness.topic import TOPIC
from tests.simulation import actors
from tests.simulation.actors import GRACE, STRATEGIES, Run
from tests.simulation.ledger import Handed, Ledger, Sent

DEFINITE = ("_UNKNOWN_PARTITION", "MSG_SIZE_TOO_LARGE", "_QUEUE_FULL")
COMMITS = ("auto", "stored", "message", "store message", "position")
REACTIONS = ("commit", "commit position", "seek", "pause", "unsubscribe", "unassign one", "close")
ON_REVOKE = ("nothing", "nothing", "commit", "commit position", "raise", "close")


class KafkaGroup(Handed, Group):
    """A consumer group, with checks of what it commits."""

    log: Ledger

    def held_at(self) -> object:
        return [n for n, log in enumerate(self.log.logs) if self.committed[n][0] != len(log)] and self.committed

    def begin(self, number: int) -> int:
        """Return where an owner begins; chunks that are stored twice may be committed only in their first copies."""
        offset, metadata = self.committed[number]
        mark = CommitMetadata.decode(metadata) or CommitMetadata(offset)
        for unit in self.log.units:
            left = {each for each in unit.records if each >= offset and (each >= mark.upto or each in mark.owed)}
            is_reported = unit.is_removed and unit in self.reported and unit.last >= offset  # no mark names its chunks
            if unit.partition == number and (is_reported or (left and left.isdisjoint(unit.positions.values()))):
                self.repeatable.add(unit)
        return offset

    def commit(self, at: Any) -> None:
        """Commit, and check that this covers nothing that no earlier call returned."""
        super().commit(at)
        mark = CommitMetadata.decode(at.metadata)
        for unit in self.log.units:
            if unit.partition != at.partition or self.may_pass(unit):
                continue
            is_marked = mark is not None and unit.is_complete and unit.last < mark.upto and unit.first not in mark.owed
            if unit.first < at.offset or is_marked:
                covers = f"{at.offset} {mark or ''}, which covers {unit}"
                self.log.scheduler.violated(f"{self.name} committed {covers}: no earlier call returned it")

    def skip(self, number: int, offset: int) -> None:
        self.skipped.update(unit for unit in self.log.units if unit.partition == number and unit.last >= offset)

    def go_back(self, number: int, offset: int) -> None:
        mark = CommitMetadata.decode(self.committed[number][1])
        begin = max(offset, self.committed[number][0], mark.upto if mark else 0)
        self.skipped -= {unit for unit in self.skipped if unit.partition == number and unit.first >= begin}


class Sender(actors.Sender):
    """Sends through a wrapper or a block."""

    def open(self) -> None:
        self.again: list[tuple[float, bytes, bytes]] = []
        self.cc = self.configured(self.scheduler.choice(STRATEGIES))
        self.client = ProducerClient(self.log, self.process)
        self.client.is_idempotent = self.is_async or self.scheduler.chance(0.5)
        self.is_wrapped = self.is_async or self.scheduler.chance(0.6)
        kind, client = (AsyncKafkaProducer, AioClient(self.client)) if self.is_async else (KafkaProducer, self.client)
        self.producer = self.call(kind, client, self.cc)
        blocking = getattr(self.producer, "_blocking", self.producer)
        blocking._window_bytes, blocking._room_seconds = self.scheduler.choice((1, 700, 1 << 20)), 2

    def send(self, sent: Sent) -> None:
        value = None
        if self.again and self.again[-1][0] > self.scheduler.now:
            _, value, sent.content = self.again.pop()
        try:
            self.produce(sent, value) if self.is_wrapped else self._by_hand(sent)
        except (ClaimCheckError, BufferError, kafka.KafkaException) as error:
            sent.outcome = _outcome(error, is_wrapped=self.is_wrapped)
            sent.is_given_up |= isinstance(error, PartialSendError)

    def finish(self) -> None:
        if self.is_wrapped:
            self.call(self.producer.close)
        self.client.close()

    def produce(self, sent: Sent, value: bytes | None) -> None:
        """Send a payload, or the value of a report once more, as applications do after an error."""

        def told(error: Any, report: Any) -> None:
            sent.outcome = _outcome(error)
            if error is not None:
                sent.is_given_up = True
                if report.value() is not None and self.scheduler.chance(0.5):
                    self.again.append((self.scheduler.now + GRACE / 3, report.value(), sent.content))

        key = self.scheduler.choice((None, b"k"))
        self.producer.produce(TOPIC, sent.content if value is None else value, key, on_delivery=told)
        if self.scheduler.chance(0.5):
            self.producer.poll(self.scheduler.choice((0, 0.1)))

    def _by_hand(self, sent: Sent) -> None:
        with self.cc.outbound(sent.content, destination=TOPIC) as out:
            out.send(lambda envelope: self._produce(envelope.data, envelope.key, envelope.headers))
        sent.outcome = "sent"

    def _produce(self, value: Any, key: Any, headers: Any) -> None:
        """Produce one record, and wait for its report."""
        errors: list[Any] = []
        partition = OWNER.get() % len(self.log.low)
        self.client.produce(
            TOPIC, value, key, partition, on_delivery=lambda error, _: errors.append(error), headers=headers
        )
        self.client.flush()
        if errors[0] is not None:
            raise kafka.KafkaException(errors[0])


class AsyncSender(Sender):
    """Sends through the asyncio wrapper; its task may be cancelled."""

    is_async = True

    def produce(self, sent: Sent, value: bytes | None) -> None:
        is_cancelled = self.scheduler.strikes("produce is cancelled", 0.1)
        cancel_after = self.scheduler.choice((0, 0.0005, 0.01)) if is_cancelled else None
        future = self.call(self.producer.produce, TOPIC, sent.content, b"k", cancel_after=cancel_after)
        if future is None:
            sent.outcome = "unknown"
        else:
            future.add_done_callback(lambda future: setattr(sent, "outcome", _outcome(future.exception())))
        if self.scheduler.chance(0.3):
            self.call(self.producer.flush)


class Receiver(actors.Receiver):
    """Receives with a wrapped consumer, and commits in one of several ways."""

    def open(self) -> None:
        self.client = ConsumerClient(self.group, self.process, self.options)
        options = {name: self.options[name] for name in ("auto_offset_store", "prefetch_bytes")}
        kind, client = (AsyncKafkaConsumer, AioClient(self.client)) if self.is_async else (KafkaConsumer, self.client)
        self.consumer = self.call(kind, client, self.configured("external"), clock=self.scheduler.clock, **options)
        self.listen()
        if not self.is_async:
            self.client.react = lambda: self.react(self.scheduler.choice(REACTIONS))

    def react(self, event: str) -> None:
        """Do what a callback of the application may do inside a call of the client."""
        if event in ("raise", "close") and not self.scheduler.is_faulty:
            return
        if event == "raise":
            raise ArithmeticError
        with contextlib.suppress(kafka.KafkaException, RuntimeError):
            if event == "commit":
                self.consumer.commit(asynchronous=False)
            elif event == "commit position":
                self._commit_position()
            elif event == "seek":
                self._seek()
            elif event == "pause":
                self.consumer.pause(self.client.assignment())
            elif event == "unassign one" and self.options["manual"]:
                self.consumer.incremental_unassign(self.client.assignment()[:1])
            elif event in ("close", "unsubscribe"):
                getattr(self.consumer, event)()

    def listen(self) -> None:
        """Subscribe, or assign all partitions."""
        if not self.options["manual"]:
            on_revoke = None if self.is_async else lambda *_: self.react(self.options["on_revoke"])
            self.call(self.consumer.subscribe, [TOPIC], on_revoke=on_revoke)
        elif missing := set(range(len(self.log.low))) - set(self.client.positions):
            self.consumer.incremental_assign([kafka.TopicPartition(TOPIC, number) for number in sorted(missing)])

    def end(self) -> None:
        self.group.is_orderly = False
        self.group.leave(self.client)

    def act(self) -> None:
        chance = self.scheduler.random.random()
        with contextlib.suppress(kafka.KafkaException, RuntimeError, ArithmeticError):
            if chance < 0.03:
                self._seek()
            elif chance < 0.06:
                self.call(self.consumer.pause, self.client.assignment())
                self.scheduler.pause(0.5)
            elif chance < 0.08:
                self.call(self.consumer.unsubscribe)
            elif chance < 0.09:
                self.call(self.consumer.close)
            else:
                self.receive(self.scheduler.choice((0, 0.1, 1, 5)))
        self.go_on()

    def go_on(self) -> None:
        """Undo what this application, or one of its callbacks, has stopped."""
        if self.client.closed:
            self.start()
        if self.client.paused and self.scheduler.chance(0.5):
            self.call(self.consumer.resume, self.client.assignment())
            self.client.paused.clear()
        if not self.client.callbacks or self.options["manual"]:
            self.listen()

    def receive(self, seconds: float) -> int:
        is_cancelled = self.is_async and self.scheduler.strikes("receive is cancelled", 0.1)
        cancel_after = self.scheduler.choice((0, 0.01, 0.3)) if is_cancelled else None
        if (count := self.options["count"]) > 1:
            received = self.call(self.consumer.consume, count, seconds, cancel_after=cancel_after) or []
        else:
            received = [self.call(self.consumer.poll, seconds, cancel_after=cancel_after)]
        messages, sought = [message for message in received if message is not None], set[int]()
        for message in messages:
            number = message.partition()
            if message.error() is not None:
                sought.add(number)
                self.group.repeatable.update(unit for unit in self.group.returned if unit.partition == number)
                with contextlib.suppress(kafka.KafkaException, RuntimeError):  # a callback gave the partition up
                    self._go_to(number, self.log.low[number])
            elif number not in sought:  # what comes again is not processed, and not committed
                self._check_place(message)
                upto = self.client.positions.get(number, message.offset() + 1)
                self.group.received((number, message.offset()), message, self.process, upto)
        if messages and messages[-1].partition() not in sought:
            self.commit(messages[-1])
        return len(messages)

    def commit(self, message: Any) -> None:
        how = self.options["commit"]
        if how == "stored" and self.scheduler.chance(0.4):
            self.call(self.consumer.commit, asynchronous=False)
        elif how == "message":
            self.call(self.consumer.commit, message=message, asynchronous=self.scheduler.chance(0.5))
        elif how == "store message":
            self.call(self.consumer.store_offsets, message)
        elif how == "position":
            self._commit_position()

    def read_on(self, found: list[bool], *, busy: bool) -> None:
        received, most = 0, sum(map(len, self.log.logs))
        with contextlib.suppress(kafka.KafkaException, RuntimeError, ArithmeticError):
            self.go_on()
            self.call(self.consumer.resume, self.client.assignment())
            before, count = None, 0
            while received < most and (count or before != self.client.positions):
                before = dict(self.client.positions)
                received += (count := self.receive(0 if busy and received else 1.0))
            self._commit_position()
        found.append(received > 0)

    def _commit_position(self) -> None:
        positions = self.call(self.consumer.position, self.client.assignment())
        if known := [each for each in positions if each.offset >= 0]:
            self.call(self.consumer.commit, offsets=known, asynchronous=False)

    def _check_place(self, message: Any) -> None:
        number = message.partition()
        if number not in self.client.positions and not self.client.closed:
            self.scheduler.violated(f"returned {number}@{message.offset()}, of a partition that was revoked before")
        if message.offset() < self.client.sought.get(number, 0):
            self.scheduler.violated(f"returned {number}@{message.offset()}, from before a seek")
        if number in self.client.paused:
            self.scheduler.violated(f"returned {number}@{message.offset()}, of a partition that is paused")

    def _seek(self) -> None:
        if not self.client.assignment():
            return
        number = self.scheduler.choice(sorted(self.client.positions))
        low, end = self.log.low[number], len(self.log.logs[number])
        offset = self.scheduler.random.randint(low, end)
        self.group.is_orderly = False
        skipped = [
            unit for unit in self.log.units if unit.partition == number and unit.positions and unit.first < offset
        ]
        self.group.excused.update(skipped)
        self._go_to(number, offset)

    def _go_to(self, number: int, offset: int) -> None:
        self.client.known_low[number] = self.log.low[number]
        self.call(self.consumer.seek, kafka.TopicPartition(TOPIC, number, offset))
        if number in self.client.positions:
            self.client.sought[number] = self.client.furthest[number] = offset


class AsyncReceiver(Receiver):
    """The same with the asyncio wrapper; its task may be cancelled."""

    is_async = True


def _outcome(error: Any, *, is_wrapped: bool = True) -> Any:
    """What an error means to the library; only its wrappers know that nothing was sent to an unknown partition."""
    if error is None:
        return "sent"
    error = error.args[0] if isinstance(error, kafka.KafkaException) else error
    if not isinstance(error, kafka.KafkaError):
        return "unknown" if isinstance(error, PartialSendError) else "failed"
    return "failed" if error.name() in (DEFINITE if is_wrapped else DEFINITE[1:]) else "unknown"


class KafkaRun(Run):
    senders = (Sender, Sender, Sender, AsyncSender)

    def __init__(self, scheduler: Scheduler) -> None:
        self.removal, self.rebalances = scheduler.choice((0.0, 0.02, 0.1)), scheduler.choice((0.0, 0.1, 0.2))
        super().__init__(scheduler, Ledger(scheduler, scheduler.choice((1, 1, 2))))

    def group(self, name: str) -> KafkaGroup:
        choice = self.scheduler.choice
        group = KafkaGroup(name, self.log)
        commit, manual = choice(COMMITS), self.scheduler.chance(0.15)
        group.is_orderly = commit == "auto"  # the others may process what they do not commit in time
        options = {
            "commit": commit,
            "auto_offset_store": commit in ("auto", "stored"),
            "auto_commit": commit in ("auto", "store message"),
            "reset": choice(("earliest", "latest", "error")),
            "on_revoke": choice(ON_REVOKE),
            "calls_back": choice((0.0, 0.0, 0.02)),
            "manual": manual,
            "count": choice((1, 3, 20)),
            "prefetch_bytes": choice((None, 0, 2000)),
        }
        kind = Receiver if manual else choice((Receiver, Receiver, Receiver, AsyncReceiver))
        members = 1 if manual else choice((1, 1, 2))
        self.receiving += [kind(group, f"{name} member {n}", options) for n in range(members)]
        return group

    def disturb(self) -> None:
        scheduler = self.scheduler
        if scheduler.strikes("retention", self.removal):
            self.log.remove()
        if scheduler.strikes("rebalance", self.rebalances):
            group: KafkaGroup = scheduler.choice(self.log.groups)
            scheduler.spawn(group.lose if scheduler.chance(0.2) else group.rebalance, None, scheduler.choice((0, 0.5)))
