"""All exceptions of claimcheck. `ClaimCheckError` is the base of every one of them.

An error describes what happened in its text and carries the details as attributes (``error.key``, ``error.limit``), so
that programs need not parse messages. Unknown details are ``None``. Errors can be pickled with their attributes: Spark
and multiprocessing pass them between processes.
"""

from __future__ import annotations

import importlib
import traceback
from types import ModuleType

__all__ = [
    "ArgumentTypeError",
    "ChunkConflictError",
    "ChunkError",
    "ClaimCheckError",
    "ConfigError",
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
    "ScanNotSupportedError",
    "StoreError",
    "StoreUnavailableError",
    "TransportError",
    "UnknownVersionError",
]


class ClaimCheckError(Exception):
    """Base class of all errors that claimcheck raises.

    Attributes:
        retryable: Whether the same call may succeed later.
    """

    retryable: bool = False

    def __init__(self, message: str, /, **facts: object) -> None:
        unknown = [name for name in facts if not hasattr(type(self), name)]
        if unknown:
            raise TypeError(f"{type(self).__name__} has no attribute called {', '.join(unknown)}")
        super().__init__(message)
        self.__dict__.update(facts)


class ConfigError(ClaimCheckError):
    """The configuration is invalid; nothing was opened.

    ``path``, ``found`` and ``expected`` are those of the first problem.

    Attributes:
        path: The key in the configuration, for example ``stores.hot.url``.
        found: A description of the current value.
        expected: A description of a valid value.
    """

    path: str = ""
    found: str | None = None
    expected: str | None = None
    _problems: tuple[ConfigError, ...] = ()

    @property
    def problems(self) -> tuple[ConfigError, ...]:
        """Every problem that was found as an error of its own; this error itself if it is the only one."""
        return self._problems or (self,)


class ArgumentTypeError(ConfigError, TypeError):
    """An argument has the wrong type; nothing was opened."""


class MissingDependencyError(ClaimCheckError):
    """An optional package is not installed; raised at first use, never at import.

    Attributes:
        package: The missing distribution.
        extra: The extra of claimcheck that installs it.
    """

    package: str | None = None
    extra: str | None = None


class PayloadError(ClaimCheckError):
    """The payload cannot be read, for example from a closed file or one that shrinks. Nothing remains stored."""


class PayloadTypeError(PayloadError, TypeError):
    """The payload is neither bytes-like nor a readable binary file. Nothing was sent."""


class EnvelopeError(ClaimCheckError):
    """A message begins with the envelope header but is not a valid envelope.

    Attributes:
        kind: The number in the type byte, if it could be read.
    """

    kind: int | None = None


class UnknownVersionError(EnvelopeError):
    """The message was written by a newer version of claimcheck.

    Attributes:
        version: The message's version.
        supported: The newest version that this library reads.
    """

    version: int | None = None
    supported: int | None = None


