"""For authors of stores and transports, and for tests of programs that use them; part of the package.

`StoreConformance` and `TransportConformance` need pytest, which is imported when their names are first used;
`FaultyStore` needs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from claimcheck.testing.faults import Fault, FaultyStore

if TYPE_CHECKING:
    from claimcheck.testing.conformance import StoreConformance
    from claimcheck.testing.transport_kit import Facts
    from claimcheck.testing.transports import TransportConformance

__all__ = ["Facts", "Fault", "FaultyStore", "StoreConformance", "TransportConformance"]

_PROMISES = {"StoreConformance": "conformance", "TransportConformance": "transports", "Facts": "transport_kit"}
_ASSERTING = (
    "kit", "read_promises", "write_promises", "transport_kit", "transport_chunk_promises",
    "transport_delivery_promises", "transport_payload_promises", "transport_send_promises",
)  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _PROMISES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import pytest

    for module in _ASSERTING:  # so that a failing assertion shows its values
        pytest.register_assert_rewrite(f"{__name__}.{module}")
    return getattr(importlib.import_module(f"{__name__}.{_PROMISES[name]}"), name)
