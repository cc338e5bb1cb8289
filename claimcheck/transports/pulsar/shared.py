"""Chunks and subscriptions that several consumers share: where each chunk may go to another, nobody gets them all."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from claimcheck.errors import ClaimCheckError
from claimcheck.transports.pulsar.errors import SharedSubscriptionError, vendor

__all__ = ["shared_refusal"]

_log = logging.getLogger(__name__)
_SHARED = (
    "chunks cannot be put together on a Shared subscription, where each may go to another consumer: subscribe "
    "Key_Shared, Failover or Exclusive, or send pointers (strategy external, for example to a store of type "
    "pulsar-topic)"
)
_MAY_BE_SHARED = (
    "chunks on a subscription that may be Shared, where each may go to another consumer: say "
    "consumer_type=pulsar.ConsumerType.KeyShared if it is that, or send pointers (strategy external)"
)


def shared_refusal(consumer_type: Any, probe: Callable[[str], Any]) -> Callable[[str], ClaimCheckError | None]:
    """Make the answer to the question whether chunks can be put together on a subscription.

    Args:
        consumer_type: As its user says; ``None`` for an unknown one.
        probe: Acknowledges nothing in a topic, in a way that subscriptions of several consumers refuse.
    """
    known: list[ClaimCheckError | None] = []

    def refusal(topic: str) -> ClaimCheckError | None:
        if not known:
            known.append(_refusal(consumer_type, lambda: probe(topic)))
        return known[0]

    return refusal


def _refusal(consumer_type: Any, probe: Callable[[], Any]) -> ClaimCheckError | None:
    pulsar = vendor()
    if consumer_type == pulsar.ConsumerType.Shared:
        return SharedSubscriptionError(_SHARED)
    if consumer_type is None:
        try:
            probe()
        except pulsar.exceptions.CumulativeAcknowledgementNotAllowedError:
            return SharedSubscriptionError(_MAY_BE_SHARED)
        except pulsar.exceptions.PulsarException as error:
            _log.debug("cannot tell the type of the subscription: %s", error)
    return None
