"""Arithmetic of one partition's offsets: what was read, what was delivered, and what may be committed. No I/O."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from confluent_kafka import TopicPartition

_NAME = "claimcheck:1"
_MAX_CHARACTERS = 4000  # the broker's offset.metadata.max.bytes is 4,096 by default, and counts characters
MAX_SPANS = 10_000


@dataclass(frozen=True, slots=True)
class CommitMetadata:
    """Committed with an offset: which payloads after that offset were delivered."""

    upto: int
    owed: frozenset[int] = frozenset()

    def encode(self) -> str:
        """Return the text to commit, or an empty one if it would be too long; then payloads are delivered again."""
        owed = ",".join(str(offset) for offset in sorted(self.owed))
        text = f"{_NAME};{self.upto};{owed}"
        return text if len(text) <= _MAX_CHARACTERS else ""

    @classmethod
    def decode(cls, text: str | None) -> Self | None:
        """Parse commit metadata; returns ``None`` if it is not ours."""
        name, _, rest = (text or "").rstrip("\0").partition(";")  # other clients see librdkafka's NUL
        upto, _, owed = rest.partition(";")
        if name != _NAME or not upto.isdecimal():
            return None
        return cls(int(upto), frozenset(int(offset) for offset in owed.split(",") if offset.isdecimal()))


@dataclass(slots=True, eq=False)
class Offsets:
    """The offsets of a partition while it is assigned."""

    start: int | None = None
    read: int | None = None  # the next one that the client returns
    went_back: bool = False  # the client was sent there, and has not returned a record since
    taken: int = 0  # after the last record that became a message
    position: int | None = None  # after everything that was delivered
    changed: bool = False  # since offsets were stored
    stored: TopicPartition | None = None
    skip_below: int = 0  # delivered, except for what begins at one of `undelivered`
    undelivered: set[int] = field(default_factory=set)
    spans: list[tuple[int, int]] = field(default_factory=list)  # last and first offset of delivered messages
    _done_before: int = 0

    def restore(self, metadata: CommitMetadata | None) -> None:
        """Continue where an earlier owner stopped; an incomplete payload held back its commit."""
        if metadata is not None:
            self.skip_below = self._done_before = metadata.upto
            self.undelivered = set(metadata.owed)
            self.read, self.went_back = self.start, True

    def go_back(self, offset: int) -> None:
        """Record that the client was sent back to an offset; delivered payloads will be skipped."""
        self.skip_below = max(self.skip_below, self.taken, self.start or 0)
        self.read, self.went_back = offset, True

    def received(self, offset: int) -> None:
        """Record that the client returned a record."""
        self.read, self.went_back = offset + 1, False

    @property
    def is_rereading(self) -> bool:
        """Whether records that were read before are being read again."""
        return self.read is not None and self.read < self.skip_below

    def delivered_plain(self, offset: int) -> None:
        """Record that a record was delivered as soon as the client returned it."""
        self.read = self.taken = self.position = offset + 1
        self.changed = True

    def delivered(self, first: int, last: int) -> None:
        """Record that a message was delivered."""
        self.changed = True
        self.undelivered.discard(first)
        self.position = max(last + 1, self.position or 0, self._done_before)
        if first < last:
            self.spans.append((last, first))
            if len(self.spans) > MAX_SPANS:  # nothing is committed: deliver twice rather than grow without bound
                (late, early), (later, earlier), *rest = self.spans
                self.spans = [(max(late, later), min(early, earlier)), *rest]

    def skipped(self, offset: int) -> None:
        """Record that a record became no message; the position moves past it if everything before was delivered."""
        if self.position is not None and self.taken <= self.position <= offset and not self.is_rereading:
            self.taken = self.position = offset + 1
            self.changed = True

    def safe(self, upto: int, unsettled: int | None) -> int:
        """Return the highest offset that may be committed."""
        bounds = [upto, *(first for last, first in self.spans if last >= upto)]
        if unsettled is not None:
            bounds.append(unsettled)
        at = self.start if self.read is None else self.read
        if at is not None and at < self.skip_below:  # reading again: chunks further on are not in memory yet
            bounds.append(at)
        return min(bounds)

    def metadata(self, upto: int, waiting: Iterable[int] = ()) -> CommitMetadata:
        """Return the metadata to commit with an offset below ``upto``, when payloads wait to be read again."""
        return CommitMetadata(upto, frozenset(first for first in self.undelivered.union(waiting) if first < upto))

    def forget_below(self, upto: int) -> None:
        """Forget spans below a committed offset."""
        if self.spans:
            self.spans = [span for span in self.spans if span[0] >= upto]
