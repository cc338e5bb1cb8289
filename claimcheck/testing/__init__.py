"""Helpers for tests of applications, and a conformance kit for authors of stores.

Applications: `RecordingBroker`, `assert_offloaded`, `assert_inline`, `FaultyStore`, and the pytest fixture
``claimcheck_memory``. Authors: `StoreConformance`, which imports pytest at first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from claimcheck.testing._faults import Fault, FaultyStore
from claimcheck.testing._recording import RecordedMessage, RecordingBroker, assert_inline, assert_offloaded

if TYPE_CHECKING:
    from claimcheck.testing._store_conformance import StoreConformance

__all__ = [
    "Fault",
    "FaultyStore",
    "RecordedMessage",
    "RecordingBroker",
    "StoreConformance",
    "assert_inline",
    "assert_offloaded",
]

_WITH_ASSERTIONS = ("_store_conformance", "_store_kit", "_store_lifecycle")


def __getattr__(name: str) -> type:
    if name != "StoreConformance":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import pytest

    for module in _WITH_ASSERTIONS:  # so that a failing assertion shows its values
        pytest.register_assert_rewrite(f"{__name__}.{module}")
    kit: type = importlib.import_module(f"{__name__}._store_conformance").StoreConformance
    return kit
