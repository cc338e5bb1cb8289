"""The state of one partition: how far it was read, what was delivered, and what may be committed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Self

from claimcheck._receive.record import Identity, Slot
from claimcheck._receive.resolver import Dropped

if TYPE_CHECKING:
    from confluent_kafka import TopicPartition

_NAME = "claimcheck:1"
_MAX_CHARACTERS = 4000  # the broker's offset.metadata.max.bytes is 4,096 by default, and counts characters
_MAX_SPANS = 10_000
_MAX_REPORTED = 10_000

StartReason = Literal["committed", "sought", "reset"]
"""Reading began at the group's offset, at an offset that the user chose, or where ``auto.offset.reset`` says."""


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


@dataclass(slots=True)
class Reread:
    """A payload whose chunks were dropped and will be read again."""

    first: int
    skip_below: int
    since: float
    dropped: Dropped
    slots: dict[int, Slot] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Partition:
    """The state of one partition while it is assigned."""

    source: tuple[str, int]
    start_reason: StartReason = "reset"
    start: int | None = None
    low: int | None = None
    searched: int = 0
    read: int | None = None
    taken: int = 0
    position: int | None = None
    skip_below: int = 0
    rereads: dict[Identity, Reread] = field(default_factory=dict)
    current_reread: Identity | None = None
    done_before: int = 0
    undelivered: set[int] = field(default_factory=set)
    missing_first: set[Identity] = field(default_factory=set)
    went_back: bool = False
    changed: bool = False
    stored: TopicPartition | None = None
    _reported: dict[Identity, None] = field(default_factory=dict)  # incomplete, oldest first
    _spans: list[tuple[int, int]] = field(default_factory=list)  # last and first offset of delivered messages

    def restore(self, metadata: CommitMetadata | None) -> None:
        """Continue where an earlier owner stopped; an incomplete payload held back its commit."""
        if metadata is not None:
            self.skip_below = self.done_before = metadata.upto
            self.undelivered = set(metadata.owed)
            self.read, self.went_back = self.start, True

    def go_back(self, offset: int) -> None:
        """Record that the client was sent back to an offset; delivered payloads will be skipped."""
        self.skip_below = max(self.skip_below, self.taken, self.start or 0)
        self.read, self.went_back = offset, True

    @property
    def is_rereading(self) -> bool:
        """Whether records that were read before are being read again."""
        return self.read is not None and self.read < self.skip_below

    def waits(self, payload: Identity) -> bool:
        """Whether a payload will be read again after another one."""
        if payload not in self.rereads or self.current_reread in (None, payload):
            return False
        current = self.rereads.get(self.current_reread)
        return any(each is not None and each.dropped.reason != "expired" for each in (current, self.rereads[payload]))

    def wants(self, first: int, last: int, payload: Identity | None) -> bool:
        """Whether a payload is still to be delivered."""
        reread = self.rereads.get(payload) if payload is not None else None
        return last >= (reread.skip_below if reread else self.skip_below) or first in self.undelivered

    def read_again(self, payload: Identity, dropped: Dropped, now: float) -> None:
        """Record that the chunks of a payload were dropped and will be read again."""
        first = dropped.positions[0]
        reread = self.rereads.get(payload)
        if reread is None:
            reread = self.rereads[payload] = Reread(first, self.skip_below, now, dropped)
        else:  # dropped once more
            reread.first, reread.since, reread.dropped = min(reread.first, first), now, dropped
            if self.current_reread == payload:
                self.current_reread = None
        reread.slots.update((slot.position, slot) for slot in dropped.slots)

    def end(self, payload: Identity) -> list[Slot]:
        """Forget a payload that has ended; returns its records that are unsettled because it was to be read again."""
        self.missing_first.discard(payload)
        reread = self.rereads.pop(payload, None)
        return list(reread.slots.values()) if reread else []

    def report(self, payload: Identity, first: int) -> None:
        """Record that an incomplete payload is reported; chunks of it that are read later are skipped."""
        self.undelivered.add(first)
        self._reported[payload] = None
        if len(self._reported) > _MAX_REPORTED:
            del self._reported[next(iter(self._reported))]

    def was_reported(self, payload: Identity) -> bool:
        """Whether a payload was reported as incomplete."""
        return payload in self._reported

    def delivered(self, first: int, last: int) -> None:
        """Record that a message was delivered."""
        self.changed = True
        self.undelivered.discard(first)
        self.position = max(last + 1, self.position or 0, self.done_before)
        if first < last:
            self._spans.append((last, first))
            if len(self._spans) > _MAX_SPANS:  # nothing is committed: deliver twice rather than grow without bound
                (late, early), (later, earlier), *rest = self._spans
                self._spans = [(max(late, later), min(early, earlier)), *rest]

    def skipped(self, offset: int) -> None:
        """Record that a record became no message; the position moves past it if everything before was delivered."""
        if self.position is not None and self.taken <= self.position <= offset and not self.is_rereading:
            self.taken = self.position = offset + 1
            self.changed = True

    def safe_offset(self, upto: int, unsettled: int | None) -> int:
        """Return the highest offset that may be committed."""
        bounds = [upto, *(first for last, first in self._spans if last >= upto)]
        if unsettled is not None:
            bounds.append(unsettled)
        at = self.start if self.read is None else self.read
        if at is not None and at < self.skip_below:  # reading again: chunks further on are not in memory yet
            bounds.append(at)
        return min(bounds)

    def metadata(self, upto: int) -> CommitMetadata:
        """Return the metadata to commit with an offset below ``upto``."""
        owed = {reread.first for reread in self.rereads.values()} | self.undelivered
        return CommitMetadata(upto, frozenset(first for first in owed if first < upto))

    def forget_below(self, upto: int) -> None:
        """Forget spans below a committed offset."""
        if self._spans:
            self._spans = [span for span in self._spans if span[0] >= upto]
