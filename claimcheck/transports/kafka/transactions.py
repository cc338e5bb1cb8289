"""What was stored inside a transaction lives and dies with it."""

from __future__ import annotations

from claimcheck.outbound import Outbound
from claimcheck.transports.undoing import Undoing

__all__ = ["Transaction"]


class Transaction:
    """Holds what was sent and could still be undone, from the begin of a transaction to its end.

    Args:
        undoing: Removes what an aborted transaction stored.
    """

    def __init__(self, undoing: Undoing) -> None:
        self._undoing = undoing
        self._held: list[Outbound] | None = None

    def begin(self) -> None:
        """Hold from now on."""
        self._held = []

    def sent(self, out: Outbound) -> None:
        """Keep what was stored for a payload that was delivered; inside a transaction not yet for good."""
        if self._held is None:
            out.keep()
        elif out.undoable:
            self._held.append(out)

    def committed(self) -> None:
        """Its messages can be read: all is kept."""
        for out in self._end():
            out.keep()

    def aborted(self) -> None:
        """Nobody who reads committed messages can see them: nothing is kept."""
        for out in self._end():
            self._undoing.submit(out.rollback)

    def unknown(self) -> None:
        """The producer is at its end, and nobody knows: what was stored stays until it expires."""
        self.committed()

    def _end(self) -> list[Outbound]:
        held, self._held = self._held or [], None
        return held
