"""Applications that send and receive with Kafka, in every way that the library offers; and one run of them."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from typing import Any

import confluent_kafka as kafka

from claimcheck.errors import ClaimCheckError, PartialSendError
from claimcheck.transports.kafka import AsyncKafkaConsumer, AsyncKafkaProducer, KafkaConsumer, KafkaProducer
from tests.harness.async_clients import AioClient
from tests.simulation import actors
from tests.simulation.actors import STRATEGIES, Run
from tests.simulation.kafka import DEFINITE, ConsumerClient, KafkaGroup, ProducerClient
from tests.simulation.ledger import TOPIC, Ledger, Sent
from tests.simulation.scheduler import Scheduler

COMMITS = ("auto", "stored", "message", "store message", "position")
REACTIONS = ("commit", "commit position", "seek", "pause", "unsubscribe", "unassign one", "close")
ON_REVOKE = ("nothing", "nothing", "commit", "commit position", "raise", "close")


class CallbackError(Exception):
    """Raised by a callback of the application."""


class Sender(actors.Sender):
    """Sends through a wrapper or a block."""

    def open(self) -> None:
        self.again: list[tuple[bytes, bytes]] = []
        self.cc = self.configured(self.scheduler.choice(STRATEGIES))
        self.client = ProducerClient(self.ledger, self.process)
        self.client.is_idempotent = self.is_async or self.scheduler.chance(0.5)
        self.is_wrapped = self.is_async or self.scheduler.chance(0.6)
        self.connect()

    def connect(self) -> None:
        self.producer = KafkaProducer(self.client, self.cc)  # type: ignore[arg-type]
        self.producer._window_bytes, self.producer._room_seconds = self.scheduler.choice((1, 700, 1 << 20)), 2

    def act(self) -> None:
        value, sent = None, self.new_payload()
        if self.again:
            value, sent.content = self.again.pop()
        try:
            self.send(sent, value) if self.is_wrapped else self._by_hand(sent)
        except PartialSendError:
            sent.is_given_up = True
            sent.outcome = "unknown"
        except (ClaimCheckError, BufferError):
            sent.outcome = "failed"
        except kafka.KafkaException as error:
            sent.outcome = _outcome(error.args[0], is_wrapped=self.is_wrapped)

    def finish(self) -> None:
        if self.is_wrapped:
            self.call(self.producer.flush)
            self.call(self.producer.close)
        self.client.close()

    def send(self, sent: Sent, value: bytes | None) -> None:
        """Send a payload, or the value of a report once more, as applications do after an error."""

        def told(error: Any, report: Any) -> None:
            sent.outcome = "sent" if error is None else _outcome(error)
            if error is not None:
                sent.is_given_up = True
                if report.value() is not None and self.scheduler.chance(0.5):
                    self.again.append((report.value(), sent.content))

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
        partition = self.client.owner % len(self.ledger.low)
        self.client.produce(
            TOPIC, value, key, partition, on_delivery=lambda error, _: errors.append(error), headers=headers
        )
        self.client.flush()
        if errors[0] is not None:
            raise kafka.KafkaException(errors[0])


class AsyncSender(Sender):
    """Sends through the asyncio wrapper; its task may be cancelled."""

    is_async = True

    def connect(self) -> None:
        self.producer: Any = self.made(AsyncKafkaProducer, AioClient(self.client), self.cc)
        self.producer._blocking._room_seconds = 2

    def send(self, sent: Sent, value: bytes | None) -> None:
        is_cancelled = self.scheduler.strikes("produce is cancelled", 0.1)
        cancel_after = self.scheduler.choice((0, 0.0005, 0.01)) if is_cancelled else None
        future = self.call(self.producer.produce, TOPIC, sent.content, b"k", cancel_after=cancel_after)
        if future is None:
            sent.outcome = "unknown"
        else:
            future.add_done_callback(functools.partial(_told_by_future, sent))
        if self.scheduler.chance(0.3):
            self.call(self.producer.flush)


class Receiver(actors.Receiver):
    """Receives with a wrapped consumer, and commits in one of several ways."""

    def open(self) -> None:
        self.client = ConsumerClient(self.group, self.process, self.options)
        self.connect()
        self.listen()
        if not self.is_async:
            self.client.react = lambda: self.react(self.scheduler.choice(REACTIONS))

    def react(self, event: str) -> None:
        """Do what a callback of the application may do inside a call of the client."""
        if event in ("raise", "close") and not self.scheduler.is_faulty:
            return
        if event == "raise":
            raise CallbackError
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

    def connect(self) -> None:
        options = {name: self.options[name] for name in ("auto_offset_store", "prefetch_bytes")}
        cc = self.configured("external")
        self.consumer: Any = KafkaConsumer(self.client, cc, clock=self.scheduler.clock, **options)  # type: ignore[arg-type]

    def listen(self) -> None:
        """Subscribe, or assign all partitions."""
        if not self.options["manual"]:
            self.consumer.subscribe([TOPIC], on_revoke=lambda *_: self.react(self.options["on_revoke"]))
        elif missing := set(range(len(self.ledger.low))) - set(self.client.positions):
            self.consumer.incremental_assign([kafka.TopicPartition(TOPIC, number) for number in sorted(missing)])

    def end(self) -> None:
        self.group.is_orderly = False
        self.group.leave(self.client)

    def act(self) -> None:
        chance = self.scheduler.random.random()
        with contextlib.suppress(kafka.KafkaException, RuntimeError, CallbackError):
            if chance < 0.03:
                self._seek()
            elif chance < 0.06:
                self.call(self.consumer.pause, self.client.assignment())
                self.scheduler.wait(lambda: False, 0.5)
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
        messages = [message for message in received if message is not None]
        for message in messages:
            if message.error() is not None:
                number = message.partition()
                self.group.repeatable.update(unit for unit in self.group.returned if unit.partition == number)
                with contextlib.suppress(kafka.KafkaException, RuntimeError):  # a callback gave the partition up
                    self._go_to(number, self.ledger.low[number])
                continue
            self._check_place(message)
            place = message.partition(), message.offset()
            upto = self.client.positions.get(place[0], place[1] + 1)
            self.group.received(place, message, self.process, upto)
        if messages and messages[-1].error() is None:
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

    def finish(self, *, busy: bool) -> bool:
        received, most = 0, sum(map(len, self.ledger.logs))
        with contextlib.suppress(kafka.KafkaException, RuntimeError, CallbackError):
            self.go_on()
            self.call(self.consumer.resume, self.client.assignment())
            before, count = None, 0
            while received < most and (count or before != self.client.positions):
                before = dict(self.client.positions)
                received += (count := self.receive(0 if busy and received else 1.0))
            self._commit_position()
        return received > 0

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
        low, end = self.ledger.low[number], len(self.ledger.logs[number])
        offset = self.scheduler.random.randint(low, end)
        self.group.is_orderly = False
        skipped = [
            unit for unit in self.ledger.units if unit.partition == number and unit.positions and unit.first < offset
        ]
        self.group.excused.update(skipped)
        self._go_to(number, offset)

    def _go_to(self, number: int, offset: int) -> None:
        self.call(self.consumer.seek, kafka.TopicPartition(TOPIC, number, offset))
        if number in self.client.positions:
            self.client.sought[number] = offset


class AsyncReceiver(Receiver):
    """The same with the asyncio wrapper; its task may be cancelled."""

    is_async = True

    def connect(self) -> None:
        client, cc = AioClient(self.client), self.configured("external")
        options = {"auto_offset_store": self.options["auto_offset_store"], "clock": self.scheduler.clock}
        self.consumer = self.made(AsyncKafkaConsumer, client, cc, **options)

    def listen(self) -> None:
        self.call(self.consumer.subscribe, [TOPIC])


def _told_by_future(sent: Sent, future: asyncio.Future[Any]) -> None:
    error = None if future.cancelled() else future.exception()
    if error is None:
        sent.outcome = "unknown" if future.cancelled() else "sent"
    elif isinstance(error, PartialSendError):
        sent.outcome = "unknown"
    else:
        sent.outcome = _outcome(error.args[0]) if isinstance(error, kafka.KafkaException) else "failed"


def _outcome(error: Any, *, is_wrapped: bool = True) -> Any:
    """What an error means to the library; only its wrappers know that nothing was sent to an unknown partition."""
    definite = DEFINITE if is_wrapped else [code for code in DEFINITE if code != "_UNKNOWN_PARTITION"]
    return "failed" if error.name() in definite else "unknown"


class KafkaRun(Run):
    senders = (Sender, Sender, Sender, AsyncSender)

    def __init__(self, scheduler: Scheduler) -> None:
        self.removal, self.rebalances = scheduler.choice((0.0, 0.02, 0.1)), scheduler.choice((0.0, 0.1, 0.2))
        super().__init__(scheduler, Ledger(scheduler, scheduler.choice((1, 1, 2))))

    def group(self, name: str) -> KafkaGroup:
        choice = self.scheduler.choice
        group = KafkaGroup(name, self.ledger)
        group.committed = dict.fromkeys(range(len(self.ledger.logs)), (0, None))
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
            self.ledger.remove()
        if scheduler.strikes("rebalance", self.rebalances):
            group = scheduler.choice(self.ledger.groups)
            scheduler.later(group.lose if scheduler.chance(0.2) else group.rebalance, scheduler.choice((0, 0.5)))
