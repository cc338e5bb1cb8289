"""The decorator for functions that send messages, and the ``outbound`` block.

A decorated function is called with an envelope in place of the payload: once for a pointer, once per chunk otherwise.
It may be a function, a method or a coroutine function, and it may return a future.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from claimcheck._content.source import is_file
from claimcheck._send.classification import Classifier, NotSentError
from claimcheck._send.outbound import Outbound, in_background, is_future
from claimcheck._send.strategy import Message, Plan, Strategy
from claimcheck._threads import in_thread
from claimcheck._wire.envelope import Envelope
from claimcheck.errors import ConfigError

if TYPE_CHECKING:
    import asyncio

    from typing_extensions import TypeIs

    from claimcheck._send.outbound import AnyFuture

P = ParamSpec("P")
R = TypeVar("R")

_Args = tuple[Any, ...]
_Kwargs = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ProduceCall:
    """The roles of a produce function's parameters."""

    payload: str
    destination: str | None
    key: str | None
    headers: str | None

    def check(self, function: Callable[..., object], *, may_chunk: bool) -> inspect.Signature:
        """Return the function's signature, which has all these parameters."""
        signature = inspect.signature(function)
        named = {n for n, p in signature.parameters.items() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
        where, known = _name_of(function), ", ".join(sorted(named))
        for role in ("payload", "destination", "key", "headers"):
            name = getattr(self, role)
            if name is not None and name not in named:
                text = f"{where} has no parameter {name!r} for the {role}; it has {known or 'none'}"
                raise ConfigError(text, path=where, found=name, expected=f"one of {known}")
        if may_chunk and self.key is None:
            raise ConfigError(
                f"{where}: the configuration may send chunks, which need a key to stay together: name the key's "
                "parameter with key=..., or use strategy external",
                path=where,
                found="no key parameter",
                expected="key=<name of a parameter>",
            )
        return signature


def decorate(
    function: Callable[P, R],
    call: ProduceCall,
    plan: Callable[[str], Plan],
    *,
    may_chunk: bool,
    classify: Classifier | None,
) -> Callable[P, R]:
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigError(f"{_name_of(function)} is a generator function; decorate the call that sends")
    sender = _Sender(function, call, call.check(function, may_chunk=may_chunk), plan, classify)
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def async_wrapper(*args: P.args, **kwargs: P.kwargs) -> object:
            return await sender.send_async(args, kwargs)

        return cast("Callable[P, R]", async_wrapper)

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> Any:
        return sender.send(args, kwargs)

    return wrapper


async def offload_async(strategy: Strategy, message: Message) -> Outbound:
    """Offload without blocking the event loop. After a cancellation, the stored payload is deleted."""
    if (quick := strategy.shortcut(message)) is not None:
        return quick

    def undo(out: Outbound) -> None:
        out.settle(InterruptedError("the sending task was cancelled"))

    return await in_thread(lambda: strategy.offload(message), undo=undo, to_the_end=is_file(message.payload))


class OutboundBlock:
    """A block that sends one payload: offloads it on entry, and keeps or deletes the stored payload on exit."""

    def __init__(self, strategy: Strategy, message: Message, classify: Classifier | None) -> None:
        self._strategy = strategy
        self._message = message
        self._classify = classify
        self._out: Outbound

    def __enter__(self) -> Outbound:
        return self._entered(self._strategy.offload(self._message))

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._out.settle(error)

    async def __aenter__(self) -> Outbound:
        return self._entered(await offload_async(self._strategy, self._message))

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        await self._out.settle_async(error)

    def _entered(self, out: Outbound) -> Outbound:
        self._out = out.bind(self._message.destination, self._strategy.context.hooks, self._classify)
        return self._out


class _Sender:
    """Sends through one decorated function."""

    def __init__(
        self,
        function: Callable[..., Any],
        call: ProduceCall,
        signature: inspect.Signature,
        plan: Callable[[str], Plan],
        classify: Classifier | None,
    ) -> None:
        self._function = function
        self._call = call
        self._signature = signature
        self._plan = plan
        self._classify = classify
        self._text_key = call.key is not None and _takes_text(signature.parameters[call.key])
        self._name = _name_of(function)
        roles = (call.destination, call.payload, call.key, call.headers)
        self._parameters = [_Parameter.of(signature, name) for name in roles]

    def send(self, args: _Args, kwargs: _Kwargs) -> object:
        topic, payload, key, headers = self._find(args, kwargs)
        plan = self._plan(topic)
        if plan.passes(payload, key, headers):
            return self._function(*args, **kwargs)
        produce = functools.partial(self._produce_now, self._bound(args, kwargs))
        strategy, message = plan.strategy, self._message(topic, payload, key, headers, plan)
        out = strategy.offload(message).bind(topic, strategy.context.hooks, self._classify)
        out.send(produce)
        return follow(out, produce)

    async def send_async(self, args: _Args, kwargs: _Kwargs) -> object:
        topic, payload, key, headers = self._find(args, kwargs)
        plan = self._plan(topic)
        if plan.passes(payload, key, headers):
            return await self._function(*args, **kwargs)
        produce = functools.partial(self._produce, self._bound(args, kwargs))
        strategy, message = plan.strategy, self._message(topic, payload, key, headers, plan)
        out = (await offload_async(strategy, message)).bind(topic, strategy.context.hooks, self._classify)
        await out.send_async(produce)
        return follow(out, produce)

    def _find(self, args: _Args, kwargs: Mapping[Any, Any]) -> tuple[str, Any, object, Any]:
        """Return topic, payload, key and headers, without binding the arguments, which takes several microseconds."""
        count, (d, p, k, h) = len(args), self._parameters
        topic = args[d.index] if d.index < count else kwargs.get(d.name, d.default)
        payload = args[p.index] if p.index < count else kwargs.get(p.name, p.default)
        key = args[k.index] if k.index < count else kwargs.get(k.name, k.default)
        headers = args[h.index] if h.index < count else kwargs.get(h.name, h.default)
        return self._name if topic is None else str(topic), payload, key, headers

    def _bound(self, args: _Args, kwargs: _Kwargs) -> dict[str, Any]:
        """Return the arguments by name; refuses a call that the function would refuse, before anything is stored."""
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return bound.arguments

    def _message(self, topic: str, payload: Any, key: object, headers: Any, plan: Plan) -> Message:
        return Message.of(
            payload=payload,
            destination=topic,
            key=key,
            headers=headers,
            threshold=plan.threshold,
            limit=plan.limit,
            takes_headers=self._call.headers is not None,
            text_key=self._text_key,
        )

    def _produce_now(self, arguments: dict[str, Any], envelope: Envelope) -> object:
        result = self._produce(arguments, envelope)
        if inspect.iscoroutine(result):
            result.close()  # none of it has run
            raise NotSentError(f"{self._name} returns a coroutine: decorate an 'async def' instead")
        return result

    def _produce(self, arguments: dict[str, Any], envelope: Envelope) -> Any:
        """Call the function once, with copies of its arguments: the caller's objects are never changed."""
        call = self._call
        changed = {**arguments, call.payload: envelope.data}
        changed |= {} if call.key is None else {call.key: envelope.key}
        changed |= {} if call.headers is None else {call.headers: envelope.headers}
        bound = inspect.BoundArguments(self._signature, changed)
        return self._function(*bound.args, **bound.kwargs)


@dataclass(frozen=True, slots=True)
class _Parameter:
    """Where one parameter's value is in a call, without binding the others; nowhere if the function has none."""

    index: int = sys.maxsize
    name: str | None = None
    default: object = None

    @classmethod
    def of(cls, signature: inspect.Signature, name: str | None) -> _Parameter:
        if name is None:
            return cls()
        parameter, index = signature.parameters[name], list(signature.parameters).index(name)
        default = None if parameter.default is parameter.empty else parameter.default
        index = sys.maxsize if parameter.kind is parameter.KEYWORD_ONLY else index
        return cls(index, None if parameter.kind is parameter.POSITIONAL_ONLY else name, default)


def _name_of(function: Callable[..., object]) -> str:
    return getattr(function, "__qualname__", None) or type(function).__qualname__


def _takes_text(parameter: inspect.Parameter) -> bool:
    """Whether the annotation has ``str`` and not ``bytes``; Kafka takes either, Pulsar needs text."""
    text = inspect.formatannotation(parameter.annotation) if parameter.annotation is not parameter.empty else ""
    return "str" in text and "bytes" not in text


def follow(out: Outbound, produce: Callable[[Envelope], object]) -> object:
    """Return the result of a decorated call: the first result, which counts as sent unless it is a future."""
    first = out.results[0]
    if not is_future(first):
        out.finish()
    elif out.total > 1:
        return _Joined(out, produce).future
    elif out.awaits_outcome:  # reading a future's error marks it as retrieved, which is the caller's to do
        first.add_done_callback(lambda done: _finish(out, done))
    return first


def _is_on_loop(future: AnyFuture) -> TypeIs[asyncio.Future[Any]]:
    return hasattr(future, "get_loop")


def _new_like(future: AnyFuture) -> AnyFuture:
    if _is_on_loop(future):
        return future.get_loop().create_future()
    from concurrent.futures import Future

    joined = Future[Any]()
    joined.set_running_or_notify_cancel()  # its parts are in flight: it can no longer be cancelled
    return joined


def _record(out: Outbound, number: int, done: AnyFuture) -> None:
    if done.cancelled():
        from concurrent.futures import CancelledError

        out.ledger.failed(number, CancelledError("the future was cancelled"))
    elif (error := done.exception()) is not None:
        out.ledger.failed(number, error)
    else:
        out.ledger.acknowledged(number, done.result())


def _finish(out: Outbound, done: AnyFuture) -> None:
    _record(out, 0, done)
    if _is_on_loop(done) and out.ledger.verdict().rollback:  # an event loop must not wait for a store
        done.get_loop().run_in_executor(None, out.finish)
    else:
        out.finish()


class _Joined:
    """One future for the futures of all chunks of a payload."""

    def __init__(self, out: Outbound, produce: Callable[[Envelope], object]) -> None:
        self._out = out
        self._produce = produce
        self._left = len(out.results)
        self._lock = threading.Lock()
        self.future = _new_like(out.results[0])
        for number, future in enumerate(list(out.results)):
            future.add_done_callback(lambda done, number=number: self._one_done(number, done))

    def _one_done(self, number: int, done: AnyFuture) -> None:
        with self._lock:
            _record(self._out, number, done)
            self._left -= 1
            if self._left:
                return
        error = self._end()
        if self.future.done():  # the caller cancelled it
            return
        if error is None:
            self.future.set_result(self._out.results[0].result())
        else:
            self.future.set_exception(error)

    def _end(self) -> BaseException | None:
        """Send an abort envelope if needed; returns the joined future's error."""
        out, error = self._out, self._out.ledger.error
        aborting = out.tell_readers(self._produce)
        if inspect.iscoroutine(aborting) and _is_on_loop(self.future):
            in_background(self.future.get_loop(), aborting)
        if not (out.finish().abort and isinstance(error, Exception)):
            return error
        partial = out.ledger.partial_error(error)
        partial.__cause__ = error
        return partial
