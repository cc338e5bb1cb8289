"""Applications that crash and start again, and one run of them: what is alike for all brokers."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
from collections.abc import Callable
from typing import Any

import claimcheck
from claimcheck._operate.gc import Collection
from claimcheck.errors import ClaimCheckError
from tests.harness.scheduler import OWNER, Loop, Process, Scheduler
from tests.harness.topic import CollectedTopic, Topic
from tests.simulation.ledger import Ledger, Sent, SimulatedStore

STRATEGIES = ("external", "chunking", "hybrid")
CONFIGS = {
    (strategy, most): claimcheck.from_dict(
        {
            "strategy": strategy,
            "threshold_bytes": 200,
            "hybrid": {"retry_store_after_seconds": 5},
            "chunking": {
                "max_message_bytes": 600, "max_pending_payloads": most, "max_redeliveries": 1,
                "expire_after_seconds": 30,
            },
            "stores": {"m": {"type": "tests.simulation.ledger:SimulatedStore"}},
        }
    ).config
    for strategy in STRATEGIES
    for most in (1, 3)  # payloads that are incomplete
}  # fmt: skip
GRACE = 120.0  # seconds from the write of a payload until its message is there, by clocks that differ
SKEW = 20.0
CALM = 60  # rounds without faults, after which everything must have ended


class Actor:
    """A process that runs an application, and is started again when it has died."""

    crashes = 0.0
    skews: tuple[float, ...] = (0.0, SKEW, -SKEW)
    is_async = False

    def __init__(self, log: Ledger, name: str) -> None:
        self.log, self.scheduler, self.name = log, log.scheduler, name
        self.thread = self.scheduler.spawn(self.start, None)

    def start(self) -> None:
        """Let this thread be the main one of a new process."""
        self.process = self.thread.process = Process(self.scheduler, self.name, self._crashed)
        self.process.skew = self.scheduler.choice(self.skews)
        self.loop = Loop(self.process) if self.is_async else None
        self.open()
        self.process.crashes = self.crashes

    def open(self) -> None:
        raise NotImplementedError

    def act(self) -> None:
        raise NotImplementedError

    def end(self) -> None:
        """Clean up after the process that has died."""

    def _crashed(self) -> None:
        self.end()
        self.thread = self.scheduler.spawn(self.start, None)

    def is_idle(self) -> bool:
        return bool(self.thread.dead)

    def do(self, work: Callable[[], object], seconds: float | None = None) -> None:
        """Do something in the main thread of the process; wait for its end, or go on after a while."""
        self.thread = self.scheduler.spawn(work, self.process)
        self.scheduler.wait(self.is_idle, seconds)

    def configured(self, strategy: str) -> Any:
        self.cc = claimcheck.ClaimCheck(CONFIGS[strategy, self.scheduler.choice((1, 3))])
        SimulatedStore.of(self.cc, self.log, self.process)
        return self.cc

    def call(self, method: Any, *args: Any, cancel_after: float | None = None, **kwargs: Any) -> Any:
        """Call a method, or create an object, on the event loop if there is one; returns nothing if cancelled."""
        if self.loop is None:
            return method(*args, **kwargs)

        async def call() -> Any:
            result = method(*args, **kwargs)
            if not inspect.isawaitable(result):
                return result
            task = asyncio.ensure_future(result)
            if cancel_after is not None:
                asyncio.get_running_loop().call_later(cancel_after, task.cancel)
            try:
                return await task
            except asyncio.CancelledError:
                return None

        return self.loop.run_until_complete(call())


class Sender(Actor):
    crashes = 0.004

    def end(self) -> None:
        for sent in self.log.sent:
            if sent.sender is self.process:
                self.log.undeletable.add(sent.number)
                sent.outcome = "unknown" if sent.outcome == "open" else sent.outcome
        self.cannot_tell()

    def cannot_tell(self) -> None:
        """Expect no abort envelope of this process."""
        for sent in self.log.sent:
            sent.is_given_up &= sent.sender is not self.process

    def act(self) -> None:
        self.send(self.log.new_payload(self.process))

    def send(self, sent: Sent) -> None:
        raise NotImplementedError

    def finish(self) -> None:
        """Wait for all answers, and close."""
        raise NotImplementedError


class Receiver(Actor):
    crashes = 0.005
    consumer: Any

    def __init__(self, group: Any, name: str, options: dict[str, Any]) -> None:
        self.group, self.options = group, options
        super().__init__(group.log, name)

    def read_on(self, found: list[bool], *, busy: bool) -> None:
        """Read, and commit or acknowledge everything that may be; add whether there was any. Do not wait if busy."""
        raise NotImplementedError


class Collector(Actor):
    """Collects garbage of one cluster. Only one of them claims the topic's payloads, and so may delete them."""

    crashes = 0.01
    skews = (0.0, SKEW, -SKEW, 2 * 86_400.0)  # with the last one, it has to refuse

    def __init__(self, log: Ledger, name: str, topic: Topic) -> None:
        self.topic, self.owns = topic, topic is log
        super().__init__(log, name)

    def open(self) -> None:
        self.store = self.configured("external").store("m")

    def act(self) -> None:
        OWNER.set(-1)
        options = Collection(
            grace_seconds=GRACE, dry_run=False, force=True, claim=self.owns, clock=self.store.context.clock
        )
        with contextlib.suppress(ClaimCheckError):
            options.run([self.store], CollectedTopic(self.topic, str(self.owns)))

    def finish(self) -> None:
        self.act()
        if self.owns and self.process.skew <= SKEW:
            self.log.check_collected()


