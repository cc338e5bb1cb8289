"""The hooks and fixtures of the conformance kit for stores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, ClassVar

import pytest

from claimcheck._pointer import Pointer
from claimcheck._registry import build_store
from claimcheck._store import Store
from claimcheck._store_contract import StoreContext
from claimcheck.config import StoreConfig
from claimcheck.hooks import Event, Hooks, OperationEvent

OpenStore = Callable[..., Store]
MIB = 1 << 20


class StoreKit:
    """The hooks that an author overrides, and the fixtures that the tests use.

    Attributes:
        skip: Tests that this store cannot pass, with the reason for each; the report shows them as skipped.
        secrets: Secret texts in the options, which must not appear in any repr; passwords in URLs are always checked.
        memory_bytes: The peak memory allowed for a payload of twice this size.
    """

    skip: ClassVar[Mapping[str, str]] = {}
    secrets: ClassVar[tuple[str, ...]] = ()
    memory_bytes: ClassVar[int] = 32 * MIB

    # Hooks -----------------------------------------------------------------------------------------------------

    @pytest.fixture
    def options(self) -> Mapping[str, Any]:
        """The store's entry in YAML, including ``type``. All stores opened with it must see the same payloads."""
        raise NotImplementedError("override the fixture `options`")

    def peek(self, pointer: Pointer) -> bytes | None:
        """Return what is stored under a key, without using the store; ``None`` only if nothing is left of it."""
        raise NotImplementedError

    def damage(self, pointer: Pointer, payload: bytes | None) -> None:
        """Replace the stored payload without using the store; ``None`` deletes it."""
        raise NotImplementedError

    # Fixtures --------------------------------------------------------------------------------------------------

    @pytest.fixture(autouse=True)
    def _declared_opt_outs(self, request: pytest.FixtureRequest) -> None:
        skip_opt_outs(self, self.skip, request.function.__name__)

    @pytest.fixture
    def config(self, options: Mapping[str, Any]) -> StoreConfig:
        """The options as a `StoreConfig`."""
        return StoreConfig(type=options["type"], options={k: v for k, v in options.items() if k != "type"})

    @pytest.fixture
    def events(self) -> list[OperationEvent]:
        """The events of all stores."""
        return []

    @pytest.fixture
    def open_store(self, config: StoreConfig, events: list[OperationEvent]) -> Iterator[OpenStore]:
        """A function that opens a store on the same medium with changes to its context."""
        opened: list[Store] = []

        def record(event: Event) -> None:
            assert isinstance(event, OperationEvent)
            events.append(event)

        def build(**context: Any) -> Store:
            store: Store = build_store(config, path="stores.conformance")
            store.context = StoreContext(**{"name": "conformance", "hooks": Hooks((record,)), **context})
            opened.append(store)
            return store

        yield build
        _delete_payloads(opened, events)
        for store in opened:
            store.close()

    @pytest.fixture
    def store(self, open_store: OpenStore) -> Store:
        """The store under test."""
        return open_store()


def skip_opt_outs(kit: object, opt_outs: Mapping[str, str], test: str) -> None:
    """Skip a test that a kit's author has opted out of, and check all of the author's opt-outs."""
    for name, reason in opt_outs.items():
        assert reason, f"skip[{name!r}] needs a reason"
        assert hasattr(kit, name), f"skip names {name!r}, which is not a test of the kit"
    if test in opt_outs:
        pytest.skip(opt_outs[test])


def damaged_size(store: Store, size: str) -> int:
    """Return the size of a payload to damage: ``some`` bytes, or several ``segments``."""
    return 1000 if size == "some" else 2 * (store.segment_bytes or MIB) + 1000


def read_in_pieces(store: Store, pointer: Pointer) -> bytes:
    """Read a payload as a file, piece by piece."""
    with store.open(pointer) as file:
        return b"".join(iter(lambda: file.read(100_000), b""))


def as_if_written(store: Store, key: str, size: int) -> Pointer:
    """Return the pointer that a write under this key would return."""
    piece = store.segment_bytes if store.segment_bytes and size > store.segment_bytes else None
    segments = -(-size // piece) if piece else 1
    return Pointer(
        key=key, store=store.name, size=size, segments=segments, segment_bytes=piece, version=store.pointer_version
    )


def _delete_payloads(opened: list[Store], events: list[OperationEvent]) -> None:
    """Delete what a test wrote, since the medium may be shared."""
    for event in events:
        if not opened or (event.operation, event.phase) != ("write", "completed"):
            continue
        store = opened[0]
        with suppress(Exception):
            store.rollback(as_if_written(store, event.key, event.size or 0))


def forbid_io(store: Store, patch: pytest.MonkeyPatch) -> None:
    """Fail the test if the store uses its medium from now on."""

    def touched(*_: Any) -> Any:
        pytest.fail("the store used its medium")

    for method in ("_write", "_read", "_open", "_delete"):
        patch.setattr(store, method, touched)
