"""For authors of stores and transports, and for tests of programs that use them; part of the package.

`StoreConformance` and `TransportConformance` need pytest, which is imported when their names are first used;
`FaultyStore` needs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from claimcheck.testing._faults import Fault, FaultyStore

if TYPE_CHECKING:
    from claimcheck.testing._store_conformance import StoreConformance
    from claimcheck.testing._transport_conformance import TransportConformance
    from claimcheck.testing._transport_hooks import Facts

__all__ = ["Facts", "Fault", "FaultyStore", "StoreConformance", "TransportConformance"]

_PROMISES = {
    "StoreConformance": "_store_conformance",
    "TransportConformance": "_transport_conformance",
    "Facts": "_transport_hooks",
}
_ASSERTING = (
    "_store_hooks", "_store_reads", "_store_writes",
    "_transport_chunks", "_transport_delivery", "_transport_hooks", "_transport_payloads",
)  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _PROMISES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import pytest

    for module in _ASSERTING:  # so that a failing assertion shows its values
        pytest.register_assert_rewrite(f"{__name__}.{module}")
    return getattr(importlib.import_module(f"{__name__}.{_PROMISES[name]}"), name)
