"""What a message weighs in a trigger: the payload that it stands for, not its own few bytes. No I/O."""

from __future__ import annotations

from dataclasses import dataclass

from claimcheck import envelope, pointer
from claimcheck.config import Config
from claimcheck.envelope import CHUNK_OVERHEAD_BYTES, HEADER, PointerData
from claimcheck.errors import ClaimCheckError
from claimcheck.pointer import MAX_POINTER_BYTES

__all__ = ["Scale"]


@dataclass(frozen=True, slots=True)
class Scale:
    """Weighs messages.

    Nobody has checked a signature yet: a pointer that lies makes a trigger smaller or larger, and no more.

    Attributes:
        header: What envelopes begin with.
        max_pointer_bytes: A longer pointer counts as the message that it is.
    """

    header: bytes = HEADER
    max_pointer_bytes: int = MAX_POINTER_BYTES

    @classmethod
    def of(cls, config: Config | None) -> Scale:
        """Make the one for a configuration, or for the defaults."""
        return cls() if config is None else cls(config.header, config.limits.max_pointer_bytes)

    @property
    def head_bytes(self) -> int:
        """So much of a message's beginning is enough to weigh it."""
        return len(self.header) + self.max_pointer_bytes + CHUNK_OVERHEAD_BYTES

    def weigh(self, head: bytes | None, size: int) -> int:
        """Count the bytes that resolving one message will bring.

        Args:
            head: The message, or `head_bytes` of it; ``None`` for a tombstone.
            size: Bytes of the whole message.

        Returns:
            The size that a pointer declares. Anything else counts as itself: chunks, plain messages, damaged pointers,
            and those of version 1, which declare nothing.
        """
        if head is None or not head.startswith(self.header):
            return size
        try:
            found = envelope.decode(head, header=self.header)
            if not isinstance(found, PointerData):
                return size
            declared = pointer.decode(found.data, max_bytes=self.max_pointer_bytes).size
        except ClaimCheckError:
            return size
        return size if declared is None else declared
