"""Messages that other clients can read and this source cannot: it says so, and leaves the query where it is.

Without this a reader passes over what is encrypted, and over a payload in chunks of the client's own of which a trigger
ends in the middle: rows would be missing, and nobody would know.
"""

from __future__ import annotations

from typing import Any

from claimcheck.spark.sources.errors import ForeignMessageError
from claimcheck.transports.pulsar.errors import vendor

__all__ = ["as_it_is", "check_readable"]

_FIRST_CHUNK = b"\x3a"  # field 7 of `MessageIdData` (Pulsar's protocol): where a payload in chunks begins


def as_it_is() -> dict[str, Any]:
    """Arguments for a reader or consumer that hands out what it cannot decrypt; by default it is passed over."""
    return {"crypto_failure_action": vendor().ConsumerCryptoFailureAction.CONSUME}


def check_readable(message: Any, message_id: Any, partition: str) -> None:
    """Refuse what is not read here.

    Args:
        message: As the client's own core gives it, read by `as_it_is`.
        message_id: Its id.
        partition: Where it is.

    Raises:
        ForeignMessageError: It is encrypted, or was sent in chunks of the client's own.
    """
    if message.encryption_context() is not None:
        _refuse(message_id, partition, "is encrypted, and this source has no keys")
    in_batch = message_id.batch_index() >= 0  # which is never in chunks, and whose id tells of the batch
    if not in_batch and _FIRST_CHUNK in (told := message_id.serialize()) and told != _plain(message_id):
        why = "ends a payload in chunks of the client's own (chunking_enabled), of which a batch could hold a part"
        _refuse(message_id, partition, f"{why}; send it with claimcheck, as a pointer or in its chunks")


def _plain(message_id: Any) -> bytes:
    told: bytes = (
        vendor().MessageId(message_id.partition(), message_id.ledger_id(), message_id.entry_id(), -1).serialize()
    )
    return told


def _refuse(message_id: Any, partition: str, why: str) -> None:
    place = message_id.ledger_id(), message_id.entry_id()
    raise ForeignMessageError(
        f"{partition}: entry {place} {why}. The query stays before it: other clients can read the topic, and a new "
        "query with startingPosition=latest what comes after it, once something has",
        destination=partition,
    )
