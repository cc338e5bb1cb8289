"""`ClaimCheck`: opens the stores, strategies and resolvers of a configuration, each at first use."""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, BinaryIO, ParamSpec, TypeVar

import claimcheck._opened as _process
from claimcheck._config_file import parse, read_yaml
from claimcheck._content.source import Payload
from claimcheck._opened import Opened, check_classes, strategy_class
from claimcheck._receive.messages import Message as ManyMessage
from claimcheck._receive.messages import Resolution, aresolve_many, check_many, resolve_many
from claimcheck._send.classification import Classifier
from claimcheck._send.decorator import OutboundBlock, ProduceCall, decorate
from claimcheck._send.strategy import Message, Plan
from claimcheck._store.store import Store
from claimcheck._threads import in_thread
from claimcheck._validation import Problems, check_int, check_type, fail
from claimcheck._wire.buffers import Buffer
from claimcheck._wire.envelope import Envelope, encode_pointer
from claimcheck._wire.headers import Headers, WireLimit
from claimcheck._wire.pointer import Pointer
from claimcheck.config import Config
from claimcheck.hooks import Hook, Hooks

if TYPE_CHECKING:
    from claimcheck._operate.findings import CheckReport
    from claimcheck._operate.sweep import SweepReport
    from claimcheck._receive.resolver import Resolver

P = ParamSpec("P")
R = TypeVar("R")
M = TypeVar("M", bytes, Buffer, None, bytes | None, Buffer | None)  # the payload of bytes is bytes


def load(path: str | os.PathLike[str], *, hooks: Iterable[Hook] = ()) -> ClaimCheck:
    """Return a `ClaimCheck` configured by a YAML file. Opens no connections.

    Args:
        path: The YAML file.
        hooks: Called with every event; see `claimcheck.hooks`.

    Raises:
        ConfigError: The file cannot be read or is invalid; names the path inside it.
    """
    return from_dict(read_yaml(path), hooks=hooks)


def from_dict(raw: Mapping[str, Any], *, hooks: Iterable[Hook] = ()) -> ClaimCheck:
    """Return a `ClaimCheck` configured by a mapping with the structure of the YAML file. Opens no connections.

    Raises:
        ConfigError: The mapping is invalid; names the path inside it.
    """
    problems = Problems()
    config = parse(raw, problems)
    with problems:
        cc = ClaimCheck(config, hooks=hooks)
    problems.raise_all()
    return cc


