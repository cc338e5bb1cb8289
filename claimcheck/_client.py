"""The composition root: a configuration becomes stores, strategies and resolvers, each opened when it is first used."""

from __future__ import annotations

import functools
import io
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, BinaryIO, ParamSpec, TypeVar

from claimcheck import _pointer as pointers
from claimcheck import config as configuration
from claimcheck._check import CheckReport, check
from claimcheck._decorator import OutboundBlock, ProduceCall, decorate
from claimcheck._envelope import Abort, Buffer, Chunk, Literal, Plain, PointerData, decode, encode_pointer
from claimcheck._pointer import Pointer
from claimcheck._registry import STRATEGIES, UNUSABLE, build_store, check_store, load_class, unusable
from claimcheck._resolver import Resolver
from claimcheck._sending import Classifier
from claimcheck._signing import Seal
from claimcheck._store import Store, StoreContext
from claimcheck._strategy import Breaker, Message, Strategy, StrategyContext
from claimcheck._threads import in_thread
from claimcheck._validation import Problems, fail
from claimcheck._wire_size import DEFAULT_LIMIT, WireLimit
from claimcheck.config import Config
from claimcheck.errors import ChunkError, ConfigError
from claimcheck.hooks import Hook, Hooks

__all__ = ["ClaimCheck", "from_dict", "load"]

_REMEMBERED_PLANS = 1000

_after_fork = threading.Lock()


def _renew_lock() -> None:
    """In a child: the lock may have been held, at the moment of the fork, by a thread that is not there."""
    global _after_fork
    _after_fork = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)

P = ParamSpec("P")
R = TypeVar("R")


def load(path: str | os.PathLike[str], *, hooks: Iterable[Hook] = ()) -> ClaimCheck:
    """Read a YAML file and return what it describes. Nothing is opened.

    Args:
        path: The YAML file.
        hooks: Called with every event (see `claimcheck.hooks`).

    Raises:
        ConfigError: The file holds what it may not; names the path inside it.
    """
    return from_dict(configuration.read_yaml(path), hooks=hooks)


def from_dict(raw: Mapping[str, Any], *, hooks: Iterable[Hook] = ()) -> ClaimCheck:
    """The same from a mapping, shaped as the YAML file.

    Raises:
        ConfigError: The mapping holds what it may not; names the path inside it.
    """
    problems = Problems()
    config = configuration.parse(raw, problems)
    with problems:
        cc = ClaimCheck(config, hooks=hooks)
    problems.raise_all()
    return cc


