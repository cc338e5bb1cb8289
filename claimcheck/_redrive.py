"""Sends dead letters back to their topic: the loop and its report, for every broker.

A letter is settled only after the broker has confirmed the send, so that a kill at any point loses nothing: at worst
the last letters are sent twice. The producer stores a payload again, with a fresh lifetime.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from claimcheck._validation import check_int, check_seconds
from claimcheck.errors import ClaimCheckError
from claimcheck.transports._common.redrive import Letter

__all__ = ["Redrive", "RedriveReport"]

MAX_NAMED = 1000
"""The most letters that a report names."""


@dataclass(slots=True)
class RedriveReport:
    """What became of the letters so far.

    Attributes:
        dry_run: Whether nothing was sent.
        read: Letters that were read and verified, tombstones included.
        sent: Letters that the broker has confirmed in the topic.
        bytes: Bytes of the payloads that were read.
        failed: Letters that could not be sent; the first one ends the run.
        unreadable: The number of letters without a payload; they stay.
        foreign: The number of messages that are not dead letters of the topic to send to; they were not read, and stay.
        named: Position and error of each of both, up to 1,000.
        finished: Whether the end of the dead-letter topic was reached.
        duration_seconds: How long it took.
    """

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
    """Options of a run.

    Attributes:
        dry_run: Whether to read and verify the letters only.
        limit: The most letters to send, or to read in a dry run.
        rate: The most letters per second.
        force: Whether to send messages that are not dead letters of the topic, too.
        sleep: Called with seconds.
        clock: Seconds, monotonic.
    """

    dry_run: bool = True
    limit: int | None = None
    rate: float | None = None
    force: bool = False
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        check_int("limit", 1 if self.limit is None else self.limit, minimum=1)
        check_seconds("rate", 1 if self.rate is None else self.rate)

    def run(self, letters: Iterable[Letter], report: RedriveReport, on_letter: Callable[[], None]) -> None:
        """Take letters until they end or the limit is reached.

        Args:
            letters: Of the dead-letter topic.
            report: Updated after each letter; valid after an error, too.
            on_letter: Called after each letter.

        Raises:
            ClaimCheckError: A store cannot be reached. This letter and all later ones stay.
            Exception: A letter could not be sent, or the broker failed. The same holds.
        """
        begin = self.clock()
        for taken, letter in enumerate(letters, start=1):
            self._take(letter, report)
            report.duration_seconds = self.clock() - begin
            on_letter()
            if (report.read if self.dry_run else report.sent) == self.limit:
                return
            if self.rate is not None:
                self.sleep(max(0.0, taken / self.rate - (self.clock() - begin)))
        report.finished = True

    def _take(self, letter: Letter, report: RedriveReport) -> None:
        if letter.foreign is not None and not self.force:
            report.foreign += 1
            _name(letter, letter.foreign, report)
            return
        try:
            payload = letter.read()
        except ClaimCheckError as error:
            if error.retryable:
                raise
            report.unreadable += 1
            _name(letter, error, report)
            if not self.dry_run:
                letter.skip()
            return
        report.read += 1
        report.bytes += len(payload or b"")
        if self.dry_run:
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
