"""Sweeps and garbage collections beside everything else that happens to payloads: nothing goes too early or stays."""

from __future__ import annotations

import contextlib
import tempfile
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from claimcheck._operate.gc import Collection, Run, Topics
from claimcheck._operate.sweep import Sweep
from claimcheck._store.contract import StoreContext
from claimcheck._wire.envelope import encode_pointer
from claimcheck._wire.pointer import Pointer, decode, encode
from claimcheck.config import HEADER
from claimcheck.stores.filesystem import FilesystemStore
from claimcheck.stores.memory import MemoryStore
from claimcheck.transports._common.topics import IncompleteReadError, TopicMessage, topics_to_read
from tests.clocks import Clock
from tests.hypothesis_examples import examples

GRACE = 10
TOPICS = ("orders", "orders.dlq")
PARTITIONS = {"orders": 2, "orders.dlq": 1, "payments": 1}
LIFETIMES = st.sampled_from([None, 20, 200])
MOVES = st.lists(st.sampled_from("-mr"), min_size=3, max_size=9)
SCRIPTS = MOVES | st.lists(st.sampled_from("---mmrrwWbstTxcSgk"), max_size=14)


class Killed(BaseException):
    """The process of a collection or a sweep ended here."""


class Interleaved:
    """Something else happens before each listed entry is returned, and before each one is deleted."""

    pause: Callable[[], object] = staticmethod(lambda: None)

    def _scan(self):
        for entry in super()._scan():
            self.pause()
            yield entry

    def _discard(self, entries):
        for entry in entries:
            self.pause()
            yield from super()._discard([entry])


class InMemory(Interleaved, MemoryStore):
    pass


class InFolder(Interleaved, FilesystemStore):
    pass


# A model of topics: transactions, groups, retention, messages that move, and a reader for garbage collection -----

Place = tuple[str, int]
GROUPS = ("fast", "slow")


@dataclass(eq=False)
class Message:
    value: bytes
    state: Literal["open", "committed", "aborted"] = "committed"


@dataclass
class Log:
    """One partition; any message can be deleted, as compaction, retention and acknowledgements do together."""

    messages: dict[int, Message] = field(default_factory=dict)
    end: int = 0
    committed: dict[str, int] = field(default_factory=lambda: dict.fromkeys(GROUPS, 0))

    def append(self, message: Message) -> None:
        self.messages[self.end] = message
        self.end += 1

    def consume(self, group: str) -> None:
        waiting = [offset for offset, message in self.messages.items() if message.state == "open"]
        self.committed[group] = max(self.committed[group], min(waiting, default=self.end))

    @property
    def floor(self) -> int:
        """Below it, every group has read everything."""
        return min(self.committed.values(), default=0)


class Broker:
    """Topics with partitions."""

    def __init__(self, **topics: int) -> None:
        self.logs = {(topic, number): Log() for topic, count in topics.items() for number in range(count)}

    def readable(self, *, consumed: bool) -> Iterator[bytes]:
        """Yield what a group can still read, or if not ``consumed``, any reader."""
        for log in self.logs.values():
            for offset, message in log.messages.items():
                if message.state == "committed" and (not consumed or offset >= log.floor):
                    yield message.value

    def move(self, origin: str, to: str) -> None:
        """Append a copy of the oldest message that the groups have not read, then delete the original."""
        for (topic, _), log in self.logs.items():
            left = [each for each in log.messages if each >= log.floor and log.messages[each].state == "committed"]
            if topic == origin and left:
                self.logs[to, 0].append(Message(log.messages[left[0]].value))
                del log.messages[left[0]]
                return


class ModelTopics(Topics):
    """Reads a model broker for a garbage collection; something else happens before each partition and message."""

    def __init__(self, broker: Broker, topics: tuple[str, ...], *, consumed: bool, pause: Callable[[], None]) -> None:
        self.topics = topics
        self._broker, self._pause = broker, pause
        self._floors = {place: log.floor if consumed else 0 for place, log in broker.logs.items()}
        self._next: dict[Place, int] = {}

    def cluster(self) -> str:
        return "model"

    def known(self) -> list[str]:
        return sorted({topic for topic, _ in self._broker.logs})

    def names(self, topic: str) -> list[str]:
        return [topic]

    def read(self) -> Iterator[TopicMessage]:
        read = topics_to_read(self.topics, self.known())
        logs = {place: log for place, log in self._broker.logs.items() if place[0] in read}
        starts, ends = self._next, {place: log.end for place, log in logs.items()}
        for place, log in logs.items():
            self._pause()
            for offset in range(starts.get(place, self._floors[place]), ends[place]):
                self._pause()
                message = log.messages.get(offset)
                if message is not None:
                    yield TopicMessage(place[0], f"offset {offset}", message.value)
                elif starts:
                    raise IncompleteReadError(f"{place}: offset {offset} was deleted before it was read")
        self._next = ends


