"""The stateful operator in Spark's own tester: no processes, and the test controls time."""

from __future__ import annotations

import json
from typing import Any

import pytest

from claimcheck._receive.chunk_rules import missing_positions

UUID = "6ba7b810-9dad-11d1-80b4-00c04fd430c8"
KEY = json.dumps(["orders", 3, UUID])
START = 1_700_000_000_000


class Operator:
    """Feeds micro-batches to the operator."""

    def __init__(self, **limits: Any) -> None:
        from pyspark.sql.streaming.tws_tester import TwsTester

        from claimcheck.spark._reassemble_state import Limits, Reassembler

        known: dict[str, Any] = {"max_chunks": 10, "max_bytes": 100, "expire_ms": 60_000, "remember_ms": 600_000}
        known |= limits
        self.behind = known.get("behind_ms", 0)
        mode = "EventTime" if self.behind else "ProcessingTime"
        arrived = (lambda row: row.arrived) if self.behind else None
        self.tester = TwsTester(Reassembler(Limits(**known)), timeMode=mode, eventTimeExtractor=arrived)
        self.now = START
        self.at(0)

    def at(self, seconds: float) -> list[Any]:
        """Advance the time; return the rows that timers emit."""
        self.now = START + int(seconds * 1000)
        if self.behind:
            return self.tester.setWatermark(self.now - self.behind)
        return self.tester.setProcessingTime(self.now)

    def feed(self, *rows: Any) -> list[Any]:
        return self.tester.test(KEY, list(rows))

    def micro_batch(self, seconds: float, *rows: Any) -> list[Any]:
        """Process rows, and then the timers, at a new time, as Spark does; return all rows."""
        from pyspark.sql.streaming.stateful_processor import TimerValues

        now = START + int(seconds * 1000)
        self.tester.handle.setGroupingKey(KEY)
        values = TimerValues(now, now - self.behind)
        return [*self.tester.processor.handleInputRows((KEY,), iter(rows), values), *self.at(seconds)]

    def chunk(
        self, position: int, total: int, piece: bytes = b"pp", *, said: bytes | None = None, declared: str | None = None
    ) -> Any:
        from pyspark.sql import Row

        return Row(
            key=KEY,
            position=position,
            total=total,
            size=len(piece),
            digest=b"digest of %d " % position + piece,
            reference=None if position < 0 else b"to %d" % position if said is None else said,
            row=b"row of %d" % position,
            declared=declared,
            arrived=self.now,
        )

    @property
    def noted(self) -> dict[Any, Any]:
        return self.tester.handle.map_states["chunks"].state

    @property
    def timers(self) -> list[int]:
        """The timers, in seconds after the start."""
        known = self.tester.handle._timers._key_to_timers.values()
        return sorted((each + self.behind - START) // 1000 for timers in known for each in timers)


@pytest.fixture(params=[0, 3_600_000], ids=["clock", "data"])
def tester(request) -> Operator:
    return Operator(behind_ms=request.param)


def test_all_chunks_in_one_batch_touch_no_state_of_chunks(tester, monkeypatch):
    states = tester.tester.handle.map_states["chunks"]
    monkeypatch.setattr(states, "updateValue", None)
    monkeypatch.setattr(states, "getValue", None)

    rows = tester.chunk(2, 3), tester.chunk(0, 3), tester.chunk(1, 3), tester.chunk(0, 3)
    [row] = tester.micro_batch(1, *rows)

    assert row.asDict() == {
        "uuid": UUID,
        "row": b"row of 0",
        "pieces": [b"to 0", b"to 1", b"to 2"],
        "error_type": None,
        "error_message": None,
        "declared": None,
    }
    assert tester.at(2) == []
    assert tester.timers == [600]


def test_chunks_over_several_batches(tester):
    assert tester.feed(tester.chunk(3, 4), tester.chunk(1, 4)) == []
    assert tester.timers == [60]
    tester.at(20)
    assert tester.feed(tester.chunk(1, 4), tester.chunk(0, 4)) == []
    assert tester.timers == [60]
    [row] = tester.micro_batch(20.5, tester.chunk(2, 4))

    assert (row.pieces, row.row) == ([b"to 0", b"to 1", b"to 2", b"to 3"], b"row of 0")
    assert tester.noted == {}
    assert tester.timers == [620]


def test_late_duplicates_are_dropped_as_long_as_the_payload_is_remembered(tester):
    [_] = tester.feed(tester.chunk(0, 2), tester.chunk(1, 2))

    tester.at(599)
    assert tester.feed(tester.chunk(0, 2), tester.chunk(1, 2)) == []
    tester.at(601)
    assert len(tester.feed(tester.chunk(0, 2), tester.chunk(1, 2))) == 1


def test_what_waits_too_long_is_said_once(tester):
    tester.feed(tester.chunk(4, 6), tester.chunk(2, 6))

    assert tester.at(59) == []
    [row] = tester.at(60.001)
    assert (row.uuid, row.row, row.pieces, row.error_type) == (UUID, b"row of 2", [], "IncompletePayloadError")
    assert row.error_message == (
        f"received only 2 of 6 chunks of {UUID}, missing 0-1, 3, 5: expire_after_seconds (60) passed"
    )
    assert tester.noted == {}
    assert tester.feed(tester.chunk(0, 6)) == []  # too late
    assert tester.at(901) == []
    assert tester.timers == []


def test_without_expiry_nothing_is_given_up(tester):
    tester = Operator(expire_ms=0)
    tester.feed(tester.chunk(0, 2))

    assert tester.at(10**6) == []
    assert len(tester.feed(tester.chunk(1, 2))) == 1


@pytest.mark.parametrize("apart", [False, True], ids=["in one batch", "in two"])
@pytest.mark.parametrize(
    ("second", "why"),
    [
        (
            {"position": 1, "total": 4, "piece": b"qq"},
            "chunk 1 of UUID arrived twice with different bytes: two",
        ),
        ({"position": 2, "total": 5}, "chunk 2 of UUID declares 5 chunks, but an earlier one 4: two writers,"),
    ],
)
def test_contradictions_are_said_once(tester, apart, second, why):
    rows = [tester.chunk(1, 4), tester.chunk(**second)]

    said = [*tester.feed(rows[0]), *tester.feed(rows[1])] if apart else tester.feed(*rows)

    [row] = said
    assert row.error_type == "ChunkConflictError"
    assert row.error_message.startswith(why.replace("UUID", UUID))
    assert tester.feed(tester.chunk(0, 4), tester.chunk(2, 4), tester.chunk(3, 4)) == []
    assert tester.noted == {}


@pytest.mark.parametrize(
    ("positions", "count", "text"),
    [
        ([0, 1], 2, ""),
        ([], 1, "0"),
        ([1, 4], 2**31 - 1, "0, 2-3, 5-2147483646"),
        (range(0, 40, 2), 40, "1, 3, 5, 7, 9, 11, 13, 15 and 12 more"),
    ],
)
def test_what_is_missing(positions, count, text):
    assert missing_positions(positions, count) == text
