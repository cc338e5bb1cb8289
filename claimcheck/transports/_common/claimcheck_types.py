"""The type of a `claimcheck.ClaimCheck`, which stands above the transports: imported by type checkers only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from claimcheck._client import ClaimCheck as Offloads
    from claimcheck._client import ClaimCheck as Resolves
else:
    Offloads = Resolves = Any

__all__ = ["Offloads", "Resolves"]