class Run:
    """Builds the actors, lets them act in any order, then lets everything end."""

    senders: tuple[type[Sender], ...]

    def __init__(self, scheduler: Scheduler, log: Ledger) -> None:
        choice = scheduler.choice
        self.scheduler, self.log = scheduler, log
        log.store_fails = choice((0.0, 0.03, 0.1))
        self.sending = [choice(self.senders)(log, f"sender {n}") for n in range(choice((1, 2)))]
        self.receiving: list[Receiver] = []
        topics = choice(((), (log,), (log, Topic(scheduler))))  # the second one is of another cluster
        self.collecting = [Collector(log, f"collector {n}", topic) for n, topic in enumerate(topics)]
        self.spoiling, self.is_busy = choice((0.0, 0.0, 0.03)), scheduler.chance(0.5)
        for number in range(choice((1, 1, 2))):
            log.groups.append(self.group(f"group {number}"))

    def group(self, name: str) -> Any:
        """Create a group with its members."""
        raise NotImplementedError

    def disturb(self) -> None:
        """Let something happen in the broker, perhaps."""
        raise NotImplementedError

    def step(self) -> None:
        """Let some time pass, perhaps, and one actor act; others may be in the middle of something."""
        scheduler = self.scheduler
        if scheduler.strikes("payload is lost or damaged", self.spoiling):
            self.log.spoil()
        self.disturb()
        if scheduler.chance(0.05):
            seconds = scheduler.choice((0.1, 3, 35, GRACE))
            for each in filter(lambda each: each.is_async, self.sending):  # its event loop goes on meanwhile
                scheduler.wait(each.is_idle)
                each.do(functools.partial(each.call, asyncio.sleep, seconds), 0)
            scheduler.pause(seconds)
        actor: Actor = scheduler.choice([*self.sending, *self.receiving, *self.collecting])
        if actor.is_idle():
            actor.do(actor.act, scheduler.choice((0, 0.1, 10)))
        for each in self.receiving:
            if each.is_idle() and each.consumer.pending_payloads > each.cc.config.chunking.max_pending_payloads:
                scheduler.violated(f"more payloads pending than allowed: {each.consumer.pending_payloads}")

    def finish(self) -> None:
        """Let all senders end, and all groups read on."""
        everybody = (*self.sending, *self.receiving, *self.collecting)
        self.scheduler.wait(lambda: all(each.is_idle() for each in everybody))
        self.scheduler.is_faulty = False
        for sender in self.sending:
            sender.do(sender.finish)
        self.scheduler.pause(5.0)  # what arrives after its timeout
        for number in range(CALM):
            if self.is_busy or number < 3 or number % 10 == 0:  # a reset to the end skips those before it
                self.log.append_markers()
            received = list[bool]()
            for each in self.receiving:
                each.do(functools.partial(each.read_on, received, busy=self.is_busy))
            for group in self.log.groups:
                group.read_again()
            is_done = not any(group.held_at() for group in self.log.groups)
            if number > 1 and is_done and (self.is_busy or not any(received)):
                break
            if number:
                self.scheduler.pause(6.0)
        self.log.check_at_rest()
        for each in self.receiving:
            each.do(functools.partial(each.call, each.consumer.close))
        for collector in self.collecting:
            self.scheduler.pause(GRACE + 2 * SKEW)
            collector.do(collector.finish)
