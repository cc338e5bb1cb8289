"""Applications that send and receive with Kafka, in every way that the library offers; and one run of them."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable
from typing import Any

import confluent_kafka as kafka

import claimcheck
from claimcheck.errors import ClaimCheckError, PartialSendError
from claimcheck.transports.kafka import AsyncKafkaConsumer, AsyncKafkaProducer, KafkaConsumer, KafkaProducer
from tests.harness.kafka_callbacks import TOPIC
from tests.simulation.kafka import (
    DEFINITE,
    AioClient,
    Broker,
    ConsumerClient,
    KafkaGroup,
    ProducerClient,
)
from tests.simulation.ledger import Sent
from tests.simulation.scheduler import CrashError, Loop, Process, Scheduler
from tests.simulation.store import open_store

STRATEGIES = ("external", "chunking", "hybrid")
CONFIGS = {
    strategy: claimcheck.from_dict(
        {
            "strategy": strategy,
            "threshold_bytes": 200,
            "hybrid": {"retry_store_after_seconds": 5},
            "chunking": {
                "max_message_bytes": 600, "expire_after_seconds": 30, "max_redeliveries": 1, "max_pending_payloads": 3,
            },
            "stores": {"m": {"type": "tests.simulation.store:SimulatedStore"}},
        }
    ).config
    for strategy in STRATEGIES
}  # fmt: skip
COMMITS = ("auto", "stored", "message", "store message", "position")
CALM = 60  # rounds without faults, after which everything must have ended


class Actor:
    """A process that runs an application, and is started again when it has died."""

    crashes = 0.0

    def __init__(self, broker: Any, name: str) -> None:
        self.broker, self.scheduler, self.name = broker, broker.scheduler, name
        self.busy = False
        self.start()

    def start(self) -> None:
        self.process = Process(self.scheduler, self.name, 0.0)
        self.open()
        self.process.crashes = self.crashes

    def open(self) -> None:
        raise NotImplementedError

    def act(self) -> None:
        raise NotImplementedError

    def end(self) -> None:
        """Clean up after the process that has died."""

    def restart(self) -> None:
        self.end()
        self.start()

    def step(self) -> None:
        """Do one thing, unless this actor is in the middle of another one."""
        if self.busy:
            return
        self.busy = True
        try:
            self.act()
        except CrashError:
            self.restart()
        finally:
            self.busy = False

    def configured(self, strategy: str) -> Any:
        cc = claimcheck.ClaimCheck(CONFIGS[strategy])
        self.store = open_store(cc, self.broker.medium, self.process)
        return cc


class Sender(Actor):
    """Sends through a wrapper, a decorated function or a block."""

    crashes = 0.004
    faults = 0.03

    def open(self) -> None:
        self.again: list[tuple[bytes, bytes]] = []
        self.cc = self.configured(self.scheduler.choice(STRATEGIES))
        idempotent = self.scheduler.chance(0.5)
        self.client = ProducerClient(self.broker, self.process, self.faults, is_idempotent=idempotent)
        self.send: Callable[[Sent], None] = self.scheduler.choice((self._wrapped, self._decorated, self._by_hand))
        if self.send == self._wrapped:
            window = self.scheduler.choice((1, 700, 1 << 20))
            self.producer: Any = KafkaProducer(self.client, self.cc)  # type: ignore[arg-type]
            self.producer._window_bytes, self.producer._room_seconds = window, 2

    def end(self) -> None:
        for sent in self.broker.sent:
            if sent.outcome == "open" and sent.number in self._mine:
                sent.outcome = "unknown"
        self.broker.given_up -= self._mine

    def act(self) -> None:
        value, sent = None, self.broker.new_payload()
        if self.again:
            value, sent.content = self.again.pop()
        self._mine.add(sent.number)
        self.client.owner = self.store.owner = sent.number
        try:
            self.send(sent) if value is None else self._wrapped(sent, value)
        except PartialSendError:
            self.broker.given_up.add(sent.number)
            sent.outcome = "unknown"
        except (ClaimCheckError, BufferError):
            sent.outcome = "failed"
        except kafka.KafkaException as error:
            sent.outcome = _outcome(error.args[0], is_wrapped=self.send not in (self._decorated, self._by_hand))

    @functools.cached_property
    def _mine(self) -> set[int]:
        return set()

    def finish(self) -> None:
        """Wait for all reports, and close."""
        if self.send == self._wrapped:
            self.producer.flush(-1)
            self.producer.close()
        self.client.close()

    def _wrapped(self, sent: Sent, value: bytes | None = None) -> None:
        """Send a payload, or the value of a report once more, as applications do after an error."""

        def told(error: Any, report: Any) -> None:
            sent.outcome = "sent" if error is None else _outcome(error)
            if error is not None:
                self.broker.given_up.add(sent.number)
                if report.value() is not None and self.scheduler.chance(0.5):
                    self.again.append((report.value(), sent.content))

        key = self.scheduler.choice((None, b"k"))
        self.producer.produce(TOPIC, sent.content if value is None else value, key, on_delivery=told)
        if self.scheduler.chance(0.5):
            self.producer.poll(self.scheduler.choice((0, 0.1)))

    def _decorated(self, sent: Sent) -> None:
        @self.cc.offload(payload="value", destination="topic", key="key", headers="headers")
        def publish(topic: str, value: Any, key: Any = None, headers: Any = None) -> None:
            self._produce(value, key, headers)

        publish(TOPIC, sent.content)
        sent.outcome = "sent"

    def _by_hand(self, sent: Sent) -> None:
        with self.cc.outbound(sent.content, destination=TOPIC) as out:
            out.send(lambda envelope: self._produce(envelope.data, envelope.key, envelope.headers))
        sent.outcome = "sent"

    def _produce(self, value: Any, key: Any, headers: Any) -> None:
        """Produce one record, and wait for its report."""
        errors: list[Any] = []
        partition = self.client.owner % len(self.broker.low)
        self.client.produce(
            TOPIC, value, key, partition, on_delivery=lambda error, _: errors.append(error), headers=headers
        )
        self.client.flush()
        if errors[0] is not None:
            raise kafka.KafkaException(errors[0])


class AsyncSender(Sender):
    """Sends through the asyncio wrapper; its task may be cancelled."""

    def open(self) -> None:
        self.loop, self.again = Loop(self.scheduler), []
        self.cc = self.configured(self.scheduler.choice(STRATEGIES))
        self.client = ProducerClient(self.broker, self.process, self.faults, is_idempotent=True)

        async def made() -> Any:
            producer = AsyncKafkaProducer(AioClient(self.client), self.cc)  # type: ignore[arg-type]
            producer._blocking._room_seconds = 2
            return producer

        self.producer = self.loop.run_until_complete(made())
        self.send = self._send

    def _send(self, sent: Sent) -> None:
        self.loop.run_until_complete(self._produce_and_wait(sent))

    async def _produce_and_wait(self, sent: Sent) -> None:
        task = asyncio.ensure_future(self.producer.produce(TOPIC, sent.content, b"k"))
        if self.scheduler.strikes("produce is cancelled", 0.1):
            for _ in range(self.scheduler.random.randrange(4)):
                await asyncio.sleep(0)
            task.cancel()
        sent.outcome = "unknown"
        with contextlib.suppress(asyncio.CancelledError):
            future = await task
            sent.outcome = "open"
            future.add_done_callback(functools.partial(_told_by_future, sent))
        if self.scheduler.chance(0.3):
            await self.producer.flush()

    def finish(self) -> None:
        self.loop.run_until_complete(self.producer.flush())
        self.loop.run_until_complete(self.producer.close())

    def end(self) -> None:
        super().end()
        self.loop.abandon()


class Receiver(Actor):
    """Receives with a wrapped consumer, and commits in one of several ways."""

    crashes = 0.002

    def __init__(self, broker: Broker, group: KafkaGroup, name: str, options: dict[str, Any]) -> None:
        self.group, self.options = group, options
        super().__init__(broker, name)

    def open(self) -> None:
        self.client = ConsumerClient(self.group, self.process, self.options)
        self.consumer: Any = self._consumer()
        self.listen()

    def _consumer(self) -> Any:
        options = {name: self.options[name] for name in ("auto_offset_store", "prefetch_bytes")}
        return KafkaConsumer(self.client, self.configured("external"), clock=self.scheduler.clock, **options)  # type: ignore[arg-type]

    def listen(self) -> None:
        self.consumer.subscribe([TOPIC], on_revoke=self._revoked)

    def end(self) -> None:
        self.group.is_orderly = False
        self.group.leave(self.client)

    def act(self) -> None:
        chance = self.scheduler.random.random()
        with contextlib.suppress(kafka.KafkaException, RuntimeError):
            if chance < 0.03:
                self._seek()
            elif chance < 0.06:
                self._pause()
            elif chance < 0.08:
                self._call(self.consumer.unsubscribe)
                self.receive(0.5)
                self.listen()
            elif chance < 0.09:
                self._restart()
            else:
                self.receive(self.scheduler.choice((0, 0.1, 1, 5)))

    def receive(self, seconds: float) -> int:
        count = self.options["count"]
        received = (
            self._call(self.consumer.consume, count, seconds)
            if count > 1
            else [self._call(self.consumer.poll, seconds)]
        )
        messages = [message for message in received if message is not None]
        for message in messages:
            if message.error() is not None:
                self._go_to(message.partition(), self.broker.low[message.partition()])
                continue
            self._check_place(message)
            unit = self.broker.unit_at(message.partition(), message.offset())
            self.broker.returned(self.group, unit, (message.partition(), message.offset()), message, self.process)
        if messages and messages[-1].error() is None:
            self.commit(messages[-1])
        return len(messages)

    def commit(self, message: Any) -> None:
        how = self.options["commit"]
        if how == "stored" and self.scheduler.chance(0.4):
            self._call(self.consumer.commit, asynchronous=False)
        elif how == "message":
            self._call(self.consumer.commit, message=message, asynchronous=self.scheduler.chance(0.5))
        elif how == "store message":
            self._call(self.consumer.store_offsets, message)
        elif how == "position":
            self._commit_position()

    def finish(self) -> int:
        """Read on without faults, and commit everything that may be committed."""
        received = 0
        with contextlib.suppress(kafka.KafkaException):
            if self.client not in self.group.members:  # an error kept it from subscribing again
                self.listen()
            self._call(self.consumer.resume, self.client.assignment())
            received = self.receive(1.0)
            self._commit_position()
        return received

    def _commit_position(self) -> None:
        positions = self._call(self.consumer.position, self.client.assignment())
        if known := [each for each in positions if each.offset >= 0]:
            self._call(self.consumer.commit, offsets=known, asynchronous=False)

    def _call(self, method: Any, *args: Any, **kwargs: Any) -> Any:
        return method(*args, **kwargs)

    def _check_place(self, message: Any) -> None:
        number = message.partition()
        if number not in self.client.positions and not self.client.closed:
            self.scheduler.violated(f"returned {number}@{message.offset()}, of a partition that was revoked before")
        if message.offset() < self.client.sought.get(number, 0):
            self.scheduler.violated(f"returned {number}@{message.offset()}, from before a seek")
        if number in self.client.paused:
            self.scheduler.violated(f"returned {number}@{message.offset()}, of a partition that is paused")

    def _revoked(self, consumer: Any, partitions: list[Any]) -> None:
        how = self.options["on_revoke"]
        with contextlib.suppress(kafka.KafkaException):
            if how == "commit":
                consumer.commit(asynchronous=False)
            elif how == "position" and (known := [each for each in consumer.position(partitions) if each.offset >= 0]):
                consumer.commit(offsets=known, asynchronous=False)

    def _seek(self) -> None:
        if not self.client.assignment():
            return
        number = self.scheduler.choice(sorted(self.client.positions))
        low, end = self.broker.low[number], len(self.broker.records[number])
        offset = self.scheduler.random.randint(low, end)
        self.group.is_orderly = False
        skipped = [
            unit for unit in self.broker.units if unit.source == number and unit.positions and unit.first < offset
        ]
        self.group.excused.update(skipped)
        self._go_to(number, offset)

    def _go_to(self, number: int, offset: int) -> None:
        self._call(self.consumer.seek, kafka.TopicPartition(TOPIC, number, offset))
        if number in self.client.positions:
            self.client.sought[number] = offset

    def _pause(self) -> None:
        self._call(self.consumer.pause, self.client.assignment())
        self.scheduler.wait(lambda: False, 0.5)
        self.receive(0.1)
        self._call(self.consumer.resume, self.client.assignment())

    def _restart(self) -> None:
        self._call(self.consumer.close)
        self.start()


class AsyncReceiver(Receiver):
    """The same with the asyncio wrapper; its task may be cancelled."""

    def open(self) -> None:
        self.loop = Loop(self.scheduler)
        super().open()

    def _consumer(self) -> Any:
        cc, options = self.configured("external"), {"auto_offset_store": self.options["auto_offset_store"]}

        async def made() -> Any:
            return AsyncKafkaConsumer(AioClient(self.client), cc, clock=self.scheduler.clock, **options)  # type: ignore[arg-type]

        return self.loop.run_until_complete(made())

    def listen(self) -> None:
        self._call(self.consumer.subscribe, [TOPIC])

    def end(self) -> None:
        super().end()
        self.loop.abandon()

    def _call(self, method: Any, *args: Any, **kwargs: Any) -> Any:
        async def call() -> Any:
            task = asyncio.ensure_future(method(*args, **kwargs))
            if method in (self.consumer.poll, self.consumer.consume) and self.scheduler.strikes(
                "receive is cancelled", 0.1
            ):
                asyncio.get_running_loop().call_later(self.scheduler.choice((0, 0.01, 0.3)), task.cancel)
            try:
                return await task
            except asyncio.CancelledError:
                return [] if method == self.consumer.consume else None

        return self.loop.run_until_complete(call())


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


class Run:
    """Actors that act in any order."""

    scheduler: Scheduler
    senders: list[Any]
    receivers: list[Any]

    def act(self) -> None:
        """Let some time pass, perhaps, and one actor act."""
        scheduler = self.scheduler
        if scheduler.chance(0.05):
            scheduler.wait(lambda: False, scheduler.choice((0.1, 3, 35)))
        scheduler.choice([*self.senders, *self.receivers]).step()
        for receiver in self.receivers:
            if receiver.consumer.pending_payloads > 3:
                scheduler.violated(f"{receiver.consumer.pending_payloads} payloads pending, and only 3 are allowed")

    def finish_sending(self) -> None:
        """Restart the actors that have died, and let all senders end."""
        for actor in (*self.senders, *self.receivers):
            if not actor.process.alive:
                actor.restart()
        for sender in self.senders:
            sender.finish()
        self.scheduler.wait(lambda: False, 5.0)  # what arrives after its timeout


class KafkaRun(Run):
    """One run: builds the actors, lets them act in any order, then lets everything end."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler, choice = scheduler, scheduler.choice
        self.broker = Broker(scheduler, choice((1, 1, 2)))
        self.broker.medium.fails = choice((0.0, 0.03, 0.1))
        sender = choice((Sender, Sender, Sender, AsyncSender))
        self.senders = [sender(self.broker, f"sender {n}") for n in range(choice((1, 2)))]
        self.receivers: list[Receiver] = []
        self.removal, self.spoiling = choice((0.0, 0.02, 0.1)), choice((0.0, 0.0, 0.03))
        self.rebalances = choice((0.0, 0.05, 0.1))
        for number in range(choice((1, 1, 2))):
            self._add_group(f"group {number}")

    def _add_group(self, name: str) -> None:
        choice = self.scheduler.choice
        group = KafkaGroup(name, broker=self.broker)
        group.committed = dict.fromkeys(range(len(self.broker.low)), (0, None))
        self.broker.groups.append(group)
        commit = choice(COMMITS)
        group.is_orderly = commit == "auto"  # the others may process what they do not commit in time
        options = {
            "commit": commit,
            "auto_offset_store": commit in ("auto", "stored"),
            "auto_commit": commit in ("auto", "store message"),
            "reset": choice(("earliest", "latest", "error")),
            "on_revoke": choice(("nothing", "commit", "position")),
            "count": choice((1, 1, 3, 20)),
            "prefetch_bytes": choice((None, 0, 2000)),
        }
        kind = choice((Receiver, Receiver, Receiver, AsyncReceiver))
        for number in range(choice((1, 1, 2))):
            self.receivers.append(kind(self.broker, group, f"{name} member {number}", options))

    def step(self) -> None:
        scheduler = self.scheduler
        if scheduler.strikes("retention", self.removal):
            self.broker.remove()
        if scheduler.strikes("payload is lost or damaged", self.spoiling):
            self.broker.medium.spoil()
        if scheduler.strikes("rebalance", self.rebalances):
            group: Any = scheduler.choice(self.broker.groups)
            scheduler.later(group.lose if scheduler.chance(0.3) else group.rebalance, scheduler.choice((0, 0.5)))
        self.act()

    def finish(self) -> None:
        self.finish_sending()
        self._calm_down(self.broker.is_at_rest)
        self.broker.append_markers()
        self._calm_down(lambda: self.broker.is_at_rest() and all(map(self._is_committed, self.broker.groups)))
        groups: list[Any] = self.broker.groups
        for group in groups:
            if not self._is_committed(group):
                self.scheduler.violated(f"{group.name} is held at {group.committed}")
        self.broker.check_at_rest()
        for receiver in self.receivers:
            receiver._call(receiver.consumer.close)

    def _calm_down(self, is_done: Callable[[], bool]) -> None:
        """Let all groups read on."""
        for _ in range(CALM):
            received = sum(receiver.finish() for receiver in self.receivers)
            for group in self.broker.groups:
                self.broker.read_again(group)
            if not received and is_done():
                return
            self.scheduler.wait(lambda: False, 6.0)

    def _is_committed(self, group: Any) -> bool:
        """Whether the group has committed everything: nothing holds its position."""
        return all(group.committed[number][0] == len(log) for number, log in enumerate(self.broker.records))
