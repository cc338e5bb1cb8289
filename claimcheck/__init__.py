"""Payloads of any size through brokers that refuse large messages.

The payload rests in a store, a pointer of a few hundred bytes travels through the broker, and the reader gets the
payload back, whole and verified. Start with `load`.
"""

from claimcheck._check import CheckReport, Finding
from claimcheck._client import ClaimCheck, from_dict, load
from claimcheck._envelope import HEADER, Envelope
from claimcheck._outbound import Outbound
from claimcheck._pointer import Pointer
from claimcheck._resolver import Dropped, Failed, Resolved, Resolver
from claimcheck._store import RangeStore, Store
from claimcheck._strategy import Strategy
from claimcheck._wire_size import WireLimit
from claimcheck.config import Config
from claimcheck.errors import (
    ChunkConflictError,
    ChunkError,
    ClaimCheckError,
    ConfigError,
    EnvelopeError,
    IncompletePayloadError,
    IntegrityError,
    KeyTakenError,
    MissingDependencyError,
    PartialSendError,
    PayloadError,
    PayloadNotFoundError,
    PayloadTooLargeError,
    PayloadTypeError,
    PointerRejectedError,
    StoreError,
    StoreUnavailableError,
    TransportError,
    UnknownVersionError,
)

__all__ = [
    # the face
    "ClaimCheck",
    "Config",
    "from_dict",
    "load",
    # what it hands out
    "CheckReport",
    "Dropped",
    "Envelope",
    "Failed",
    "Finding",
    "Outbound",
    "Pointer",
    "Resolved",
    "Resolver",
    # what others build on
    "HEADER",
    "RangeStore",
    "Store",
    "Strategy",
    "WireLimit",
    # errors
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
    "StoreError",
    "StoreUnavailableError",
    "TransportError",
    "UnknownVersionError",
]
