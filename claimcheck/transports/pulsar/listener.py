"""A message listener that is given whole payloads, for ``Client.subscribe(message_listener=...)``."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from claimcheck.transports.needs import Resolves
from claimcheck.transports.pulsar.consumer import PulsarConsumer
from claimcheck.transports.pulsar.message import PulsarMessage

__all__ = ["listening"]

_log = logging.getLogger(__name__)


def listening(
    listener: Callable[[PulsarConsumer, PulsarMessage], object], cc: Resolves, **options: Any
) -> Callable[[Any, Any], None]:
    """Make the listener that a native consumer is subscribed with.

    It is called by the client's thread for each payload; what it raises is logged, and the message is neither
    acknowledged nor given back by that. Chunks that wait too long are let go of when the next message comes.

    Args:
        listener: Gets a `PulsarConsumer`, for acknowledgements, and the payload.
        cc: A `claimcheck.ClaimCheck` that knows the writers' stores.
        options: As of `PulsarConsumer`.
    """
    made: list[PulsarConsumer] = []
    lock = threading.Lock()

    def native_listener(consumer: Any, message: Any) -> None:
        with lock:
            if not made:
                consumer._schema = message._schema  # the client leaves it out here
                made.append(PulsarConsumer(consumer, cc, **options))
            try:
                made[0].take(message)
                made[0].tick()
            except Exception:
                _log.exception("a message could not be taken")
            while (payload := made[0].take_ready()) is not None:
                _call(listener, made[0], payload)

    return native_listener


def _call(
    listener: Callable[[PulsarConsumer, PulsarMessage], object], consumer: PulsarConsumer, message: PulsarMessage
) -> None:
    try:
        listener(consumer, message)
    except Exception:
        _log.exception("the listener failed on %s", message)