class ClaimCheck:
    """Sends and receives payloads of any size according to a configuration.

    Thread-safe, and usable after a fork. Stores are opened at first use; `close`, or leaving a ``with`` block, closes
    them. Pickles as its configuration, without hooks and connections.

    Args:
        config: See `claimcheck.config`.
        hooks: Called with every event.

    Raises:
        ConfigError: A strategy or store type is unknown, a strategy lacks its store, or a store's option is wrong.
    """

    def __init__(self, config: Config, *, hooks: Iterable[Hook] = ()) -> None:
        listeners = tuple(hooks) if isinstance(hooks, Iterable) else None
        valid = listeners is not None and all(map(callable, listeners))
        check_type("hooks", hooks, valid=valid, expected="an iterable of callables")
        self.config = config
        self.hooks = Hooks(listeners or ())  # transports emit their events to them
        self._header = config.header
        self._lock = threading.RLock()
        self._open = self._new()
        check_classes(config)

    # Writing ---------------------------------------------------------------------------------------------------

    def offload(
        self,
        parentheses: None = None,
        /,
        *,
        payload: str = "value",
        destination: str | None = None,
        key: str | None = None,
        headers: str | None = None,
        classify: Classifier | None = None,
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Decorate a function that sends messages, so that it accepts payloads of any size: ``@cc.offload(...)``.

        ``payload``, ``destination``, ``key`` and ``headers`` are names of the function's parameters. The function may
        be a method, a coroutine function, or return a future. It is called with an envelope in place of the payload,
        once for a pointer and once per chunk otherwise; the first call's result is returned.

        Args:
            parentheses: Nothing; it catches ``@cc.offload`` without parentheses.
            payload: The parameter for the message's value.
            destination: The parameter for the topic. Without it, the function's name serves as its only destination.
            key: The parameter for the message key; required if the configuration may send chunks.
            headers: The parameter for the headers, a mapping or a list of pairs.
            classify: Classifies an error of the function as ``"failed"`` (definitely not sent: the stored payload is
                deleted) or ``"unknown"`` (it is kept until it expires). By default only a message that is too large or
                invalid, a failed serializer and a full queue count as failed.

        Raises:
            ConfigError: At decoration: a parameter does not exist, chunks need a key parameter, or signatures or
                encryption need a destination parameter.
        """
        expected = "the names of the function's parameters: @cc.offload(payload=..., destination=...)"
        check_type("offload", parentheses, valid=parentheses is None, expected=expected)
        _check_callable("classify", classify)
        if destination is None and self.config.encryption.key_id:
            expected = "destination=<name of a parameter>: payloads are encrypted for it"
            fail("destination", found="nothing", expected=expected)
        if destination is None and self.config.signing.key_id and self.config.signing.bind_destination:
            expected = "destination=<name of a parameter>: signatures cover it; or signing.bind_destination: false"
            fail("destination", found="nothing", expected=expected)
        call = ProduceCall(payload=payload, destination=destination, key=key, headers=headers)
        configs = (self.config, *(override for _, override in self.config.destinations))
        may_chunk = any(strategy_class(each).may_chunk for each in configs)

        def decorator(function: Callable[P, R]) -> Callable[P, R]:
            return decorate(function, call, self._plan, may_chunk=may_chunk, classify=classify)

        return decorator

    def outbound(
        self,
        payload: Payload | Envelope | None,
        *,
        destination: str,
        key: object = None,
        headers: Headers = None,
        limit: WireLimit | None = None,
        takes_headers: bool = True,
        text_key: bool = False,
        classify: Classifier | None = None,
        delay_seconds: float = 0,
    ) -> OutboundBlock:
        """Offload one payload by hand, in a ``with`` or ``async with`` block that yields an `Outbound`.

        Call ``out.send(produce)``, or take each envelope from ``out.envelopes``, produce it and call ``out.sent()``.
        Taking an envelope does not count as sending it. If the block exits with an error that ``classify`` calls
        ``failed``, the stored payload is deleted, unless ``out.sent()`` was called. It is kept if the outcome is
        unknown or the block exits normally. It is also deleted if no envelope was taken.

        Args:
            payload: Bytes-like, a readable binary file, or ``None``.
            destination: Topic or queue.
            key: The message key; chunks of a payload without one get its uuid.
            headers: A mapping or a list of pairs.
            limit: The transport's size limit and how it counts; by default Kafka's 1,000,000 bytes and arithmetic.
            takes_headers: Whether hints may be sent in headers.
            text_key: Whether a generated key is ``str``; otherwise it is ``bytes``.
            classify: See `offload`.
            delay_seconds: How long the broker holds the message back before it delivers it. The lifetime of a stored
                payload begins after that.
        """
        _check_callable("classify", classify)
        plan = self._plan(destination, limit)
        message = Message(
            payload=payload,
            destination=destination,
            key=key,
            headers=headers,
            threshold=plan.threshold,
            limit=plan.limit,
            takes_headers=takes_headers,
            text_key=text_key,
            delay_seconds=delay_seconds,
        )
        return OutboundBlock(plan.strategy, message, classify)

    def threshold(self, destination: str, limit: WireLimit | None = None) -> int:
        """Return the largest size on the wire, in bytes, of messages for this destination that are sent unchanged.

        Transports need not call `outbound` for messages up to this size, unless they begin with ``config.header`` or
        their headers declare them to be envelopes. -1 if no message is sent unchanged (``signing.require_envelope``).
        """
        return self._plan(destination, limit).unchanged_bytes

    def may_chunk(self, destination: str) -> bool:
        """Whether a payload for this destination can become several messages, which need a key to stay together."""
        return strategy_class(self.config.for_destination(destination)).may_chunk

    def seal(self, pointer: Pointer, *, destination: str | None = None) -> bytes:
        """Return the message that carries a pointer, signed where signing is configured.

        Use it for payloads written with `Store.write`; all other ways of sending do this automatically.

        Args:
            pointer: The pointer.
            destination: The topic from which readers accept the message where signing is configured; by default the one
                in the pointer, for which the payload was written. Pass it to forward a pointer to another topic.

        Raises:
            PointerRejectedError: The payload is encrypted for another destination.
        """
        seal = self.opened.seal
        if destination is not None and seal.signs:
            pointer = seal.bound(pointer, destination)
        return encode_pointer(seal.sign(pointer), header=self._header)

    # Reading ---------------------------------------------------------------------------------------------------

    def resolve(self, message: M, *, destination: str | None = None, headers: object = None) -> M:
        """Return the payload of one message: that of a pointer or an escaped payload, or the message itself.

        Args:
            message: Its value as received from the broker.
            destination: The topic that it was read from. Required where signing keys are configured, unless
                ``signing.bind_destination`` is false.
            headers: As received; the signature of an escaped payload is in them.

        Raises:
            ChunkError: A chunk, which cannot be resolved alone: use `resolver`.
            EnvelopeError: Damaged, or of an unknown type or version.
            PointerRejectedError: The message is not trusted, or was sent to another destination, or this process cannot
                use its store (a driver or an environment variable is missing).
            ConfigError: A signature is required, and this process has no keys to check it.
            StoreError: The payload is missing, damaged or unavailable; see its subclasses.
        """
        if message is None:
            return message
        payload: Any = self.opened.messages.payload(message, headers, destination)
        return payload  # type: ignore[no-any-return]

    async def aresolve(self, message: M, *, destination: str | None = None, headers: object = None) -> M:
        """Same as `resolve` for event loops: stores are read in a thread.

        A cancelled task ends immediately; the read stops at its next piece and closes its connection.
        """
        work = self.opened.messages.work(message, headers, destination)
        run: Callable[[], Any] = work.run
        if not work.blocks:
            return run()  # type: ignore[no-any-return]
        return await in_thread(run, size=work.size or 0, pipelined=work.pipelined)

    def resolve_many(
        self,
        messages: Iterable[ManyMessage],
        *,
        destination: str | None = None,
        concurrency: int = 64,
        max_bytes: int = 64 << 20,
    ) -> Iterator[Resolution]:
        """Resolve messages concurrently, and yield a `Resolution` for each one, in order.

        An error about one message is in its resolution, and does not affect the others. Up to ``concurrency`` messages
        are taken from ``messages`` ahead. An error of ``messages`` is raised after the resolutions of those before it.
        When the caller stops iterating, reads stop at their next piece. A forked child cannot continue the iterator.

        Args:
            messages: Values as received from the broker; tuples of value and headers where escaped payloads are signed.
            destination: As for `resolve`.
            concurrency: The most payloads to read at the same time, or to hold for the caller, from 1. All calls in
                this process together read 128 payloads at a time.
            max_bytes: Limit for the sizes of these payloads in memory, without the one that the caller processes, from
                1. A larger payload, or one of unknown size, is read alone.

        Raises:
            ConfigError: A number is out of range.
            PayloadTypeError: ``messages`` is one message.
        """
        check_many(messages, concurrency, max_bytes)
        prepare = functools.partial(self.opened.messages.work, destination=destination)
        return resolve_many(messages, prepare, concurrency=concurrency, max_bytes=max_bytes)

    def aresolve_many(
        self,
        messages: Iterable[ManyMessage] | AsyncIterable[ManyMessage],
        *,
        destination: str | None = None,
        concurrency: int = 64,
        max_bytes: int = 64 << 20,
    ) -> AsyncIterator[Resolution]:
        """Same as `resolve_many` for ``async for``. ``messages`` may be an asynchronous iterable.

        Cancelling the task stops the reads at their next piece. After ``break``, close the iterator, for example with
        `contextlib.aclosing`, to stop them at once.
        """
        check_many(messages, concurrency, max_bytes)
        prepare = functools.partial(self.opened.messages.work, destination=destination)
        return aresolve_many(messages, prepare, concurrency=concurrency, max_bytes=max_bytes)

    def open(self, message: Buffer, *, destination: str | None = None, headers: object = None) -> BinaryIO:
        """Return the payload of one message as a binary file, read in bounded memory and verified before its last byte.

        Args:
            message: Its value as received from the broker.
            destination: As for `resolve`.
            headers: As for `resolve`.

        Raises:
            ChunkError: A chunk. Other errors are those of `resolve`; a store's errors are raised while reading.
        """
        return self.opened.messages.file(message, headers, destination)

    def pointer(self, message: Buffer, *, destination: str | None = None) -> Pointer | None:
        """Return the pointer of a message without any I/O; ``None`` for any other message.

        Args:
            message: Its value as received from the broker.
            destination: As for `resolve`.

        Raises:
            EnvelopeError: Damaged, or of an unknown type or version.
            PointerRejectedError: Too long, its signature is missing or wrong, or it was sent to another destination.
            ConfigError: A signature is required, and this process has no keys to check it.
        """
        return self.opened.messages.pointer(message, destination)

    def read(self, pointer: Pointer) -> bytes:
        """Return the payload of a pointer that `pointer` returned. Its signature is not checked again.

        Raises:
            PointerRejectedError: The key lies outside of its store, or the store is not configured, not listed in
                ``reads_from``, or cannot be used by this process (chained from the `ConfigError` or
                `MissingDependencyError`).
            StoreError: The payload is missing, damaged or unavailable; see its subclasses.
        """
        return self.opened.messages.read(pointer)

    def resolver(self, *, clock: Callable[[], float] = time.monotonic, max_redeliveries: int | None = None) -> Resolver:
        """Return a resolver for a stream of messages, chunks included. Create one per consumer.

        Args:
            clock: Seconds, monotonic.
            max_redeliveries: Overrides ``chunking.max_redeliveries``.

        Raises:
            ConfigError: An argument is invalid.
        """
        check_type("clock", clock, valid=callable(clock), expected="a callable that returns seconds")
        chunking = self.config.chunks
        if max_redeliveries is not None:
            check_int("max_redeliveries", max_redeliveries, minimum=0)
            chunking = replace(chunking, max_redeliveries=max_redeliveries)
        current = self.opened
        from claimcheck._receive.resolver import Resolver

        return Resolver(
            current.messages.read_data,
            chunking=chunking,
            unpacker=current.unpacker,
            header=self._header,
            clock=clock,
            hooks=self.hooks,
            seal=current.seal,
        )

    # Stores ----------------------------------------------------------------------------------------------------

    def store(self, name: str) -> Store:
        """Return a store by its name in the configuration. A store is opened at first use, once per process.

        Raises:
            ConfigError: No such store, or an environment variable that it needs is not set.
            MissingDependencyError: Its driver is not installed; names the extra to install.
        """
        store = self.opened.stores.get(name)
        if store is not None:
            return store
        with self._lock:
            return self._open.open(name)  # read again: it may have been closed, or opened by another thread

    def check(self, *, open: bool = False) -> CheckReport:  # noqa: A002 - short for a keyword
        """Return what is insecure or unwise in the configuration and, with ``open``, whether its stores work.

        Suits a readiness probe: ``cc.check(open=True).ok``. Failures are findings, not exceptions.

        Args:
            open: Whether to resolve the signing keys, and to write, read and delete a small payload in every store.
        """
        from claimcheck._operate.check import check  # this and sweep, below, would make every import slower

        return check(self, open=open)

    def sweep(
        self,
        store: str,
        *,
        dry_run: bool = True,
        grace_seconds: float = 3600.0,
        rate: float | None = None,
        on_batch: Callable[[SweepReport], None] = lambda report: None,
    ) -> SweepReport:
        """Delete the payloads of one store whose lifetime has passed, and what interrupted writes left behind.

        Safe beside writers, readers and other sweeps. Payloads without a known lifetime stay.

        Args:
            store: The store's name in the configuration.
            dry_run: Whether to delete nothing and only count.
            grace_seconds: How long entries are kept after their lifetime; longer than the longest write, and than the
                clocks of writers, store and this machine differ.
            rate: The most deletions per second.
            on_batch: Called with the report, one object that changes, at the beginning and after each batch.

        Raises:
            ConfigError: No such store, or an argument is invalid.
            ScanNotSupportedError: The store cannot list its payloads.
            StoreError: The store failed. Everything that was deleted had expired; the sweep can be repeated.
        """
        from claimcheck._operate.sweep import Sweep

        options = Sweep(grace_seconds=grace_seconds, dry_run=dry_run, rate=rate)
        return options.run(self.store(store), on_batch=on_batch)

    def close(self) -> None:
        """Close all connections. Payloads are kept, and the next use opens new connections."""
        _ = self.opened  # the connections of a parent process are not closed here
        with self._lock:
            closing, self._open = self._open, self._new()
        closing.close()

    def __enter__(self) -> ClaimCheck:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[type[ClaimCheck], tuple[Config]]:
        return ClaimCheck, (self.config,)

    def __repr__(self) -> str:
        return f"<ClaimCheck {self.config.strategy}, stores {', '.join(self.config.stores) or 'none'}>"

    @property
    def opened(self) -> Opened:
        """For the modules of claimcheck: what this process has opened; nothing after a fork."""
        if self._open.process is not _process.process:
            with _process.after_fork:
                if self._open.process is not _process.process:
                    self._lock = threading.RLock()  # the owner of the old one may not exist in this process
                    self._open = self._new()
        return self._open

    # Internals -------------------------------------------------------------------------------------------------

    def _plan(self, destination: str, limit: WireLimit | None = None) -> Plan:
        opened = self._open if self._open.process is _process.process else self.opened  # no call in most cases
        return opened.plans.get((destination, limit)) or opened.plan(destination, limit)

    def _new(self) -> Opened:
        return Opened(self.config, store=self.store, hooks=self.hooks)


def _check_callable(name: str, value: object) -> None:
    check_type(name, value, valid=value is None or callable(value), expected="a callable or None")
