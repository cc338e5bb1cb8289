"""Sweeps beside writers, rollbacks, other sweeps and crashes: nothing goes too early, nothing stays."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from claimcheck._operate.sweep import Sweep
from claimcheck._store.contract import StoreContext
from claimcheck._wire.pointer import Pointer
from claimcheck.stores.filesystem import FilesystemStore
from claimcheck.stores.memory import MemoryStore
from tests.clocks import Clock
from tests.hypothesis_examples import examples

GRACE = 5
LIFETIMES = st.sampled_from([None, 1, 10, 100])
Events = Iterator[Callable[[], object]]
SCRIPT = st.lists(st.sampled_from("--wtk"), max_size=6)


class Killed(BaseException):
    """The process of a sweep ended here."""


class Interleaved:
    """Something else happens before each listed entry is returned, and before each one is deleted."""

    def __init__(self, *args: object, **options: object) -> None:
        super().__init__(*args, **options)
        self.while_listing: Events = iter(())
        self.while_deleting: Events = iter(())

    def _scan(self):
        for entry in super()._scan():
            next(self.while_listing, lambda: None)()
            yield entry

    def _discard(self, entries):
        for entry in entries:
            next(self.while_deleting, lambda: None)()
            yield from super()._discard([entry])


class InMemory(Interleaved, MemoryStore):
    pass


class InFolder(Interleaved, FilesystemStore):
    pass


class Life(RuleBasedStateMachine):
    """One store and its clock. Every pointer that was returned and not rolled back is readable while it has to be."""

    pointers = Bundle("pointers")

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.readable: dict[str, tuple[Pointer, bytes]] = {}
        self.folder = Path(tempfile.mkdtemp(prefix="claimcheck-sweep-"))

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    @initialize()
    def open(self) -> None:
        self.store = self.new_store()
        self.store.context = StoreContext(clock=self.clock)

    def new_store(self) -> InMemory | InFolder:
        raise NotImplementedError

    @rule(target=pointers, lifetime=LIFETIMES, payload=st.binary(max_size=3))
    def write(self, lifetime: int | None, payload: bytes) -> Pointer:
        return self.written(lifetime, payload)

    def written(self, lifetime: int | None, payload: bytes) -> Pointer:
        self.store.ttl_seconds = lifetime
        pointer = self.store.write(payload, destination="orders-20010101T000000Z")
        self.readable[pointer.key] = pointer, payload
        return pointer

    @rule(pointer=consumes(pointers))
    def roll_back(self, pointer: Pointer) -> None:
        self.readable.pop(pointer.key, None)
        self.store.rollback(pointer)

    @rule(seconds=st.sampled_from([0.4, 1, 4, 5, 6, 50, 200]))
    def wait(self, seconds: float) -> None:
        self.clock.sleep(seconds)

    @rule(target=pointers, listing=SCRIPT, deleting=SCRIPT, lifetime=LIFETIMES)
    def sweep(self, listing: list[str], deleting: list[str], lifetime: int | None) -> object:
        """Sweep while others write (w), sweep (t) or kill it (k)."""
        written: list[Pointer] = []
        steps = {
            "-": lambda: None,
            "w": lambda: written.append(self.written(lifetime, b"meanwhile")),
            "t": self.sweep_to_the_end,
            "k": self.die,
        }
        self.store.while_listing = iter([steps[each] for each in listing])
        self.store.while_deleting = iter([steps[each] for each in deleting])
        with contextlib.suppress(Killed):
            Sweep(grace_seconds=GRACE, dry_run=False, clock=self.clock).run(self.store)
        self.store.while_listing = self.store.while_deleting = iter(())
        return multiple(*written)

    def sweep_to_the_end(self) -> None:
        events = self.store.while_listing, self.store.while_deleting
        self.store.while_listing = self.store.while_deleting = iter(())
        Sweep(grace_seconds=GRACE, dry_run=False, clock=self.clock).run(self.store)
        self.store.while_listing, self.store.while_deleting = events

    def die(self) -> None:
        raise Killed

    @invariant()
    def nothing_went_too_early(self) -> None:
        for key, (pointer, payload) in list(self.readable.items()):
            ends = None if pointer.expires_ms is None else pointer.expires_ms + GRACE * 1000
            if ends is None or self.clock() * 1000 < ends:
                assert self.store.read(pointer) == payload
            else:
                del self.readable[key]

    @rule()
    def nothing_stays(self) -> None:
        """After all lifetimes, one sweep leaves only payloads without one."""
        self.clock.sleep(1000)
        self.sweep_to_the_end()
        left = list(self.store.scan())
        assert all(entry.expires_ms is None and entry.has_lifetime for entry in left)


class LifeInMemory(Life):
    def new_store(self):
        return InMemory(space=str(self.folder))


class LifeInAFolder(Life):
    def new_store(self):
        return InFolder(path=str(self.folder))


TestInMemory = LifeInMemory.TestCase
TestInMemory.settings = examples(1000, stateful_step_count=30)
TestInAFolder = LifeInAFolder.TestCase
TestInAFolder.settings = examples(500, stateful_step_count=30)
