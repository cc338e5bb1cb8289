"""What Pulsar refuses, and how it fails; which of its errors mean that a message is definitely not in the topic."""

from __future__ import annotations

from typing import Any

from claimcheck._registry import import_vendor
from claimcheck._sending import Outcome
from claimcheck.errors import TransportError

__all__ = [
    "ChunkArgumentError",
    "SendDeadlineError",
    "SharedSubscriptionError",
    "classify",
    "error_of",
    "vendor",
]

# Refused before the message was stored. Time-outs, lost connections and a closed producer are none of these: such
# messages were found in the topic all the same.
_REFUSALS = {
    "AuthenticationError", "AuthorizationError", "CryptoError", "IncompatibleSchema", "InvalidConfiguration",
    "InvalidMessage", "InvalidTopicName", "InvalidUrl", "MemoryBufferIsFull", "MessageTooBig", "NotAllowedError",
    "OperationNotSupported", "ProducerBlockedQuotaExceededError", "ProducerBlockedQuotaExceededException",
    "ProducerNotInitialized", "ProducerQueueIsFull", "TopicNotFound", "TopicTerminated", "UnsupportedVersionError",
}  # fmt: skip


class SendDeadlineError(TransportError):
    """The broker did not answer in time; the message may be in the topic, and what was stored for it stays.

    If the *topic* has a lower limit than the producer knows about, the Pulsar client retries forever without reporting
    an error. The producer is unusable then: close it, since until then the broker keeps dropping the connection that it
    shares with the client's other producers. Of a payload in chunks this is the ``__cause__`` of a `PartialSendError`.
    """

    retryable = True


class ChunkArgumentError(TransportError, ValueError):
    """An argument of the send that cannot hold for a payload that goes as chunks. Nothing was sent."""


class SharedSubscriptionError(TransportError):
    """A chunk on a Shared subscription, where the others of its payload may go to other consumers."""


def vendor() -> Any:
    """The client library.

    Raises:
        MissingDependencyError: It is not installed.
    """
    return import_vendor("pulsar", extra="pulsar")


def classify(error: BaseException) -> Outcome:
    """Whether an error of a send means that the message is not in the topic: only what is a refusal for certain."""
    if isinstance(error, ChunkArgumentError | ValueError | TypeError):  # of the arguments, before anything was sent
        return "failed"
    result = getattr(error, "error", None)  # the asyncio client has one class for all
    name = result().name if callable(result) else type(error).__name__
    return "failed" if name in _REFUSALS else "unknown"


def error_of(result: Any) -> Exception:
    """The exception that a blocking call raises for a result that is not ``Ok``."""
    exceptions = vendor().exceptions
    name = "LookupError" if result.name == "LookupError" else result.name
    error: Exception = getattr(exceptions, name, exceptions.PulsarException)(f"Pulsar error: Result{result.name}")
    return error
