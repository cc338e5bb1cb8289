"""What is committed beside an offset: how far payloads were delivered behind it.

An offset must not pass the oldest incomplete payload, and payloads that were complete sooner lie behind it. The mark
tells the next owner of the partition which they are, so that they are not delivered twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

__all__ = ["Mark"]

_NAME = "claimcheck:1"
_MAX_CHARACTERS = 4000  # the broker's offset.metadata.max.bytes is 4,096 by default, and counts characters


@dataclass(frozen=True, slots=True)
class Mark:
    """Every payload whose last record lies below ``upto`` was delivered, but for those that begin at ``owed``."""

    upto: int
    owed: frozenset[int] = frozenset()

    def encode(self) -> str:
        """The text to commit; empty where it would be too long, so that everything comes again."""
        owed = ",".join(str(offset) for offset in sorted(self.owed))
        text = f"{_NAME};{self.upto};{owed}"
        return text if len(text) <= _MAX_CHARACTERS else ""

    @classmethod
    def decode(cls, text: str | None) -> Self | None:
        """Read what was committed; ``None`` for what is not ours."""
        name, _, rest = (text or "").rstrip("\0").partition(";")  # other clients see librdkafka's NUL
        upto, _, owed = rest.partition(";")
        if name != _NAME or not upto.isdecimal():
            return None
        return cls(int(upto), frozenset(int(offset) for offset in owed.split(",") if offset.isdecimal()))
