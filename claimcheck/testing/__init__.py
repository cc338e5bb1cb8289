"""Helpers for tests of applications, and conformance kits for authors of stores and transports.

Applications: `RecordingBroker`, `assert_offloaded`, `assert_inline`, `FaultyStore`, and the pytest fixture
``claimcheck_memory``. Authors: `StoreConformance` and `TransportConformance`, which import pytest at first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from claimcheck.testing._faults import Fault, FaultyStore
from claimcheck.testing._recording import RecordedMessage, RecordingBroker, assert_inline, assert_offloaded

if TYPE_CHECKING:
    from claimcheck.testing._store_conformance import StoreConformance
    from claimcheck.testing._transport_conformance import TransportConformance
    from claimcheck.testing._transport_kit import Facts

__all__ = [
    "Facts",
    "Fault",
    "FaultyStore",
    "RecordedMessage",
    "RecordingBroker",
    "StoreConformance",
    "TransportConformance",
    "assert_inline",
    "assert_offloaded",
]

_KITS = {
    "StoreConformance": "_store_conformance",
    "TransportConformance": "_transport_conformance",
    "Facts": "_transport_kit",
}
_WITH_ASSERTIONS = (*_KITS.values(), "_store_kit", "_store_scan", "_transport_chunks")


def __getattr__(name: str) -> type:
    if name not in _KITS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import pytest

    for module in _WITH_ASSERTIONS:  # so that a failing assertion shows its values
        pytest.register_assert_rewrite(f"{__name__}.{module}")
    kit: type = getattr(importlib.import_module(f"{__name__}.{_KITS[name]}"), name)
    return kit
