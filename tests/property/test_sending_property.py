"""What became of a send, for any order of answers: the ledger alone, and everything that sends without a server.

The model is a topic: each message that was launched really is in it, or is not, whatever the sender heard. A payload
is never deleted while a message in the topic points at it, readers are told of chunks that will not be completed, and
each payload has exactly one event that is true.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from dataclasses import dataclass, field

import hypothesis.strategies as st
from hypothesis import example, given

import claimcheck
from claimcheck import Failed, Resolved
from claimcheck._send.outbound import SendLedger
from claimcheck._wire.headers import TYPE
from claimcheck.errors import PartialSendError
from claimcheck.hooks import SendEvent
from tests.produce_rig import Rig


class RefusedError(Exception):
    pass


class VagueError(Exception):
    pass


ANSWERS = {"ack": None, "refused": RefusedError, "vague": VagueError, "cancelled": asyncio.CancelledError,
           "interrupt": KeyboardInterrupt, "silent": None}  # fmt: skip
DEFINITE = {"ack", "refused"}


@dataclass
class Fate:
    """What the sender hears of a message, and whether it is in the topic where that leaves it open."""

    answer: str
    arrived: bool

    @property
    def there(self) -> bool:
        return self.arrived if self.answer not in DEFINITE else self.answer == "ack"

    def error(self) -> BaseException | None:
        kind = ANSWERS[self.answer]
        return kind() if kind else None


def fates(*answers: str):
    return st.builds(Fate, st.sampled_from(answers), st.booleans())


@dataclass
class Classifier:
    asked: list[int] = field(default_factory=list)

    def __call__(self, error: BaseException) -> str:
        """Nothing that ends a call from outside is definite, whatever this says."""
        self.asked.append(id(error))
        return "unknown" if isinstance(error, VagueError) else "failed"


BREAKS = st.sampled_from([None, RefusedError, VagueError])  # as when a file cannot be read any further


@given(st.data(), st.lists(fates(*ANSWERS), max_size=6), st.integers(0, 3), st.booleans(), BREAKS)
def test_the_ledger_is_right_about_the_topic(data, launched, unlaunched, chunked, stopped):
    classify = Classifier()
    total = max(1, len(launched) + unlaunched)
    ledger = SendLedger(total=total, uuid="u" if chunked else None, classify=classify)
    numbers = [ledger.launched() for _ in launched]
    assert numbers == list(range(len(launched)))
    shared = [RefusedError(), VagueError()]  # one error may be that of several messages
    errors = []
    for number in data.draw(st.permutations(numbers)):
        fate = launched[number]
        error = next((each for each in shared if type(each) is ANSWERS[fate.answer]), None) or fate.error()
        if error is not None:
            errors.append(error)
            ledger.failed(number, error)
        elif fate.answer == "ack":
            ledger.acknowledged(number, number)
    if stopped:
        ledger.stopped(stopped())
        errors.append(ledger.error)
    verdict = ledger.verdict()
    there = [fate.there for fate in launched]
    acknowledged = [number for number in numbers if launched[number].answer == "ack"]
    maybe = [fate for fate in launched if fate.answer not in DEFINITE]
    assert (verdict.acknowledged, verdict.unknown) == (len(acknowledged), len(maybe))
    assert verdict.acknowledged + verdict.unknown + verdict.unsent == verdict.total == total
    assert ledger.results == acknowledged
    assert verdict.rollback == (not acknowledged and not maybe)
    assert not (verdict.rollback and any(there))
    assert (verdict.outcome == "sent") == (len(acknowledged) == total)
    assert (verdict.outcome == "partial") == (0 < len(acknowledged) < total)
    assert verdict.abort == (chunked and verdict.outcome in ("partial", "unknown"))
    assert len(classify.asked) == len(set(classify.asked))
    assert ledger.error is (errors[0] if errors else None)
    ledger.forget_errors()
    assert ledger.verdict() == verdict


class Lab(Rig):
    """A broker whose messages have fates, and a payload that goes there in any of the ways that there are."""

    def __init__(self, strategy: str, given_fates: list[Fate]) -> None:
        super().__init__(strategy)
        self.events: list[SendEvent] = []
        hook = lambda event: self.events.append(event) if isinstance(event, SendEvent) else None  # noqa: E731
        self.cc = claimcheck.ClaimCheck(self.cc.config, hooks=[hook])
        self.classify = Classifier()
        self.futures: list[tuple[concurrent.futures.Future, Fate, int]] = []
        self.heard: list[Fate] = []
        self._fates = iter(given_fates)

    def deliver(self, value, key, headers) -> Fate:
        if (headers or {}).get(TYPE) == "abort":
            self.sent.append(("t", value, key, headers))
            return Fate("ack", True)
        fate = next(self._fates, Fate("ack", True))
        self.heard.append(fate)
        if fate.there:
            self.sent.append(("t", value, key, headers))
        return fate

    def produce(self, value, key=None, headers=None) -> int:
        if error := self.deliver(value, key, headers).error():
            raise error
        return len(self.sent)

    async def produce_async(self, value, key=None, headers=None) -> int:
        return self.produce(value, key, headers)

    def produce_later(self, value, key=None, headers=None) -> concurrent.futures.Future:
        future: concurrent.futures.Future[int] = concurrent.futures.Future()
        self.futures.append((future, self.deliver(value, key, headers), len(self.sent)))
        return future

    def decorated(self, function):
        return self.cc.offload(payload="value", key="key", headers="headers", classify=self.classify)(function)

    def by_hand(self, payload):
        with self.cc.outbound(payload, destination="t", key="k", headers={}, classify=self.classify) as out:
            for envelope in out.envelopes:
                out.sent(self.produce(envelope.data, envelope.key, envelope.headers))
        assert out.results == list(range(1, len(self.heard) + 1))

    def by_block(self, payload):
        with self.cc.outbound(payload, destination="t", key="k", headers={}, classify=self.classify) as out:
            out.send(lambda each: self.produce(each.data, each.key, each.headers))

    def by_future(self, payload):
        joined = self.decorated(self.produce_later)(payload)
        assert joined is self.futures[0][0] or not joined.cancel()
        for future, fate, number in self.futures:
            if fate.answer == "cancelled":
                future.cancel()
            elif error := fate.error():
                future.set_exception(error)
            else:
                future.set_result(number)
        first, *others = self.futures
        assert (joined is first[0]) == (not others)
        assert joined.result(timeout=0) == first[2]

    def send(self, way: str, payload: bytes) -> BaseException | None:
        ways = {
            "decorator": lambda: self.decorated(self.produce)(payload),
            "coroutine": lambda: asyncio.run(self.decorated(self.produce_async)(payload)),
            "block": lambda: self.by_block(payload),
            "by hand": lambda: self.by_hand(payload),
            "future": lambda: self.by_future(payload),
        }
        try:
            ways[way]()
        except BaseException as error:
            return error
        return None


ACK, REFUSED = Fate("ack", True), Fate("refused", False)
FATES = st.lists(fates("ack", "ack", "ack", "refused", "vague", "cancelled", "interrupt"), max_size=6)


@example("future", [], True)
@example("future", [ACK, Fate("cancelled", False)], True)
@example("future", [REFUSED] * 9, True)
@example("coroutine", [REFUSED], True)
@example("decorator", [ACK] * 4 + [REFUSED], True)
@given(st.sampled_from(["decorator", "coroutine", "block", "by hand", "future"]), FATES, st.booleans())
def test_everything_that_sends_keeps_what_readers_need_and_says_what_happened(way, fates, chunked):
    if way == "coroutine":  # the loop itself ends with these, whatever a task does
        fates = [fate for fate in fates if fate.answer != "interrupt"]
    lab = Lab("chunking" if chunked else "external", fates)
    payload = bytes(range(256)) * 30
    error = lab.send(way, payload)
    acknowledged = sum(fate.answer == "ack" for fate in lab.heard)
    maybe = any(fate.answer not in DEFINITE for fate in lab.heard)
    outcomes = lab.received()
    (event,) = lab.events
    assert len(lab.classify.asked) == len(set(lab.classify.asked))
    # Nothing in the topic points at a payload that was deleted, and nothing is left of a definite failure.
    assert not any(isinstance(outcome, Failed) for outcome in outcomes)
    assert len([outcome for outcome in outcomes if isinstance(outcome, Resolved)]) <= 1
    if not chunked:
        assert lab.stored == (1 if acknowledged or maybe else 0)
    # The event is true of the topic.
    assert (event.messages > 1) == (event.uuid is not None) == chunked
    assert (event.outcome == "sent") == (error is None) == (acknowledged == event.messages)
    assert (event.outcome == "failed") == (not acknowledged and not maybe)
    assert (event.outcome == "partial") == (0 < acknowledged < event.messages)
    assert not isinstance(event.error, PartialSendError)
    # The error: unchanged, unless readers may have chunks.
    broken = chunked and error is not None and event.outcome != "failed" and way != "by hand"
    if broken and isinstance(error, PartialSendError):
        assert error.__cause__ is event.error
        assert error.acknowledged == acknowledged
        assert error.acknowledged + error.unknown + error.unsent == error.total == event.messages
        are, were = ("is" if acknowledged == 1 else "are"), ("was" if error.unsent == 1 else "were")
        counts = f"{acknowledged} of {error.total} chunks {are} in the topic, {error.unknown} may be, "
        assert str(error).startswith(f"{counts}{error.unsent} {were} not sent")
    elif error is not None and (way != "future" or chunked):
        assert error is event.error
    # Readers are told of chunks that will not be completed.
    assert broken == any(headers[TYPE] == "abort" for *_, headers in lab.sent)
