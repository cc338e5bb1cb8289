"""Every exception of claimcheck, in one tree: catch `ClaimCheckError` and nothing of ours escapes.

An error says what happened in its text and carries the facts as attributes (``error.key``, ``error.limit``), so
that programs never parse messages. A fact that is not known is ``None``. Errors pickle, facts and all: Spark and
multiprocessing move them between processes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = [
    "ArgumentTypeError",
    "ChunkConflictError",
    "ChunkError",
    "ClaimCheckError",
    "ConfigError",
    "ConfigProblem",
    "EnvelopeError",
    "IncompletePayloadError",
    "IntegrityError",
    "KeyTakenError",
    "MissingDependencyError",
    "PartialSendError",
    "PayloadError",
    "PayloadNotFoundError",
    "PayloadTooLargeError",
    "PayloadTypeError",
    "PointerRejectedError",
    "StoreError",
    "StoreUnavailableError",
    "TransportError",
    "UnknownVersionError",
]


class ClaimCheckError(Exception):
    """Base of every error that claimcheck raises.

    Attributes:
        retryable: Whether the same call may succeed later with nothing changed.
    """

    retryable: bool = False

    def __init__(self, message: str, /, **facts: Any) -> None:
        unknown = [name for name in facts if not hasattr(type(self), name)]
        if unknown:
            raise TypeError(f"{type(self).__name__} has no fact called {', '.join(unknown)}")
        super().__init__(message)
        self.__dict__.update(facts)


@dataclass(frozen=True, slots=True)
class ConfigProblem:
    """One mistake in a configuration.

    Attributes:
        message: The whole problem in one sentence.
        path: The key in the configuration, for example ``stores.hot.url``.
        found: A description of the current value.
        expected: A description of a valid value.
    """

    message: str
    path: str = ""
    found: str | None = None
    expected: str | None = None

    def __str__(self) -> str:
        return self.message


class ConfigError(ClaimCheckError):
    """The configuration cannot be used; nothing was opened.

    ``path``, ``found`` and ``expected`` are those of the first problem.

    Attributes:
        path: The key in the configuration, for example ``stores.hot.url``.
        found: A description of the current value.
        expected: A description of a valid value.
        problems: Every problem that was found, at least one.
    """

    path: str = ""
    found: str | None = None
    expected: str | None = None
    problems: tuple[ConfigProblem, ...] = ()

    def __init__(self, message: str, /, **facts: Any) -> None:
        super().__init__(message, **facts)
        self.problems = self.problems or (ConfigProblem(message, self.path, self.found, self.expected),)


class ArgumentTypeError(ConfigError, TypeError):
    """An argument of a constructor is an object of the wrong type; nothing was opened."""


class MissingDependencyError(ClaimCheckError):
    """An optional package is not installed; raised at first use, never at import.

    Attributes:
        package: The distribution that is missing.
        extra: The extra of claimcheck that brings it.
    """

    package: str | None = None
    extra: str | None = None


class PayloadError(ClaimCheckError):
    """The caller's payload cannot be sent: a closed file, a file that shrinks while it is read. Nothing is left."""


class PayloadTypeError(PayloadError, TypeError):
    """The payload is neither bytes-like nor a readable binary file. Nothing was sent."""


class EnvelopeError(ClaimCheckError):
    """Bytes that begin with our header but are no valid envelope.

    Attributes:
        kind: The number in the type byte, where it could be read.
    """

    kind: int | None = None


class UnknownVersionError(EnvelopeError):
    """Written by a newer claimcheck than this one.

    Attributes:
        version: The version found.
        supported: The newest version that this library reads.
    """

    version: int | None = None
    supported: int | None = None


class PointerRejectedError(ClaimCheckError):
    """A pointer that will not be followed; no store was asked.

    Attributes:
        reason: One word for metrics: ``store``, ``scope``, ``size``, ``signature``, ``version``, ``feature`` or
            ``type``.
        store: The store that the pointer names.
        key: The key that the pointer names.
    """

    reason: str | None = None
    store: str | None = None
    key: str | None = None


class StoreError(ClaimCheckError):
    """A store failed.

    Attributes:
        store: The store's name in the configuration.
        key: The payload's key inside the store.
    """

    store: str | None = None
    key: str | None = None


class StoreUnavailableError(StoreError):
    """The store could not be reached or did not answer; the outcome is unknown, rolling back is safe."""

    retryable = True


class KeyTakenError(StoreError):
    """A write found its key in use. Nothing was written, and what is stored there was left alone."""


class PayloadNotFoundError(StoreError):
    """The pointer is valid but the payload, or a part of it, is gone.

    Attributes:
        created_ms: When it was written, milliseconds since 1970.
        expires_ms: When it expired or will expire, milliseconds since 1970.
    """

    created_ms: int | None = None
    expires_ms: int | None = None


class PayloadTooLargeError(StoreError):
    """A payload over a limit; nothing was sent and nothing is left in a store.

    Attributes:
        size: Bytes, of the payload or of the message that it would need.
        limit: Bytes, or a number of chunks where the message says so.
    """

    size: int | None = None
    limit: int | None = None


class IntegrityError(StoreError):
    """What came back is not what was written.

    Attributes:
        expected: The size or checksum that was promised.
        actual: The size or checksum that was found.
    """

    expected: str | int | None = None
    actual: str | int | None = None


class ChunkError(ClaimCheckError):
    """Something about a payload that travels in chunks.

    Attributes:
        uuid: The payload's identity, as the chunks carry it.
        seen: Chunks that were sent or received.
        total: Chunks that the payload has.
    """

    uuid: str | None = None
    seen: int | None = None
    total: int | None = None


class PartialSendError(ChunkError):
    """A chunked send broke off in the middle; readers get an abort envelope where one could still be sent.

    ``acknowledged``, ``unknown`` and ``unsent`` add up to ``total``, and ``seen`` is ``acknowledged``. The error that
    ended the send is the ``__cause__``.

    Attributes:
        acknowledged: Chunks that are in the topic.
        unknown: Chunks that may be in the topic: no answer came, or one that leaves it open.
        unsent: Chunks that are not in the topic, for certain.
        results: What the produce call returned for each chunk that is in the topic.
    """

    acknowledged: int | None = None
    unknown: int | None = None
    unsent: int | None = None
    results: tuple[Any, ...] = ()


class IncompletePayloadError(ChunkError):
    """Expired or evicted before all of its chunks came, or given up by its writer."""


class ChunkConflictError(ChunkError):
    """Two different chunks claim the same place in one payload.

    Attributes:
        position: The chunk's number, from 0.
    """

    position: int | None = None


class TransportError(ClaimCheckError):
    """A transport refused or failed.

    Attributes:
        destination: The topic or queue.
        size: Bytes of the message on the wire.
        limit: Bytes that the broker accepts.
    """

    destination: str | None = None
    size: int | None = None
    limit: int | None = None
