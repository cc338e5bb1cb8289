"""Sends dead letters back to their topic: the loop and its report, for every broker.

A letter is settled only after the broker has confirmed the send, so that a kill at any point loses nothing: at worst
the last letters are sent twice. The producer stores a payload again, with a fresh lifetime.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from claimcheck._validation import check_int
from claimcheck.errors import ClaimCheckError, StoreError
from claimcheck.transports._common.dead_letters import Letter

MAX_NAMED = 1000
"""The most letters that a report names."""

_MOST_WAITING = 1000


@dataclass(slots=True)
class RedriveReport:
    """What became of the letters so far."""

    dry_run: bool
    read: int = 0
    sent: int = 0
    bytes: int = 0
    failed: int = 0
    unreadable: int = 0
    foreign: int = 0
    named: list[tuple[str, ClaimCheckError]] = field(default_factory=list)
    finished: bool = False
    duration_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Redrive:
    """Options of a run."""

    dry_run: bool = True
    limit: int | None = None
    force: bool = False
    skip_unreadable: bool = False
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        check_int("limit", 1 if self.limit is None else self.limit, minimum=1)

    def run(self, letters: Iterable[Letter], report: RedriveReport, on_letter: Callable[[], None]) -> None:
        """Take letters until they end or the limit is reached."""
        begin, run = self.clock(), _Run(self, report)
        for letter in letters:
            run.take(letter)
            report.duration_seconds = self.clock() - begin
            on_letter()
            if run.is_at_limit:
                return
        run.end()
        report.finished = True


class _Run:
    """One run."""

    def __init__(self, options: Redrive, report: RedriveReport) -> None:
        self._options, self._report = options, report
        self._answered = set[str | None]({None})
        self._waiting = deque[tuple[Letter, bool]]()  # with whether it can be read, or was not tried

    @property
    def is_at_limit(self) -> bool:
        """Whether to end here."""
        return (self._report.read if self._options.dry_run else self._report.sent) == self._options.limit

    def take(self, letter: Letter) -> None:
        """Read a letter and send it, or let it wait."""
        if letter.foreign is not None and not self._options.force:
            self._report.foreign += 1
            _name(letter, letter.foreign, self._report)
        elif len(self._waiting) >= _MOST_WAITING:
            self.end()
        elif self._waiting and letter.store in self._answered:
            self._waiting.append((letter, True))
        elif not self._is_readable(letter):
            self._pass(letter)
        else:
            self._answered.add(letter.store)
            self._waiting.append((letter, True))
            self._go_on()

    def end(self) -> None:
        """Raise an error if there are letters of a store that has answered for none."""
        if not self._waiting:
            return
        letter, count = self._waiting[0][0], self._report.unreadable
        text = (
            f"store {letter.store!r} has the payload of none of its letters ({count:,} could not be read): is it the "
            f"right store? They stay, and so do all later ones from {letter.position}. If the payloads are lost, "
            "--skip-unreadable moves past them"
        )
        raise StoreError(text, store=letter.store)

    def _go_on(self) -> None:
        """Take the letters that do not have to wait any longer, in their order."""
        while self._waiting and not self.is_at_limit:
            letter, is_readable = self._waiting[0]
            if not is_readable and letter.store not in self._answered:
                return
            self._waiting.popleft()
            if is_readable and self._is_readable(letter):
                self._send(letter)
            elif not self._options.dry_run and letter.skip is not None:
                letter.skip()

    def _pass(self, letter: Letter) -> None:
        """Move past a letter that cannot be read, or let it wait."""
        if self._options.dry_run or letter.skip is None:
            return
        if self._waiting or (letter.store not in self._answered and not self._options.skip_unreadable):
            self._waiting.append((letter, False))
        else:
            letter.skip()

    def _is_readable(self, letter: Letter) -> bool:
        try:
            letter.read()
        except ClaimCheckError as error:
            if error.retryable:
                raise
            self._report.unreadable += 1
            _name(letter, error, self._report)
            return False
        return True

    def _send(self, letter: Letter) -> None:
        payload, report = letter.read(), self._report
        report.read += 1
        report.bytes += len(payload or b"")
        if self._options.dry_run:
            return
        try:
            letter.send(payload)
        except BaseException as error:
            report.failed += 1
            error.add_note(f"the dead letter {letter.position} was not sent; it stays, and so do all later ones")
            raise
        report.sent += 1
        letter.settle()


def _name(letter: Letter, error: ClaimCheckError, report: RedriveReport) -> None:
    if len(report.named) < MAX_NAMED:
        report.named.append((letter.position, error))
