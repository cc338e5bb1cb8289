"""The hooks of the conformance kit for transports, and the harness that calls them."""

from __future__ import annotations

import contextlib
import random
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar, cast

import pytest

from claimcheck._client import ClaimCheck, from_dict
from claimcheck._wire.envelope import encode_chunk, encode_pointer
from claimcheck._wire.pointer import encode as encode_pointer_data
from claimcheck.errors import ClaimCheckError
from claimcheck.hooks import Event
from claimcheck.stores.memory import MemoryStore
from claimcheck.testing import FaultyStore

_POLL_SECONDS = 0.02  # a broker sends no event about its backlog

Test = TypeVar("Test", bound=Callable[..., None])


class Clock:
    """Monotonic time plus the seconds that a test adds, so that no test waits for an expiry."""

    def __init__(self) -> None:
        self._added = 0.0

    def __call__(self) -> float:
        """Return monotonic seconds."""
        return time.monotonic() + self._added

    def advance(self, seconds: float) -> None:
        """Advance the clock."""
        self._added += seconds


@dataclass(frozen=True, slots=True)
class Facts:
    """The metadata of a received message, in the same form for all transports.

    Attributes:
        topic: The topic's name in the kit.
        partition: From 0; 0 where the topic is not partitioned.
        position: What `TransportKit.append` returned for the message, hashable; of a chunked payload the lowest.
        key: The key as bytes, or ``None``.
        headers: Names and values, as bytes.
    """

    topic: str
    partition: int
    position: Any
    key: bytes | None
    headers: Sequence[tuple[str, bytes]]


def requires(*capabilities: str) -> Callable[[Test], Test]:
    """Skip a test if the transport lacks a capability; ``nack`` stands for ``has_nack``."""

    def mark(test: Test) -> Test:
        test.__dict__["requires"] = capabilities
        return test

    return mark


