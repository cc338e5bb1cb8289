"""Stored payloads of a transaction: kept when it is committed, deleted when it is aborted."""

from __future__ import annotations

from collections.abc import Callable

from claimcheck.outbound import Outbound
from claimcheck.transports.undoing import Undoing

__all__ = ["Transaction"]


class Transaction:
    """Holds what would delete the payloads that were sent, from the begin of a transaction to its end.

    Args:
        undoing: Deletes what an aborted transaction stored.
    """

    def __init__(self, undoing: Undoing) -> None:
        self._undoing = undoing
        self._held: list[Callable[[], None]] | None = None

    def begin(self) -> None:
        """Hold from now on."""
        self._held = []

    def sent(self, out: Outbound) -> None:
        """Note a payload that was delivered: inside a transaction, an abort still deletes it."""
        if self._held is not None and (undo := out.release_undo()) is not None:
            self._held.append(undo)

    def committed(self) -> None:
        """Its messages can be read: all is kept."""
        self._held = None

    def aborted(self) -> None:
        """Readers of committed messages cannot see its messages: all is deleted."""
        held, self._held = self._held or [], None
        for undo in held:
            self._undoing.submit(undo)

    def unknown(self) -> None:
        """The outcome is unknown after a fatal error: what was stored stays until it expires."""
        self.committed()
