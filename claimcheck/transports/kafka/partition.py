"""What a consumer knows of one partition: how far it has read, what it has handed out, and what may be committed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from claimcheck.resolver import Dropped
from claimcheck.transports.kafka.marks import Mark

__all__ = ["Begins", "Owed", "Partition"]

_MAX_SPANS = 10_000

Begins = Literal["committed", "sought", "reset"]
"""Where reading began: at the group's offset, where the user said, or where ``auto.offset.reset`` says."""


@dataclass(slots=True)
class Owed:
    """A payload that was let go of, and is to be read again.

    Attributes:
        first: The offset of its first record.
        skip_below: Of the partition then: if it ends below, it was delivered before, and this was a second reading.
        since: When that was, by the consumer's clock.
        times: How often it happened.
        dropped: Its records, as they were let go of.
    """

    first: int
    skip_below: int
    since: float
    times: int = 1
    dropped: list[Dropped] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Partition:
    """One partition, as long as it is assigned.

    Attributes:
        source: Topic and number.
        begins: Why it is read from ``start``.
        start: The first offset, where it is known.
        read: The next offset that the client will give.
        taken: Behind the last record of which there was a message, handed out or not.
        position: Behind the last record that was handed out; ``None`` before the first.
        skip_below: Payloads that ended below were delivered already, unless they are owed.
        owed: Payloads that were let go of, by uuid.
        focus: The one of them that is being read again.
        done_before: Behind what an earlier owner of the partition delivered.
        owed_before: Where payloads begin that an earlier owner of the partition owed.
        given_up: Payloads that were handed out incomplete; what still comes of them is passed over.
        headless: Payloads of which the first chunk seen was not their first.
        looked_back: Whether the records before the start were searched for it.
        went_back: Whether what the client gave by now will come again.
        changed: Whether something was handed out since an offset was stored.
        stored: What is stored, and not committed by its user.
    """

    source: tuple[str, int]
    begins: Begins = "reset"
    start: int | None = None
    read: int | None = None
    taken: int = 0
    position: int | None = None
    skip_below: int = 0
    owed: dict[str, Owed] = field(default_factory=dict)
    focus: str | None = None
    done_before: int = 0
    owed_before: set[int] = field(default_factory=set)
    given_up: set[str] = field(default_factory=set)
    headless: set[str] = field(default_factory=set)
    looked_back: bool = False
    went_back: bool = False
    changed: bool = False
    stored: Any = None
    _spans: list[tuple[int, int]] = field(default_factory=list)  # last and first offset of what was handed out

    def restore(self, mark: Mark | None) -> None:
        """Take over from an earlier owner."""
        if mark is not None:
            self.skip_below, self.done_before, self.owed_before = mark.upto, mark.upto, set(mark.owed)

    def go_back(self, offset: int) -> None:
        """Read again from here; what was delivered is passed over."""
        self.skip_below = max(self.skip_below, self.taken, self.start or 0)
        self.read, self.went_back = offset, True

    @property
    def rereads(self) -> bool:
        """Whether what was read once is being read again."""
        return self.read is not None and self.read < self.skip_below

    def wants(self, first: int, last: int, uuid: str | None) -> bool:
        """Whether a payload is still to be delivered."""
        owed = self.owed.get(uuid or "")
        return last >= (owed.skip_below if owed else self.skip_below) or first in self.owed_before

    def handed_out(self, first: int, last: int, uuid: str | None) -> None:
        """Note what the user has."""
        self.changed = True
        if uuid is not None:
            self.owed.pop(uuid, None)
            self.owed_before.discard(first)
            self.headless.discard(uuid)
        self.position = max(last + 1, self.position or 0, self.done_before)
        if first < last:
            self._spans.append((last, first))
            if len(self._spans) > _MAX_SPANS:  # nobody commits: in doubt more comes again
                (late, early), (later, earlier), *rest = self._spans
                self._spans = [(max(late, later), min(early, earlier)), *rest]

    def passed_over(self, offset: int) -> None:
        """Note that a record became no message; what is done with may be committed behind it, if all before it is."""
        if self.position is not None and self.taken <= self.position <= offset and not self.rereads:
            self.taken = self.position = offset + 1
            self.changed = True

    def lowest(self, upto: int, unsettled: int | None) -> int:
        """The highest offset that may be committed for everything below ``upto``.

        Args:
            upto: What the user has done with.
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
        """What is committed beside an offset below ``upto``."""
        owed = {owed.first for owed in self.owed.values()} | self.owed_before
        return Mark(upto, frozenset(first for first in owed if first < upto))

    def forget_below(self, upto: int) -> None:
        """Everything below is committed."""
        if self._spans:
            self._spans = [span for span in self._spans if span[0] >= upto]
