"""Between the two clients: they are different faces of the same objects underneath."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from claimcheck.errors import ClaimCheckError
from claimcheck.transports.pulsar._errors import vendor

__all__ = ["as_asyncio_says_it", "as_exception", "blocking", "called_back"]


def blocking(kind: str, native: Any) -> Any:
    """The blocking client's object over what is the same underneath, and not among that client's own."""
    made = getattr(vendor(), kind)()
    inner = f"_{kind.lower()}"
    setattr(made, inner, getattr(native, inner))
    made._schema, made._client = native._schema, _Nobody()
    return made


class _Nobody:
    """Stands in for the blocking client, which would strike a closed consumer off its list."""

    class _consumers:  # noqa: N801
        @staticmethod
        def remove(_: Any) -> None:
            """There is none."""


def called_back(send: Callable[[Callable[[Any, Any], None]], None]) -> asyncio.Future[Any]:
    """Send with a callback, now; gives what is to be awaited for it."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def call(result: Any, message_id: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(conclude, result, message_id)

    def conclude(result: Any, message_id: Any) -> None:
        if future.done():
            return
        if result == vendor().Result.Ok:
            future.set_result(message_id)
        else:
            future.set_exception(as_exception(result))

    send(call)
    return future


@contextlib.contextmanager
def as_asyncio_says_it() -> Iterator[None]:
    """The asyncio client has one exception for all results."""
    try:
        yield
    except ClaimCheckError:
        raise
    except vendor().exceptions.PulsarException as error:
        raise as_exception(getattr(vendor().Result, type(error).__name__, vendor().Result.UnknownError)) from error


def as_exception(result: Any) -> Exception:
    """The one exception of the asyncio client."""
    import pulsar.asyncio

    error: Exception = pulsar.asyncio.PulsarException(result)
    return error