class TransportKit:
    """The hooks that an author overrides, and the fixtures that the tests use.

    Producers, consumers and messages are the transport's own objects, which the kit only passes on.

    Attributes:
        skip: Tests that this transport cannot pass, with the reason for each; the report shows them as skipped.
        limit_bytes: The largest message that the topics of the kit accept.
        patience_seconds: The time limit for a message to arrive, and for an acknowledgment to appear in `backlog`.
        refusal: The exception that `send_refused` raises.
        unknown: The exception that `send_unknown` raises.
        header_shapes: The shapes of headers that producers accept: ``mapping``, ``pairs``.
        key_types: The types of keys that producers accept.
        acks_are_immediate: Whether the broker has an acknowledgment when `acknowledge` returns. Otherwise the kit
            tolerates redeliveries until `backlog` is 0.
        has_nack: Whether a single payload can be acknowledged negatively; see `give_back`.
        has_dead_letters: Whether there is a destination for dead letters.
        has_counted_redeliveries: Whether what was redelivered too often goes there without being asked.
        has_seek: Whether consumers can seek.
        has_look_ahead: Whether consumers can read stored payloads ahead.
        has_lazy_payloads: Whether a stored payload is read when the application requests it, not when it is received.
        has_open_producers: Whether producers must be closed, and send in the background.
        closed: The exception that a closed producer raises, and perhaps a second `close`.
    """

    skip: ClassVar[dict[str, str]] = {}
    limit_bytes: ClassVar[int] = 10_000
    patience_seconds: ClassVar[float] = 10.0
    refusal: ClassVar[type[BaseException]] = ClaimCheckError
    unknown: ClassVar[type[BaseException]] = ClaimCheckError
    header_shapes: ClassVar[tuple[str, ...]] = ("mapping", "pairs")
    key_types: ClassVar[tuple[type, ...]] = (bytes, str)
    acks_are_immediate: ClassVar[bool] = True
    has_nack: ClassVar[bool] = True
    has_dead_letters: ClassVar[bool] = True
    has_counted_redeliveries: ClassVar[bool] = True
    has_seek: ClassVar[bool] = True
    has_look_ahead: ClassVar[bool] = True
    has_lazy_payloads: ClassVar[bool] = True
    has_open_producers: ClassVar[bool] = True
    closed: ClassVar[type[BaseException]] = RuntimeError

    # Hooks -----------------------------------------------------------------------------------------------------

    @pytest.fixture
    def broker(self, clock: Clock) -> Any:
        """Connect to a broker, keep on ``self`` what the hooks need, and disconnect after the test."""
        raise NotImplementedError("override the fixture `broker`")

    def create_topic(self, topic: str, partitions: int) -> None:
        """Create an empty topic that accepts messages of up to ``limit_bytes``."""
        raise NotImplementedError

    def open_producer(self, cc: ClaimCheck, topic: str) -> Any:
        """Open a wrapped producer for one topic."""
        raise NotImplementedError

    def send(self, producer: Any, topic: str, payload: Any, *, key: Any, headers: Any) -> None:
        """Send one payload. Return when it is in the topic, or raise the application's exception."""
        raise NotImplementedError

    def begin(self, producer: Any, topic: str, payload: Any) -> None:
        """Begin to send a payload, and do not wait for the broker; only for ``has_open_producers``."""
        raise NotImplementedError

    def flush(self, producer: Any) -> None:
        """Wait until all that was begun is in the topic; only for ``has_open_producers``."""
        producer.flush()

    def send_refused(self, cc: ClaimCheck, topic: str, payload: bytes) -> None:
        """Send a payload over the limit so that the broker or the client definitely rejects it. Raises ``refusal``."""
        raise NotImplementedError

    def send_unknown(self, cc: ClaimCheck, topic: str, payload: bytes) -> None:
        """Send a payload through a wrapped producer so that its outcome is unknown. Raises ``unknown``."""
        raise NotImplementedError

    def append(self, topic: str, data: bytes | None, *, key: str | None, headers: dict[str, str], writer: str) -> Any:
        """Append one message to partition 0 with the native client of this writer, and return its position."""
        raise NotImplementedError

    def messages(self, topic: str) -> list[bytes | None]:
        """Read the values of all messages in a topic with the native client, outside of any group."""
        raise NotImplementedError

    def open_consumer(
        self, cc: ClaimCheck, topic: str, *, clock: Callable[[], float], look_ahead: bool | None, dead_letters: bool
    ) -> Any:
        """Open a wrapped consumer of one topic, in the same group for each consumer of this topic.

        A new group begins at the topic's first message. Only `acknowledge` acknowledges, and negatively acknowledged
        messages are redelivered as soon as possible. ``look_ahead`` is ``None`` for the wrapper's default; with
        ``dead_letters`` there is a destination for them, for payloads after two redeliveries if these are counted.
        """
        raise NotImplementedError

    def receive(self, consumer: Any, seconds: float) -> Any:
        """Wait for the next message; return ``None`` after the timeout."""
        raise NotImplementedError

    def payload_of(self, message: Any) -> Any:
        """Return the payload of a received message, ``None`` for a tombstone, or raise the message's error."""
        raise NotImplementedError

    def facts_of(self, topic: str, message: Any) -> Facts:
        """The metadata of a received message."""
        raise NotImplementedError

    def acknowledge(self, consumer: Any, message: Any) -> None:
        """Acknowledge one message, or commit up to it."""
        raise NotImplementedError

    def give_back(self, consumer: Any, message: Any) -> None:
        """Acknowledge one message negatively: it is redelivered."""
        raise NotImplementedError

    def dead_letter(self, consumer: Any, message: Any) -> None:
        """Send one message to the dead letters and acknowledge it."""
        raise NotImplementedError

    def dead_letters(self, topic: str) -> list[bytes | None]:
        """Read the values of all dead letters of a topic."""
        raise NotImplementedError

    def seek(self, consumer: Any, topic: str, position: Any) -> None:
        """Seek so that the next message is the one that `append` wrote at this position."""
        raise NotImplementedError

    def backlog(self, topic: str) -> int:
        """Return how many messages are not acknowledged, or lie behind the committed offset."""
        raise NotImplementedError

    def close(self, opened: Any) -> None:
        """Close a producer, a consumer or a client, unless it is closed."""
        with contextlib.suppress(self.closed, ValueError):
            self.run(opened.close())

    # With them -------------------------------------------------------------------------------------------------

    def run(self, result: Any) -> Any:
        """Return the result of a client's call; `AsyncioConformance` runs a coroutine."""
        return result

    def send_and_close(self, producer: Any, topic: str, payload: Any, *, headers: Any = None) -> None:
        """Send one payload with a producer that nothing else uses."""
        try:
            self.send(producer, topic, payload, key=None, headers=headers)
        finally:
            self.close(producer)

    # Fixtures --------------------------------------------------------------------------------------------------

    @pytest.fixture(autouse=True)
    def _declared_opt_outs(self, request: pytest.FixtureRequest) -> None:
        if request.function.__name__ in self.skip:
            pytest.skip(self.skip[request.function.__name__])
        for capability in getattr(request.function, "requires", ()):
            if not getattr(self, f"has_{capability}"):
                pytest.skip(f"has_{capability} is False")

    @pytest.fixture
    def clock(self) -> Clock:
        """The clock of consumers."""
        return Clock()

    @pytest.fixture
    def harness(self, broker: Any, clock: Clock) -> Iterator[Harness]:
        """A topic with one partition, its producers and its consumer; closed after the test."""
        with contextlib.ExitStack() as stack:
            harness = Harness(self, clock, stack)
            self.create_topic(harness.topic, 1)
            yield harness


