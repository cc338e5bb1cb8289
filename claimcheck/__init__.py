"""Send payloads of any size through Kafka and Pulsar.

claimcheck stores a large payload (Redis, S3, or a filesystem) and sends a pointer of about 300 bytes through the
broker. The consumer gets the original bytes back, verified. Start with `load`.
"""

from typing import TYPE_CHECKING

from claimcheck import errors
from claimcheck._client import ClaimCheck, from_dict, load
from claimcheck._content.data_keys import KeyProvider
from claimcheck._content.source import Payload
from claimcheck._receive.messages import Resolution
from claimcheck._send.outbound import Outbound
from claimcheck._send.strategy import Strategy
from claimcheck._store.listing import Deletion, StoreEntry
from claimcheck._store.store import Store
from claimcheck._wire.envelope import Envelope
from claimcheck._wire.headers import WireLimit
from claimcheck._wire.pointer import Pointer
from claimcheck.config import HEADER, Config
from claimcheck.errors import *  # noqa: F403 - its names are all in `__all__`

if TYPE_CHECKING:
    from claimcheck._operate.findings import CheckReport, Finding
    from claimcheck._operate.sweep import SweepReport
    from claimcheck._receive.resolver import Dropped, Failed, Resolved, Resolver

__all__ = [
    # entry points
    "ClaimCheck",
    "Config",
    "from_dict",
    "load",
    # values
    "CheckReport",
    "Deletion",
    "Dropped",
    "Envelope",
    "Failed",
    "Finding",
    "Outbound",
    "Payload",
    "Pointer",
    "Resolution",
    "Resolved",
    "Resolver",
    "StoreEntry",
    "SweepReport",
    # extension points
    "HEADER",
    "KeyProvider",
    "Store",
    "Strategy",
    "WireLimit",
]
__all__ += errors.__all__

# Most programs do not need these, and importing them takes a tenth of the time of the whole import.
_LAZY = {"CheckReport": "_operate.findings", "Finding": "_operate.findings", "SweepReport": "_operate.sweep"}
_LAZY |= dict.fromkeys(("Dropped", "Failed", "Resolved", "Resolver"), "_receive.resolver")


def __getattr__(name: str) -> object:
    """Import what operators and readers of chunks use at its first use: `import claimcheck` is faster without it."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
