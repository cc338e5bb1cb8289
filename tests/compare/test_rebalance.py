"""The experiment ``rebalance``: what it measures, and that it shows consumers that take over wrongly."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.compare import rebalance
from tests.benchmarks.compare.broker import Received
from tests.benchmarks.compare.rebalance import Takeover, judge, kill_points
from tests.compare import experiment_rig as rig
from tests.compare.experiment_rig import facts


def test_nothing_is_lost_when_a_consumer_is_killed(tmp_path: Path) -> None:
    with rig.lab(tmp_path, "external", "chunking", real_time=True) as lab:
        result = rebalance.run(lab)

    assert result.verdict == "disagrees"  # with the published table: no chunk is missing
    for mode in ("external", "chunking"):
        assert [facts(result)[f"{name}/{mode}"] for name in ("kills", "lost", "wrong")] == [2, 0, 0]
    chunked = [row for row in result.rows if row[0] == "chunking"]
    assert [row[2] for row in chunked] == ["yes", "yes"]
    assert all(int(row[1] or 0) % 18 for row in chunked), "killed while a payload was incomplete"


class _TooFar(rig.Proxy):
    """A consumer whose group has committed the first chunks of a payload: the published table's claim."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        inner.seek(0, 3)


class _Repeating(rig.Proxy):
    """A consumer that delivers each payload again."""

    last: Received | None = None

    def receive(self, timeout: float) -> Any:
        if self.last is not None:
            again, self.last = self.last, None
            return again
        self.last = self.inner.receive(timeout)
        return self.last

    def commit(self, received: Received) -> None: ...


@pytest.mark.slow
@pytest.mark.parametrize(
    ("consumer", "name", "verdict"), [(_TooFar, "lost", "agrees"), (_Repeating, "twice", "disagrees")]
)
def test_a_second_consumer_that_is_faulty(tmp_path: Path, consumer: Any, name: str, verdict: str) -> None:
    with rig.lab(tmp_path, "chunking", real_time=True, consumer=consumer) as lab:
        lab.clock = lambda: 10 * time.monotonic()  # what is lost is waited for
        result = rebalance.run(lab)

    assert result.verdict == verdict
    assert facts(result)[f"{name}/chunking"] >= 2
    assert name in result.measured["chunking"]


TAKEOVER = Takeover("chunking", 12, inside=True, sent=(0, 1, 2), first=(0,), second=(1, 2))
WHOLE = replace(TAKEOVER, mode="external", killed_after=2, inside=False)


@pytest.mark.parametrize(
    ("takeovers", "verdict", "counts"),
    [
        ((TAKEOVER, WHOLE), "disagrees", (3, 0, 0, 0)),
        ((replace(TAKEOVER, second=(2,)), WHOLE), "agrees", (2, 0, 1, 0)),
        ((replace(TAKEOVER, second=(0, 1, 2)), WHOLE), "disagrees", (2, 1, 0, 0)),
        ((replace(TAKEOVER, wrong=1), WHOLE), "agrees", (3, 0, 0, 1)),
        ((replace(TAKEOVER, second=(2,)), replace(WHOLE, second=())), "disagrees", (2, 0, 1, 0)),
        ((replace(TAKEOVER, inside=False), WHOLE), "not measured", (3, 0, 0, 0)),
    ],
)
def test_verdicts(takeovers: tuple[Takeover, ...], verdict: str, counts: tuple[int, ...]) -> None:
    result = judge(takeovers)

    assert result.verdict == verdict
    assert tuple(facts(result)[f"{name}/chunking"] for name in ("once", "twice", "lost", "wrong")) == counts


def test_consumers_are_killed_while_a_payload_is_incomplete() -> None:
    points = kill_points(36, 4, 20, random.Random(1))

    assert len(set(points)) == 20
    assert all(0 < point < 36 and point != 18 for point in points)
    assert set(kill_points(4, 4, 5, random.Random(1))) == {1, 2, 3, 4}
