"""For authors of stores and for tests of programs that use them; shipped, so that strangers can run it.

`StoreConformance` needs pytest, which is imported when its name is first used; `FaultyStore` needs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from claimcheck.testing.faults import Fault, FaultyStore

if TYPE_CHECKING:
    from claimcheck.testing.conformance import StoreConformance

__all__ = ["Fault", "FaultyStore", "StoreConformance"]


def __getattr__(name: str) -> Any:
    if name != "StoreConformance":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import pytest

    for module in ("kit", "read_promises", "write_promises"):  # so that a failing assertion shows its values
        pytest.register_assert_rewrite(f"{__name__}.{module}")
    from claimcheck.testing.conformance import StoreConformance

    return StoreConformance
