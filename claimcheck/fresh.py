"""Memory for a payload that is yet to come, handed out as ``bytes`` without a copy."""

from __future__ import annotations

import io

__all__ = ["FreshBytes"]


class FreshBytes:
    """Room for exactly one payload; a context manager around its filling.

    ``bytes(n)`` is zero pages that cost nothing before they are touched, `io.BytesIO` adopts it because nobody else
    knows it, and gives it back as it is: one payload of memory at the peak, and no pass over it but the filling.

    Attributes:
        view: Where the payload goes; released when the block is left.
    """

    def __init__(self, size: int) -> None:
        self._box = io.BytesIO(bytes(size))
        self.view = self._box.getbuffer()

    @property
    def payload(self) -> bytes:
        """What was filled in; only after the block."""
        return self._box.getvalue()

    def __enter__(self) -> FreshBytes:
        return self

    def __exit__(self, *exc: object) -> None:
        self.view.release()