class ClaimCheck:
    """Sends and receives payloads of any size, as its configuration says.

    Safe under threads and after a fork; opens stores at first use and closes them with `close` or as a context
    manager. Pickles as its configuration: hooks and connections never travel.

    Args:
        config: See `claimcheck.config`.
        hooks: Called with every event.

    Raises:
        ConfigError: A strategy or store type is unknown, a strategy lacks its store, or a store's option is wrong.
    """

    def __init__(self, config: Config, *, hooks: Iterable[Hook] = ()) -> None:
        self.config = config
        self._hooks = Hooks(tuple(hooks))
        self._lock = threading.RLock()
        self._open = _Open(self.config)
        self._check_classes()

    # Writing ---------------------------------------------------------------------------------------------------

    def offload(
        self,
        *,
        payload: str = "value",
        destination: str | None = None,
        key: str | None = None,
        headers: str | None = None,
        classify: Classifier | None = None,
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Decorate a function that sends messages, so that it takes payloads of any size.

        Each argument names one of the function's own parameters. The function may be a method, a coroutine
        function, or return a future. It is called with an envelope in place of the payload: once for a pointer,
        once per chunk otherwise, and its first call's result is returned.

        Args:
            payload: Takes the message's value.
            destination: Takes the topic; without it the function's name stands for its only one.
            key: Takes the message key; needed where the configuration may send chunks.
            headers: Takes the headers, a mapping or a list of pairs.
            classify: From an error of the function to ``"failed"`` (definitely not sent: what was stored is removed)
                or ``"unknown"`` (it stays until it expires). By default time-outs and lost connections are unknown.

        Raises:
            ConfigError: At decoration: a parameter does not exist, or chunks need a key parameter.
        """
        call = ProduceCall(payload=payload, destination=destination, key=key, headers=headers)

        def decorator(function: Callable[P, R]) -> Callable[P, R]:
            return decorate(function, call, self._plan, may_chunk=self._may_chunk, classify=classify)

        return decorator

    def outbound(
        self,
        payload: Any,
        *,
        destination: str,
        key: Any = None,
        headers: Any = None,
        limit: WireLimit | None = None,
        takes_headers: bool = True,
        text_key: bool = False,
        classify: Classifier | None = None,
        identity: uuid.UUID | None = None,
    ) -> OutboundBlock:
        """Offload one payload by hand, in a ``with`` (or ``async with``) block that yields an `Outbound`.

        Call ``out.send(produce)``, or take each envelope from ``out.envelopes``, produce it and call ``out.sent()``.
        To take an envelope is not to send it: an error inside the block that ``classify`` calls ``failed`` deletes
        what was stored, unless an envelope was said to be sent. An error that leaves the outcome unknown, and leaving
        the block normally, keep it. When no envelope was taken, nothing can have been sent, and it is deleted.

        Args:
            payload: Bytes-like, a readable binary file, or ``None``.
            destination: Topic or queue.
            key: The message key; chunks of a payload without one get its uuid.
            headers: A mapping or a list of pairs.
            limit: What the transport takes and how it counts; by default Kafka's 1,000,000 bytes and arithmetic.
            takes_headers: Whether hints may be sent in headers.
            text_key: Whether a key that has to be made up is ``str``.
            classify: See `offload`.
            identity: Of a bytes-like payload that several attempts may send, one after the other or at once, and that
                it stands for alone: they name the same key, or the same chunks. Nothing is ever undone then, since it
                may be another attempt's.
        """
        strategy, threshold, wire = self._plan(destination, limit)
        message = Message(
            payload=payload,
            destination=destination,
            key=key,
            headers=headers,
            threshold=threshold,
            limit=wire,
            takes_headers=takes_headers,
            text_key=text_key,
            identity=identity,
        )
        return OutboundBlock(strategy, message, classify)

    def threshold(self, destination: str, limit: WireLimit | None = None) -> int:
        """Bytes that a message for this destination may have on the wire and still go as it is.

        For transports, which need not ask `outbound` about messages that are smaller, unless they begin with
        ``config.header`` or their headers call them envelopes.
        """
        return self._plan(destination, limit)[1]

    def may_chunk(self, destination: str) -> bool:
        """Whether a payload for this destination can become several messages, which a key then keeps together."""
        return self._strategy_class(self.config.for_destination(destination)).may_chunk

    @property
    def hooks(self) -> Hooks:
        """Who hears of events; for transports, to tell of theirs."""
        return self._hooks

    def seal(self, pointer: Pointer) -> bytes:
        """Return the message that carries a pointer, signed where signing is configured.

        For payloads that were written with `Store.write`; every other way of sending does this by itself.
        """
        return encode_pointer(self._sign(pointer), header=self.config.header)

    # Reading ---------------------------------------------------------------------------------------------------

    def resolve(self, message: Buffer | None) -> Any:
        """Return the payload of one message: a pointer's, a literal's, or the message itself.

        Raises:
            ChunkError: A chunk: one message cannot be resolved alone, use `resolver`.
            EnvelopeError: Damaged, or of an unknown type or version.
            PointerRejectedError: A pointer that is not followed, or whose store cannot be used by this process (a
                driver or a variable is missing).
            ConfigError: A signature is required, and this process has no keys to check it.
            StoreError: The payload is missing, damaged or out of reach; see its subclasses.
        """
        if message is None:
            return None
        envelope = self._single(message)
        if isinstance(envelope, PointerData):
            return self._read(envelope.data)
        return envelope.payload if isinstance(envelope, Plain) else bytes(envelope.payload)

    async def aresolve(self, message: Buffer | None) -> Any:
        """Do as `resolve` without blocking the event loop: stores are asked in a thread, all else is at hand.

        A task that is cancelled meanwhile ends at once; the reading stops at the next piece and closes its connection.
        """
        if message is None or not isinstance(self._single(message), PointerData):
            return self.resolve(message)
        return await in_thread(lambda: self.resolve(message))

    def open(self, message: Buffer) -> BinaryIO:
        """Return the payload of one message as a binary file, in bounded memory and verified to its last byte.

        Raises:
            ChunkError: A chunk. Otherwise as `resolve`; a store's errors come while reading.
        """
        envelope = self._single(message)
        if isinstance(envelope, PointerData):
            return self._open_payload(self._accept(envelope.data))
        return io.BytesIO(envelope.payload)

    def pointer(self, message: Buffer) -> Pointer | None:
        """Read the pointer of a message without any I/O; ``None`` for any other message.

        Raises:
            EnvelopeError: Damaged, or of an unknown type or version.
            PointerRejectedError: Too long, or its signature is missing or wrong.
            ConfigError: A signature is required, and this process has no keys to check it.
        """
        envelope = decode(message, header=self.config.header)
        return self._accept(envelope.data) if isinstance(envelope, PointerData) else None

    def read(self, pointer: Pointer) -> bytes:
        """Return the payload of a pointer that `pointer` returned; its signature is not checked again.

        Raises:
            PointerRejectedError: The key lies outside of its store, or the store is not configured, not listed in
                ``reads_from``, or cannot be used by this process (then from the `ConfigError` or
                `MissingDependencyError`).
            StoreError: The payload is missing, damaged or out of reach; see its subclasses.
        """
        name = self._current().seal.store_name(pointer)
        try:
            return self.store(name).read(pointer)
        except UNUSABLE as error:
            raise unusable(name, pointer, error) from error

    def resolver(self, *, clock: Callable[[], float] = time.monotonic, max_redeliveries: int | None = None) -> Resolver:
        """Return a resolver for a stream of messages, chunks included; one per consumer.

        Args:
            clock: Seconds, monotonic.
            max_redeliveries: Overrides ``chunking.max_redeliveries``.
        """
        chunking = self.config.chunks
        if max_redeliveries is not None:
            chunking = replace(chunking, max_redeliveries=max_redeliveries)
        return Resolver(self._read, chunking=chunking, header=self.config.header, clock=clock, hooks=self._hooks)

    # Stores ----------------------------------------------------------------------------------------------------

    def store(self, name: str) -> Store:
        """Return a store by its name in the configuration; opened at first use, once per process.

        Raises:
            ConfigError: No such store, or a variable that it needs is not set.
            MissingDependencyError: Its driver is not installed; names the extra.
        """
        store = self._current().stores.get(name)
        if store is not None:
            return store
        with self._lock:
            stores = self._open.stores  # asked again: it may have been closed, or opened by another thread
            if name not in stores:
                stores[name] = self._build_store(name)
            return stores[name]

    def check(self, *, open: bool = False) -> CheckReport:  # noqa: A002 - short for a keyword
        """Return what is insecure or unwise in the configuration and, with ``open``, whether its stores work.

        Suits a readiness probe: ``cc.check(open=True).ok``. Failures are findings, not exceptions.

        Args:
            open: Whether to resolve the signing keys, and to write, read and delete a small payload in every store.
        """
        return check(self, open=open)

    def close(self) -> None:
        """Release all connections; payloads stay, and a later use opens again."""
        self._current()  # what a parent process has open is not ours to close
        with self._lock:
            stores, self._open = list(self._open.stores.values()), _Open(self.config)
        with ExitStack() as closing:  # every one, even if another fails
            for store in stores:
                closing.callback(store.close)

    def __enter__(self) -> ClaimCheck:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return ClaimCheck, (self.config,)

    def __repr__(self) -> str:
        return f"<ClaimCheck {self.config.strategy}, stores {', '.join(self.config.stores) or 'none'}>"

    # Within ----------------------------------------------------------------------------------------------------

    @property
    def _may_chunk(self) -> bool:
        configs = (self.config, *(override for _, override in self.config.destinations))
        return any(self._strategy_class(each).may_chunk for each in configs)

    def _strategy_class(self, config: Config, *, path: str = "strategy") -> type[Strategy]:
        found = load_class(config.strategy, STRATEGIES, group="claimcheck.strategies", path=path)
        if not issubclass(found, Strategy):
            fail(path, found=repr(config.strategy), expected="a subclass of claimcheck.Strategy")
        return found

    def _check_classes(self) -> None:
        problems = Problems()
        with problems:
            self._check_strategy(self.config, "")
        for pattern, override in self.config.destinations:
            inherited = override.strategy == self.config.strategy and "strategy" in problems.sections()
            with problems:
                if not inherited:
                    self._check_strategy(override, f"destinations.{pattern}.")
        for name, store in self.config.stores.items():
            with problems:
                check_store(store, path=f"stores.{name}")
        problems.raise_all()

    def _check_strategy(self, config: Config, prefix: str) -> None:
        strategy = self._strategy_class(config, path=f"{prefix}strategy")
        if strategy.needs_store and config.store is None:
            expected = f"the name of a store: strategy {config.strategy!r} writes to one"
            fail(f"{prefix}store", found="nothing", expected=expected)

    def _plan(self, destination: str, limit: WireLimit | None = None) -> tuple[Strategy, int, WireLimit]:
        """What holds for a destination: strategy, threshold and limit; remembered, since most have few topics."""
        plans = self._current().plans
        known = plans.get((destination, limit))
        if known is None:
            if len(plans) >= _REMEMBERED_PLANS:
                plans.clear()
            known = plans[destination, limit] = self._make_plan(destination, limit)
        return known

    def _make_plan(self, destination: str, limit: WireLimit | None) -> tuple[Strategy, int, WireLimit]:
        config = self.config.for_destination(destination)
        wire, threshold = limit or DEFAULT_LIMIT, config.threshold_bytes
        if threshold == "auto":
            threshold = wire.max_message_bytes
        elif limit is None and threshold > wire.max_message_bytes:  # no transport: the caller knows the limit better
            wire = WireLimit(threshold, wire.overhead)
        return self._strategy(config), min(threshold, wire.max_message_bytes), wire

    def _strategy(self, config: Config) -> Strategy:
        strategies = self._current().strategies
        if id(config) not in strategies:
            with self._lock:
                strategies.setdefault(id(config), self._strategy_class(config)(self._context(config)))
        return strategies[id(config)]

    def _context(self, config: Config) -> StrategyContext:
        name = config.store
        breakers = self._current().breakers
        pause = config.hybrid.retry_store_after_seconds
        return StrategyContext(
            config=config,
            store=functools.partial(self.store, name or ""),
            seal=self._sign if config.signing.key_id else pointers.encode,
            breaker=breakers.setdefault((name, pause), Breaker(retry_after_seconds=pause)),
            hooks=self._hooks,
        )

    def _current(self) -> _Open:
        """What this process has open; after a fork nothing, since connections cannot be shared."""
        if self._open.pid != os.getpid():
            with _after_fork:
                if self._open.pid != os.getpid():
                    self._lock = threading.RLock()  # the old one may have been held by a thread that is not here
                    self._open = _Open(self.config)
        return self._open

    def _build_store(self, name: str) -> Store:
        if name not in self.config.stores:
            known = ", ".join(sorted(self.config.stores)) or "none"
            raise ConfigError(
                f"no store is called {name!r}; configured: {known}", path="stores", found=name, expected=known
            )
        store: Store = build_store(self.config.stores[name], path=f"stores.{name}")
        store.context = StoreContext(
            name=name, max_payload_bytes=self.config.limits.max_payload_bytes, hooks=self._hooks
        )
        return store

    def _single(self, message: Buffer) -> Plain | Literal | PointerData:
        envelope = decode(message, header=self.config.header)
        if isinstance(envelope, (Chunk, Abort)):
            raise ChunkError(
                f"one message of the chunked payload {envelope.uuid} cannot be resolved alone: feed all messages to "
                "ClaimCheck.resolver(), or wrap the consumer",
                uuid=envelope.uuid,
                total=envelope.count if isinstance(envelope, Chunk) else None,
            )
        return envelope

    def _sign(self, pointer: Pointer) -> bytes:
        return self._current().seal.sign(pointer)

    def _accept(self, data: bytes) -> Pointer:
        return self._current().seal.accept(data)

    def _read(self, data: bytes) -> bytes:
        return self.read(self._accept(data))

    def _open_payload(self, pointer: Pointer) -> BinaryIO:
        name = self._current().seal.store_name(pointer)
        try:
            return self.store(name)._file(pointer, from_message=True)
        except UNUSABLE as error:
            raise unusable(name, pointer, error) from error


class _Open:
    """What one process has open."""

    def __init__(self, config: Config) -> None:
        self.pid = os.getpid()
        self.seal = Seal(config)
        self.stores: dict[str, Store] = {}
        self.strategies: dict[int, Strategy] = {}
        self.breakers: dict[tuple[str | None, float], Breaker] = {}
        self.plans: dict[tuple[str, WireLimit | None], tuple[Strategy, int, WireLimit]] = {}