# Garbage collections ---------------------------------------------------------------------------------------------


class Life(RuleBasedStateMachine):
    """One store, one broker, and all that happens to payloads and messages.

    Every message that a group can read has its payload, within its lifetime.
    """

    consumed = False
    topics: tuple[str, ...] = TOPICS

    @initialize()
    def open(self) -> None:
        self.clock = Clock()
        self.broker = Broker(**PARTITIONS)
        self.store = self.new_store()
        self.store.context = StoreContext(clock=self.clock)
        self.store.pause = self.pause
        self.written: dict[str, Pointer] = {}
        self.events: Iterator[str] = iter(())
        self.pending: list[tuple[float, str, Pointer]] = []
        self.open_transactions: list[Message] = []

    def new_store(self) -> InMemory | InFolder:
        return InMemory(space=str(uuid.uuid4()))

    # Writers ---------------------------------------------------------------------------------------------------

    def write(self, topic: str, lifetime: int | None) -> Pointer:
        self.store.ttl_seconds = lifetime
        pointer = self.store.write(b"payload", destination=topic)
        self.written[pointer.key] = pointer
        return pointer

    def send(self, topic: str, pointer: Pointer, state: Any = "committed") -> Message:
        message = Message(encode_pointer(encode(pointer)), state)
        number = len(pointer.key) % PARTITIONS[topic]
        self.broker.logs[topic, number].append(message)
        return message

    @rule(topic=st.sampled_from(sorted(PARTITIONS)), lifetime=LIFETIMES)
    def write_and_send(self, topic: str, lifetime: int | None) -> None:
        self.send(topic, self.write(topic, lifetime))

    @rule(lifetime=LIFETIMES)
    def write_with_unknown_outcome(self, lifetime: int | None) -> None:
        """The message never arrived; nobody deletes the payload."""
        self.write("orders", lifetime)

    @rule()
    def write_and_roll_back(self) -> None:
        pointer = self.write("orders", None)
        del self.written[pointer.key]
        self.store.rollback(pointer)

    @rule(topic=st.sampled_from(sorted(PARTITIONS)), lifetime=LIFETIMES)
    def write_slowly(self, topic: str, lifetime: int | None) -> None:
        """It is sent when the grace period ends at the latest."""
        self.pending.append((self.clock() + GRACE, topic, self.write(topic, lifetime)))

    @rule()
    def begin_transaction(self) -> None:
        self.open_transactions.append(self.send("orders", self.write("orders", None), "open"))

    @rule(state=st.sampled_from(["committed", "aborted"]))
    def end_transaction(self, state: Any) -> None:
        if self.open_transactions:
            self.open_transactions.pop(0).state = state

    @rule()
    def send_late(self) -> None:
        if self.pending:
            _, topic, pointer = self.pending.pop(0)
            self.send(topic, pointer)

    @rule(seconds=st.sampled_from([0.4, 1, 5, GRACE - 0.5, GRACE + 1, 100]))
    def wait(self, seconds: float) -> None:
        """Time passes; slow senders send at the last moment."""
        end = self.clock() + seconds
        while self.pending and self.pending[0][0] <= end:
            self.clock.now = max(self.clock.now, self.pending[0][0])
            self.send_late()
        self.clock.now = end

    # The broker and its readers --------------------------------------------------------------------------------

    @rule(place=st.sampled_from([("orders", 0), ("orders", 1)]), group=st.sampled_from(["fast", "slow"]))
    def consume(self, place: tuple[str, int], group: str) -> None:
        """Read and commit everything up to the first transaction that has not ended."""
        self.broker.logs[place].consume(group)

    @rule(place=st.sampled_from([("orders", 0), ("orders", 1), ("orders.dlq", 0), ("payments", 0)]))
    def retain(self, place: tuple[str, int]) -> None:
        """Retention deletes the oldest message, whoever has read it."""
        messages = self.broker.logs[place].messages
        for offset in sorted(messages)[:1]:
            del messages[offset]

    @rule()
    def dead_letter(self) -> None:
        self.broker.move("orders", "orders.dlq")

    @rule()
    def redrive(self) -> None:
        self.broker.move("orders.dlq", "orders")

    @rule()
    def sweep(self) -> None:
        with self.undisturbed():
            Sweep(grace_seconds=GRACE, dry_run=False, clock=self.clock).run(self.store)

    # Collections -----------------------------------------------------------------------------------------------

    @rule(script=SCRIPTS)
    def collect(self, script: list[str]) -> None:
        """Collect while other things happen, one at each step of listing, reading and deleting."""
        self.events = iter(script)
        with contextlib.suppress(Killed, IncompleteReadError):
            self.collect_to_the_end()
        self.events = iter(())

    def collect_to_the_end(self) -> None:
        options = Collection(grace_seconds=GRACE, dry_run=False, force=True, claim=True, clock=self.clock)
        topics = ModelTopics(self.broker, self.topics, consumed=self.consumed, pause=self.pause)
        for _ in Run(options, [self.store], topics).steps():
            pass

    def pause(self) -> None:
        {
            "-": lambda: None,
            "m": self.dead_letter,
            "r": self.redrive,
            "w": lambda: self.write_and_send("orders", None),
            "W": lambda: self.write_slowly("orders", None),
            "s": self.send_late,
            "t": lambda: self.wait(1),
            "T": lambda: self.wait(GRACE + 1),
            "x": lambda: self.retain(("orders", 0)),
            "c": lambda: [self.consume(("orders", 0), group) for group in ("fast", "slow")],
            "b": self.write_and_roll_back,
            "S": self.sweep,
            "g": self.collect_undisturbed,
            "k": self.die,
        }[next(self.events, "-")]()

    def collect_undisturbed(self) -> None:
        with self.undisturbed():
            self.collect_to_the_end()

    @contextlib.contextmanager
    def undisturbed(self) -> Iterator[None]:
        events, self.events = self.events, iter(())
        yield
        self.events = events

    def die(self) -> None:
        raise Killed

    # What has to hold ------------------------------------------------------------------------------------------

    @invariant()
    def nothing_went_too_early(self) -> None:
        for value in self.broker.readable(consumed=self.consumed):
            pointer = decode(value[len(HEADER) + 1 :])
            if pointer.expires_ms is None or self.clock() * 1000 < pointer.expires_ms:
                assert self.store.read(pointer) == b"payload"

    @rule()
    def nothing_stays(self) -> None:
        """When everything is quiet, a collection leaves only payloads that a message points at, or of other topics."""
        while self.open_transactions:
            self.end_transaction("committed")
        self.wait(GRACE + 2)
        self.collect_undisturbed()
        logs = self.broker.logs.values()
        pointed = {
            decode(message.value[len(HEADER) + 1 :]).key
            for log in logs
            for offset, message in log.messages.items()
            if not self.consumed or offset >= log.floor
        }
        left = {entry.key for entry in self.store.scan()} - pointed
        assert not any(key.startswith(f"{topic}-") for key in left for topic in self.topics)


