"""The transport's errors, and which of the client's errors mean that a message is definitely not in the topic."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING

from claimcheck._send.classification import classifier
from claimcheck.errors import TransportError, import_vendor

if TYPE_CHECKING:
    import pulsar

# Raised before the message was stored. After timeouts, lost connections and on a closed producer, messages were found
# in the topic.
_REFUSALS = {
    "AuthenticationError", "AuthorizationError", "CryptoError", "IncompatibleSchema", "InvalidConfiguration",
    "InvalidMessage", "InvalidTopicName", "InvalidUrl", "MemoryBufferIsFull", "MessageTooBig", "NotAllowedError",
    "OperationNotSupported", "ProducerBlockedQuotaExceededError", "ProducerBlockedQuotaExceededException",
    "ProducerNotInitialized", "ProducerQueueIsFull", "TopicNotFound", "TopicTerminated", "UnsupportedVersionError",
}  # fmt: skip

classify = classifier(
    {
        ("pulsar", "PulsarException"): frozenset(_REFUSALS),
        **{("_pulsar", name): frozenset() for name in _REFUSALS},
        **{("builtins", name): frozenset() for name in ("TypeError", "ValueError")},  # about the arguments
    }
)


class SendDeadlineError(TransportError):
    """The broker did not answer in time; the message may be in the topic, and its stored payload is kept.

    If the *topic* has a lower limit than the producer knows about, the Pulsar client retries forever without reporting
    an error. The producer is unusable then. Close it: until then the broker keeps dropping the connection that it
    shares with the client's other producers. For a payload in chunks this is the ``__cause__`` of a `PartialSendError`.
    """

    retryable = True


class ChunkArgumentError(TransportError, ValueError):
    """A payload in chunks was sent with an argument that chunks cannot have. Nothing was sent."""


class SharedSubscriptionError(TransportError):
    """A chunk on a Shared subscription, where other chunks of its payload may go to other consumers."""


def vendor() -> ModuleType:
    """Return the client library."""
    return import_vendor("pulsar", extra="pulsar")


def error_of(result: pulsar.Result) -> Exception:
    """Return the exception that a blocking call raises for a result that is not ``Ok``."""
    exceptions = vendor().exceptions
    error: Exception = getattr(exceptions, result.name, exceptions.PulsarException)(
        f"Pulsar error: Result{result.name}"
    )
    return error
