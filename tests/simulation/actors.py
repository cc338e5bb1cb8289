"""Applications that crash and start again, and one run of them: what is alike for all brokers."""

from __future__ import annotations

import asyncio
from typing import Any

import claimcheck
from tests.simulation.ledger import Ledger, Sent
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
CALM = 60  # rounds without faults, after which everything must have ended


class Actor:
    """A process that runs an application, and is started again when it has died."""

    crashes = 0.0
    is_async = False

    def __init__(self, ledger: Ledger, name: str) -> None:
        self.ledger, self.scheduler, self.name = ledger, ledger.scheduler, name
        self.busy = False
        self.start()

    def start(self) -> None:
        self.process = Process(self.scheduler, self.name, 0.0)
        self.loop = Loop(self.scheduler) if self.is_async else None
        self.open()
        self.process.crashes = self.crashes

    def open(self) -> None:
        raise NotImplementedError

    def act(self) -> None:
        raise NotImplementedError

    def end(self) -> None:
        """Clean up after the process that has died."""

    def restart(self) -> None:
        if self.loop is not None:
            self.loop.abandon()
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
        self.store = open_store(cc, self.ledger.medium, self.process)
        return cc

    def call(self, method: Any, *args: Any, cancel_after: float | None = None, **kwargs: Any) -> Any:
        """Call a method, in a task if it is one for asyncio; returns nothing if the task was cancelled."""
        if self.loop is None:
            return method(*args, **kwargs)

        async def call() -> Any:
            task = asyncio.ensure_future(method(*args, **kwargs))
            if cancel_after is not None:
                asyncio.get_running_loop().call_later(cancel_after, task.cancel)
            try:
                return await task
            except asyncio.CancelledError:
                return None

        return self.loop.run_until_complete(call())

    def made(self, kind: Any, *args: Any, **options: Any) -> Any:
        """Create an object, in a task if it is one for asyncio."""

        async def make() -> Any:
            return kind(*args, **options)

        return kind(*args, **options) if self.loop is None else self.call(make)


class Sender(Actor):
    crashes = 0.004

    def end(self) -> None:
        for sent in self.ledger.sent:
            if sent.outcome == "open" and sent.sender is self.process:
                sent.outcome = "unknown"
        self.cannot_tell()

    def cannot_tell(self) -> None:
        """Expect no abort envelope of this process."""
        for sent in self.ledger.sent:
            sent.is_given_up &= sent.sender is not self.process

    def new_payload(self) -> Sent:
        sent = self.ledger.new_payload(self.process)
        self.client.owner = self.store.owner = sent.number  # type: ignore[attr-defined]
        return sent

    def finish(self) -> None:
        """Wait for all answers, and close."""
        raise NotImplementedError


class Receiver(Actor):
    crashes = 0.002

    def __init__(self, group: Any, name: str, options: dict[str, Any]) -> None:
        self.group, self.options = group, options
        super().__init__(group.ledger, name)

    def finish(self, *, busy: bool) -> bool:
        """Read on without faults, and commit or acknowledge everything that may be; returns whether there was any.

        ``busy``: never wait when there is nothing.
        """
        raise NotImplementedError


class Run:
    """Builds the actors, lets them act in any order, then lets everything end."""

    senders: tuple[type[Sender], ...]

    def __init__(self, scheduler: Scheduler, ledger: Ledger) -> None:
        choice = scheduler.choice
        self.scheduler, self.ledger = scheduler, ledger
        ledger.medium.fails = choice((0.0, 0.03, 0.1))
        self.sending = [choice(self.senders)(ledger, f"sender {n}") for n in range(choice((1, 2)))]
        self.receiving: list[Any] = []
        self.spoiling, self.is_busy = choice((0.0, 0.0, 0.03)), scheduler.chance(0.5)
        for number in range(choice((1, 1, 2))):
            ledger.groups.append(self.group(f"group {number}"))

    def group(self, name: str) -> Any:
        """Create a group with its members."""
        raise NotImplementedError

    def disturb(self) -> None:
        """Let something happen in the broker, perhaps."""
        raise NotImplementedError

    def step(self) -> None:
        """Let some time pass, perhaps, and one actor act."""
        scheduler = self.scheduler
        if scheduler.strikes("payload is lost or damaged", self.spoiling):
            self.ledger.medium.spoil()
        self.disturb()
        if scheduler.chance(0.05):
            scheduler.wait(lambda: False, scheduler.choice((0.1, 3, 35)))
        scheduler.choice([*self.sending, *self.receiving]).step()
        for receiver in self.receiving:
            if receiver.consumer.pending_payloads > 3:
                scheduler.violated(f"{receiver.consumer.pending_payloads} payloads pending, and only 3 are allowed")

    def finish(self) -> None:
        """Restart the actors that have died, let all senders end, and all groups read on."""
        for actor in (*self.sending, *self.receiving):
            if not actor.process.alive:
                actor.restart()
        for sender in self.sending:
            sender.finish()
        self.scheduler.wait(lambda: False, 5.0)  # what arrives after its timeout
        for number in range(CALM):
            if self.is_busy or number < 3 or number % 10 == 0:  # a reset to the end skips those before it
                self.ledger.append_markers()
            received = [receiver.finish(busy=self.is_busy) for receiver in self.receiving]
            for group in self.ledger.groups:
                group.read_again()
            is_done = all(group.is_done() for group in self.ledger.groups)
            if number > 1 and is_done and (self.is_busy or not any(received)):
                break
            if number:
                self.scheduler.wait(lambda: False, 6.0)
        self.ledger.check_at_rest()
        for receiver in self.receiving:
            receiver.call(receiver.consumer.close)