class LifeOfConsumed(Life):
    """The collection also deletes what every group has read."""

    consumed = True


class LifeOfDeadLetters(Life):
    """Only the dead-letter topic is named; its messages may be redriven to the other one, and come back."""

    topics = ("orders.dlq",)


class LifeOfSwept(Life):
    """Only sweeps, of a folder: every pointer that was not rolled back is readable for its lifetime and the grace."""

    def new_store(self) -> InFolder:
        self.folder = tempfile.TemporaryDirectory(prefix="claimcheck-sweep-")
        return InFolder(path=self.folder.name)

    def collect_to_the_end(self) -> None:
        Sweep(grace_seconds=GRACE, dry_run=False, clock=self.clock).run(self.store)

    @invariant()
    def nothing_went_too_early(self) -> None:
        for key, pointer in list(self.written.items()):
            if pointer.expires_ms is None or self.clock() * 1000 < pointer.expires_ms + GRACE * 1000:
                assert self.store.read(pointer) == b"payload"
            else:
                del self.written[key]

    @rule()
    def nothing_stays(self) -> None:
        """After all lifetimes, one sweep leaves only payloads without one."""
        self.wait(1000)
        self.collect_undisturbed()
        assert all(entry.expires_ms is None and entry.has_lifetime for entry in self.store.scan())

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.folder.cleanup()


TestLife = Life.TestCase
TestLife.settings = examples(600, stateful_step_count=30)
TestLifeOfConsumed = LifeOfConsumed.TestCase
TestLifeOfConsumed.settings = examples(400, stateful_step_count=30)
TestLifeOfDeadLetters = LifeOfDeadLetters.TestCase
TestLifeOfDeadLetters.settings = examples(300, stateful_step_count=30)
TestLifeOfSwept = LifeOfSwept.TestCase
TestLifeOfSwept.settings = examples(600, stateful_step_count=30)