class Harness:
    """One topic with its producers and its consumer, opened at first use."""

    def __init__(self, kit: TransportKit, clock: Clock, stack: contextlib.ExitStack) -> None:
        self.topic = f"conformance-{uuid.uuid4().hex}"
        self.clock = clock
        self.events: list[Event] = []
        self.config: dict[str, Any] = {}  # of all writers and readers, if it is set before the first one opens
        self._kit = kit
        self._stack = stack
        self._producers: dict[str, Any] = {}
        self._writers: dict[str, ClaimCheck] = {}
        self._reader: ClaimCheck | None = None
        self._consumer: Any = None
        self._options: dict[str, Any] = {}
        self._acknowledged: dict[tuple[int, Any], bool] = {}  # by place: whether the broker confirmed it

    # Writing ---------------------------------------------------------------------------------------------------

    def configure(self, strategy: str = "external", **more: Any) -> ClaimCheck:
        """Open a configuration; all of them share one `FaultyStore`."""
        store = {"type": "claimcheck.testing:FaultyStore", "store": {"type": "memory", "space": self.topic}}
        raw = {"strategy": strategy, "stores": {"kit": store}, **self.config, **more}
        return self._stack.enter_context(from_dict(raw, hooks=[self.events.append]))

    def writer(self, strategy: str) -> ClaimCheck:
        """Return the configuration of the producer with this strategy."""
        if strategy not in self._writers:
            self._writers[strategy] = self.configure(strategy)
        return self._writers[strategy]

    def send(self, *payloads: Any, strategy: str = "external", key: Any = None, headers: Any = None) -> None:
        """Send payloads, one after the other."""
        producer = self.producer(strategy)
        for payload in payloads:
            self._kit.send(producer, self.topic, payload, key=key, headers=headers)

    def producer(self, strategy: str = "external") -> Any:
        """Return the transport's own producer with this strategy."""
        if strategy not in self._producers:
            self._producers[strategy] = self._kit.open_producer(self.writer(strategy), self.topic)
            self._stack.callback(self._kit.close, self._producers[strategy])
        return self._producers[strategy]

    def append(
        self, *messages: bytes | None, writer: str = "one", key: str | None = "", headers: dict[str, str] | None = None
    ) -> list[Any]:
        """Append messages unchanged and return their positions; the default key is the writer's name."""
        named = writer if key == "" else key
        return [
            self._kit.append(self.topic, message, key=named, headers=headers or {}, writer=writer)
            for message in messages
        ]

    def gone_pointer(self, *, store: str = "kit") -> bytes:
        """Return a pointer envelope whose payload was deleted."""
        kit_store = self.writer("external").store("kit")
        pointer = kit_store.write(b"gone", destination=self.topic)
        kit_store.rollback(pointer)
        return encode_pointer(encode_pointer_data(replace(pointer, store=store)))

    @property
    def stored(self) -> int:
        """The number of payloads in the store."""
        return len(cast("MemoryStore", faulty(self.writer("external")).inner)._payloads)

    # Reading ---------------------------------------------------------------------------------------------------

    def subscribe(self, *, look_ahead: bool | None = False, dead_letters: bool = False, **config: Any) -> None:
        """Open the consumer with this configuration."""
        self._reader = self.configure("external", **config)
        self._options = {"look_ahead": look_ahead, "dead_letters": dead_letters}
        self.restart()

    def restart(self) -> None:
        """Close the consumer and open another one in its group."""
        if self._consumer is not None:
            self._kit.close(self._consumer)
        if self._reader is None:
            self._reader = self.configure("external")
        options = {"look_ahead": False, "dead_letters": False, **self._options}
        self._consumer = self._kit.open_consumer(self._reader, self.topic, clock=self.clock, **options)
        self._stack.callback(self._kit.close, self._consumer)

    @property
    def consumer(self) -> Any:
        """The transport's own consumer."""
        if self._consumer is None:
            self.restart()
        return self._consumer

    @property
    def reader_store(self) -> FaultyStore:
        """The store as the consumer sees it."""
        assert self.consumer is not None
        assert self._reader is not None
        return faulty(self._reader)

    def receive(self) -> Any:
        """Receive one message that is not acknowledged yet; the test fails if none arrives."""
        while True:
            message = self._kit.receive(self.consumer, self._kit.patience_seconds)
            assert message is not None, f"no message arrived within {self._kit.patience_seconds} s"
            if (place := self._place(message)) not in self._acknowledged:
                return message
            if self._kit.acks_are_immediate or self._acknowledged[place]:
                pytest.fail(f"{self.facts(message)} was acknowledged and redelivered")
            self._kit.acknowledge(self.consumer, message)

    def payload(self, message: Any) -> Any:
        """Return the payload of a message, or the error that it raises."""
        try:
            return self._kit.payload_of(message)
        except ClaimCheckError as error:
            return error

    def take(self, count: int = 1) -> list[Any]:
        """Receive and acknowledge messages; return their payloads, or the errors that they raise."""
        payloads = []
        for _ in range(count):
            message = self.receive()
            payloads.append(self.payload(message))
            self.acknowledge(message)
        return payloads

    def facts(self, message: Any) -> Facts:
        """The metadata of a message."""
        return self._kit.facts_of(self.topic, message)

    def acknowledge(self, message: Any) -> None:
        """Acknowledge a message."""
        self._kit.acknowledge(self.consumer, message)
        self._acknowledged[self._place(message)] = False

    def seek(self, position: Any) -> None:
        """Seek to a position; all messages from there on may be redelivered."""
        self._kit.seek(self.consumer, self.topic, position)
        self._acknowledged.clear()

    def busy_until(self, done: Callable[[list[Any]], bool], *, step_seconds: float) -> list[Any]:
        """Append plain messages and advance the clock until a condition is true."""
        end, others = time.monotonic() + self._kit.patience_seconds, list[Any]()
        while not done(others):
            assert time.monotonic() < end, f"only {others} arrived in addition to plain messages"
            self.append(f"traffic {uuid.uuid4()}".encode())
            others += [payload for payload in self.take() if not self._is_traffic(payload)]
            self.clock.advance(step_seconds)
        return others

    def _is_traffic(self, payload: Any) -> bool:
        return isinstance(payload, bytes) and payload.startswith(b"traffic ")

    def _place(self, message: Any) -> tuple[int, Any]:
        facts = self.facts(message)
        return facts.partition, facts.position

    # Afterwards ------------------------------------------------------------------------------------------------

    def assert_finished(self) -> None:
        """Assert that no other message is delivered, and that the group's backlog reaches 0."""
        last = f"end {uuid.uuid4()}".encode()
        self.append(last)
        unexpected = []
        while (payload := self.take()[0]) != last:
            if not self._is_traffic(payload):
                unexpected.append(payload)
        assert unexpected == []
        self.assert_backlog(lambda count: count == 0)

    def assert_backlog(self, expected: Callable[[int], bool]) -> None:
        """Wait until the group's backlog meets a condition."""
        end = time.monotonic() + self._kit.patience_seconds
        while not expected(count := self._kit.backlog(self.topic)):
            assert time.monotonic() < end, f"the backlog of the group is {count}"
            time.sleep(_POLL_SECONDS)
        if count == 0:
            self._acknowledged = dict.fromkeys(self._acknowledged, True)


def faulty(cc: ClaimCheck) -> FaultyStore:
    """Return the kit's store in one configuration."""
    return cast("FaultyStore", cc.store("kit"))


def content(size: int, seed: int = 0) -> bytes:
    """Return reproducible bytes that differ for each seed."""
    return random.Random(f"{size} {seed}").randbytes(size)


def chunks_of(payload: bytes, count: int, identity: str | None = None) -> list[bytes]:
    """Return a payload as chunk envelopes in the published format, without hints."""
    size, name = -(-len(payload) // count), identity or str(uuid.uuid4())
    return [encode_chunk(name, n, count, payload[n * size : (n + 1) * size]) for n in range(count)]