class PointerRejectedError(ClaimCheckError):
    """A pointer was rejected before any access to a store, or a message without a valid signature was rejected.

    Attributes:
        reason: One word for metrics: ``store``, ``scope``, ``size``, ``signature``, ``destination``, ``age``,
            ``envelope`` (a plain message), ``version``, ``feature``, ``checksum`` or ``type``.
        store: The store that the pointer names; ``None`` for other messages.
        key: The key that the pointer names; ``None`` for other messages.
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
    """The store could not be reached or did not respond. The outcome is unknown; a rollback is safe."""

    retryable = True


class ScanNotSupportedError(StoreError):
    """The store cannot list what it keeps. Nothing was done."""


class KeyTakenError(StoreError):
    """A write found its key in use. Nothing was written, and the existing payload is unchanged."""


class PayloadNotFoundError(StoreError):
    """The pointer is valid but the payload, or a part of it, is gone.

    Attributes:
        created_ms: When it was written, milliseconds since 1970.
        expires_ms: When it expired or will expire, milliseconds since 1970.
    """

    created_ms: int | None = None
    expires_ms: int | None = None


class PayloadTooLargeError(StoreError):
    """A payload exceeds a limit. Nothing was sent, and nothing remains stored.

    Attributes:
        size: Bytes of the payload, or of the message that it would need.
        limit: The limit in bytes, or in chunks if the message names chunks.
    """

    size: int | None = None
    limit: int | None = None


class IntegrityError(StoreError):
    """The stored payload differs from what was written.

    Attributes:
        expected: The expected size or checksum.
        actual: The actual size or checksum.
    """

    expected: str | int | None = None
    actual: str | int | None = None


class ChunkError(ClaimCheckError):
    """Base class of errors about payloads in chunks.

    Attributes:
        uuid: The payload's identity in its chunks.
        seen: Chunks that were sent or received.
        total: Chunks of the payload.
    """

    uuid: str | None = None
    seen: int | None = None
    total: int | None = None


class PartialSendError(ChunkError):
    """A chunked send failed in the middle. Readers receive an abort envelope if it could still be sent.

    ``acknowledged``, ``unknown`` and ``unsent`` add up to ``total``, and ``seen`` equals ``acknowledged``. The
    ``__cause__`` is the error that ended the send.

    Attributes:
        acknowledged: Chunks that are in the topic.
        unknown: Chunks that may be in the topic: there was no answer, or an ambiguous one.
        unsent: Chunks that are definitely not in the topic.
        results: What the produce call returned for each chunk in the topic.
    """

    acknowledged: int | None = None
    unknown: int | None = None
    unsent: int | None = None
    results: tuple[object, ...] = ()


class IncompletePayloadError(ChunkError):
    """A payload expired or was evicted before all of its chunks arrived, or its writer aborted it."""


class ChunkConflictError(ChunkError):
    """Two different chunks claim the same position in one payload.

    Attributes:
        position: The chunk's number, from 0.
    """

    position: int | None = None


class TransportError(ClaimCheckError):
    """A transport rejected a message or failed.

    Attributes:
        destination: The topic or queue.
        size: Bytes of the message on the wire.
        limit: Bytes that the broker accepts.
    """

    destination: str | None = None
    size: int | None = None
    limit: int | None = None


def clear_frames(error: BaseException) -> None:
    """Clear the local variables of finished functions in the tracebacks of an error and of its causes."""
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        one = pending.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            traceback.clear_frames(one.__traceback__)
            pending += [one.__cause__, one.__context__]


UNUSABLE = (ConfigError, MissingDependencyError)
"""Errors of a store in a process that lacks its driver or an environment variable of its configuration."""


def unusable(store: str, key: str, error: ClaimCheckError) -> PointerRejectedError:
    """Return the error for a message whose pointer names a store that this process cannot use."""
    text = f"the pointer to {key[:200]!r} names the store {store!r}, which this process cannot use: {error}"
    return PointerRejectedError(text, reason="store", store=store, key=key)


def import_vendor(module: str, *, extra: str) -> ModuleType:
    """Import an optional package."""
    try:
        return importlib.import_module(module)
    except ImportError as exc:
        package = module.partition(".")[0]
        text = f"this needs the package {package}: {pip_install(extra)}"
        raise MissingDependencyError(text, package=package, extra=extra) from exc


def pip_install(extra: str) -> str:
    """Return the command that installs an extra of this distribution, whose name is not that of its modules."""
    return f"pip install '{distribution_name()}[{extra}]'"


def distribution_name() -> str:
    """Return the name of the installed distribution; from a zip without metadata, the published name."""
    from importlib.metadata import entry_points  # slow to import

    scripts = entry_points(group="console_scripts", name="claimcheck")
    ours = (script.dist.name for script in scripts if script.dist and script.value == "claimcheck.__main__:main")
    return next(ours, "claimcheck-messaging")
