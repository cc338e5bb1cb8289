"""What the conformance tests stand on: what an author gives, and stores opened with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, ClassVar

import pytest

from claimcheck._pointer import Pointer
from claimcheck._registry import build_store
from claimcheck._store import Store, StoreContext
from claimcheck.config import StoreConfig
from claimcheck.hooks import Event, Hooks, OperationEvent

__all__ = ["MIB", "OpenStore", "StoreKit", "as_if_written", "damaged_size", "forbid_io", "read_in_pieces"]

OpenStore = Callable[..., Store]
MIB = 1 << 20


class StoreKit:
    """What an author overrides, and the fixtures that all tests of the kit use.

    Attributes:
        skip: Tests that this store cannot pass, each with its reason; they show in the report as skipped.
        secrets: Texts among the options that must show up nowhere; passwords in URLs are known without.
        memory_bytes: What reading or writing a payload of twice this size may take at its peak.
    """

    skip: ClassVar[Mapping[str, str]] = {}
    secrets: ClassVar[tuple[str, ...]] = ()
    memory_bytes: ClassVar[int] = 32 * MIB

    # What an author writes -------------------------------------------------------------------------------------

    @pytest.fixture
    def options(self) -> Mapping[str, Any]:
        """The store's entry in YAML, ``type`` included; every store opened with it must see the same payloads."""
        raise NotImplementedError("override the fixture `options`")

    def peek(self, pointer: Pointer) -> bytes | None:
        """Read what is stored under a key, behind the store's back; ``None`` only if nothing at all is left of it."""
        raise NotImplementedError

    def damage(self, pointer: Pointer, payload: bytes | None) -> None:
        """Put something else in the payload's place, behind the store's back; ``None`` removes it."""
        raise NotImplementedError

    # What the tests use ----------------------------------------------------------------------------------------

    @pytest.fixture(autouse=True)
    def _declared_opt_outs(self, request: pytest.FixtureRequest) -> None:
        for name, reason in self.skip.items():
            assert reason, f"skip[{name!r}] needs a reason"
            assert hasattr(self, name), f"skip names {name!r}, which is no test of the kit"
        if request.function.__name__ in self.skip:
            pytest.skip(self.skip[request.function.__name__])

    @pytest.fixture
    def config(self, options: Mapping[str, Any]) -> StoreConfig:
        """The options as the library holds them."""
        return StoreConfig(type=options["type"], options={k: v for k, v in options.items() if k != "type"})

    @pytest.fixture
    def events(self) -> list[OperationEvent]:
        """What the hooks of `store` heard."""
        return []

    @pytest.fixture
    def open_store(self, config: StoreConfig, events: list[OperationEvent]) -> Iterator[OpenStore]:
        """Opens stores in the same medium, with changes to their context; closes them at the end."""
        opened: list[Store] = []

        def hear(event: Event) -> None:
            assert isinstance(event, OperationEvent)
            events.append(event)

        def build(**context: Any) -> Store:
            store: Store = build_store(config, path="stores.conformance")
            store.context = StoreContext(**{"name": "conformance", "hooks": Hooks((hear,)), **context})
            opened.append(store)
            return store

        yield build
        _tidy_up(opened, events)
        for store in opened:
            store.close()

    @pytest.fixture
    def store(self, open_store: OpenStore) -> Store:
        """The store under test."""
        return open_store()


def damaged_size(store: Store, size: str) -> int:
    """The size of a payload to break: ``some`` bytes, or several ``segments``."""
    return 1000 if size == "some" else 2 * (store.segment_bytes or MIB) + 1000


def read_in_pieces(store: Store, pointer: Pointer) -> bytes:
    """Read as a consumer of files does."""
    with store.open(pointer) as file:
        return b"".join(iter(lambda: file.read(100_000), b""))


def as_if_written(store: Store, key: str, size: int) -> Pointer:
    """The pointer that a write under this key would have returned."""
    piece = store.segment_bytes if store.segment_bytes and size > store.segment_bytes else None
    segments = -(-size // piece) if piece else 1
    return Pointer(
        key=key, store=store.name, size=size, segments=segments, segment_bytes=piece, version=store.pointer_version
    )


def _tidy_up(opened: list[Store], events: list[OperationEvent]) -> None:
    """A medium may be shared: what a test wrote, it takes away again."""
    for event in events:
        if not opened or (event.operation, event.phase) != ("write", "completed"):
            continue
        store = opened[0]
        with suppress(Exception):
            store.rollback(as_if_written(store, event.key, event.size or 0))


def forbid_io(store: Store, patch: pytest.MonkeyPatch) -> None:
    """Fail the test when the store asks its medium from now on."""

    def touched(*_: Any) -> Any:
        pytest.fail("the medium was asked")

    for method in ("_write", "_read", "_open", "_delete"):
        patch.setattr(store, method, touched)
