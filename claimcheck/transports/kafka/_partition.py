"""The state of one partition: how far it was read, what was handed out, and what may be committed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, Self

from claimcheck._assembler import Identity, Slot
from claimcheck._resolver import Dropped

__all__ = ["Begins", "Mark", "Partition", "Reread"]

_NAME = "claimcheck:1"
_MAX_CHARACTERS = 4000  # the broker's offset.metadata.max.bytes is 4,096 by default, and counts characters


@dataclass(frozen=True, slots=True)
class Mark:
    """Every payload whose last record lies below ``upto`` was delivered, but for those that begin at ``owed``."""

    upto: int
    owed: frozenset[int] = frozenset()

    def encode(self) -> str:
        """Return the text to commit; empty where it would be too long, so that everything is delivered again."""
        owed = ",".join(str(offset) for offset in sorted(self.owed))
        text = f"{_NAME};{self.upto};{owed}"
        return text if len(text) <= _MAX_CHARACTERS else ""

    @classmethod
    def decode(cls, text: str | None) -> Self | None:
        """Parse commit metadata; ``None`` for any that is not ours."""
        name, _, rest = (text or "").rstrip("\0").partition(";")  # other clients see librdkafka's NUL
        upto, _, owed = rest.partition(";")
        if name != _NAME or not upto.isdecimal():
            return None
        return cls(int(upto), frozenset(int(offset) for offset in owed.split(",") if offset.isdecimal()))


_MAX_SPANS = 10_000
_MAX_REPORTED = 10_000

Begins = Literal["committed", "sought", "reset"]
"""Where reading began: at the group's offset, where the user said, or where ``auto.offset.reset`` says."""


@dataclass(slots=True)
class Reread:
    """A payload whose chunks were dropped and are to be read again.

    Attributes:
        first: The offset of its first record.
        skip_below: The partition's at that time: a payload that ends below it was delivered before.
        since: When the chunks were dropped, by the consumer's clock.
        dropped: How they were dropped last.
        slots: All its records by offset; they are unsettled until the payload ends.
    """

    first: int
    skip_below: int
    since: float
    dropped: Dropped
    slots: dict[int, Slot] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Partition:
    """One partition, as long as it is assigned.

    Attributes:
        source: Topic and number.
        begins: Why it is read from ``start``.
        start: The first offset, where it is known.
        low: The low watermark when a first chunk was missing for the first time; ``None`` before that.
        searched: The lowest offset that was read; known where ``low`` is.
        read: The next offset that the client will return.
        taken: Behind the last record of which there was a message, handed out or not.
        position: Behind the last record that was handed out; ``None`` before the first.
        skip_below: Payloads that end below were delivered already, unless they are to be read again.
        rereads: Payloads to be read again.
        current_reread: The one of them that the client was told to go back for.
        done_before: Behind what an earlier owner of the partition delivered.
        undelivered: Where payloads begin that were not delivered, though others behind them were: those that an
            earlier owner of the partition was to read again, and incomplete ones that wait to be handed out.
        missing_first: Payloads of which the first chunk seen was not their first.
        went_back: Whether the client was told to go back, and no record from there has come yet.
        changed: Whether something was handed out since an offset was stored.
        stored: What is stored, and not committed by its user.
    """

    source: tuple[str, int]
    begins: Begins = "reset"
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
    stored: Any = None
    _reported: dict[Identity, None] = field(default_factory=dict)  # incomplete, oldest first
    _spans: list[tuple[int, int]] = field(default_factory=list)  # last and first offset of what was handed out

    def restore(self, mark: Mark | None) -> None:
        """Take over from an earlier owner, whose commit an incomplete payload held back."""
        if mark is not None:
            self.skip_below, self.done_before, self.undelivered = mark.upto, mark.upto, set(mark.owed)
            self.read, self.went_back = self.start, True

    def go_back(self, offset: int) -> None:
        """Note that the client was sent back to an offset; what was delivered is skipped."""
        self.skip_below = max(self.skip_below, self.taken, self.start or 0)
        self.read, self.went_back = offset, True

    @property
    def is_rereading(self) -> bool:
        """Whether what was read once is being read again."""
        return self.read is not None and self.read < self.skip_below

    def waits(self, payload: Identity) -> bool:
        """Whether a payload is to be read again, and another one is read first.

        Payloads that have expired were held together before, and are read again together.
        """
        if payload not in self.rereads or self.current_reread in (None, payload):
            return False
        current = self.rereads.get(self.current_reread)
        return any(each is not None and each.dropped.reason != "expired" for each in (current, self.rereads[payload]))

    def wants(self, first: int, last: int, payload: Identity | None) -> bool:
        """Whether a payload is still to be delivered."""
        reread = self.rereads.get(payload) if payload is not None else None
        return last >= (reread.skip_below if reread else self.skip_below) or first in self.undelivered

    def read_again(self, payload: Identity, dropped: Dropped, now: float) -> None:
        """Note that the chunks of a payload were dropped and are to be read again."""
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
        """Note that an incomplete payload is handed out: chunks of it that are read later are skipped."""
        self.undelivered.add(first)
        self._reported[payload] = None
        if len(self._reported) > _MAX_REPORTED:
            del self._reported[next(iter(self._reported))]

    def was_reported(self, payload: Identity) -> bool:
        """Whether a payload was handed out incomplete."""
        return payload in self._reported

    def handed_out(self, first: int, last: int) -> None:
        """Record that a message was handed out."""
        self.changed = True
        self.undelivered.discard(first)
        self.position = max(last + 1, self.position or 0, self.done_before)
        if first < last:
            self._spans.append((last, first))
            if len(self._spans) > _MAX_SPANS:  # nothing is committed: rather deliver twice
                (late, early), (later, earlier), *rest = self._spans
                self._spans = [(max(late, later), min(early, earlier)), *rest]

    def passed_over(self, offset: int) -> None:
        """Record that a record became no message: the position moves past it if all before it was handed out."""
        if self.position is not None and self.taken <= self.position <= offset and not self.is_rereading:
            self.taken = self.position = offset + 1
            self.changed = True

    def lowest(self, upto: int, unsettled: int | None) -> int:
        """The highest offset that may be committed for everything below ``upto``.

        Args:
            upto: Everything below was processed by the user.
            unsettled: The lowest offset of chunks that are held.
        """
        bounds = [upto, *(first for last, first in self._spans if last >= upto)]
        if unsettled is not None:
            bounds.append(unsettled)
        at = self.start if self.read is None else self.read
        if at is not None and at < self.skip_below:  # reading again: what lies ahead is not held yet
            bounds.append(at)
        return min(bounds)

    def mark(self, upto: int) -> Mark:
        """Return the mark to commit with an offset below ``upto``."""
        owed = {reread.first for reread in self.rereads.values()} | self.undelivered
        return Mark(upto, frozenset(first for first in owed if first < upto))

    def forget_below(self, upto: int) -> None:
        """Forget spans below a committed offset."""
        if self._spans:
            self._spans = [span for span in self._spans if span[0] >= upto]
