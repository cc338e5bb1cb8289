"""Listeners that receive whole payloads, for ``subscribe(message_listener=...)`` and ``create_reader(...)``."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Unpack

from claimcheck.transports.pulsar._consumer import ConsumerOptions, PulsarConsumer
from claimcheck.transports.pulsar._message import PulsarMessage
from claimcheck.transports.pulsar._reader import PulsarReader
from claimcheck.transports.pulsar._receiver import blocking

if TYPE_CHECKING:
    from claimcheck._client import ClaimCheck

__all__ = ["listening"]

_log = logging.getLogger(__name__)


def listening(
    listener: Callable[[Any, PulsarMessage], object], cc: ClaimCheck, **options: Unpack[ConsumerOptions]
) -> Callable[[Any, Any], None]:
    """Make the ``message_listener`` of a native consumer, or the ``reader_listener`` of a native reader.

    The client's thread calls the listener for each payload. Its exceptions are logged; they neither acknowledge the
    message nor have it redelivered. Chunks that have waited too long expire when the next message comes.

    Args:
        listener: Receives a `PulsarConsumer`, for acknowledgements, or a `PulsarReader`; and the payload.
        cc: A `claimcheck.ClaimCheck` that knows the writers' stores.
        options: See `PulsarConsumer`; for a reader only those that `PulsarReader` has, too.
    """
    made: list[PulsarConsumer | PulsarReader] = []
    lock = threading.Lock()

    def native_listener(consumer: Any, message: Any) -> None:
        with lock:
            if not made:
                made.append(_wrapped(consumer, message._schema, cc, options))
            try:
                made[0].take(message)
            except Exception:
                _log.exception("a message could not be taken")
            while (payload := made[0].take_ready()) is not None:
                _call(listener, made[0], payload)

    return native_listener


def _wrapped(native: Any, schema: Any, cc: ClaimCheck, options: Any) -> PulsarConsumer | PulsarReader:
    """Wrap what the client passes to a listener: a consumer without its schema, also for a reader."""
    native._schema = schema
    if not hasattr(native._consumer, "read_next"):
        return PulsarConsumer(native, cc, **options)
    native._reader = native._consumer
    return PulsarReader(blocking("Reader", native), cc, **options)


def _call(listener: Callable[[Any, PulsarMessage], object], consumer: Any, message: PulsarMessage) -> None:
    try:
        listener(consumer, message)
    except Exception:
        _log.exception("the listener failed on %s", message)
