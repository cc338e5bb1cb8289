"""The experiment ``seek``: what it measures, and that it shows consumers that seek wrongly."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.compare import seek
from tests.benchmarks.compare.model import MODES
from tests.benchmarks.compare.seek import Jump, Target, judge, plan
from tests.compare import experiment_rig as rig
from tests.compare.experiment_rig import facts


def test_only_chunked_payloads_have_a_middle(tmp_path: Path) -> None:
    with rig.lab(tmp_path, *MODES) as lab:
        result = seek.run(lab)

    assert result.verdict == "agrees"
    whole = "no message is inside a payload; 3 seeks: 9 delivered, 0 lost, 0 wrong"
    assert result.measured == {
        "external": whole,
        "chunking": "6 seeks into a payload: 6 of these payloads skipped, 0 lost, 0 wrong;"
        " 3 seeks back: 9 of 9 delivered",
        "hybrid": whole,
        "native": whole,
    }


class _Overshooting(rig.Proxy):
    """A consumer that skips the payload after a seek."""

    skip = False

    def seek(self, partition: int, position: Any) -> None:
        self.inner.seek(partition, position)
        self.skip = True

    def receive(self, timeout: float) -> Any:
        received = self.inner.receive(timeout)
        if received is not None and self.skip:
            self.skip = False
            return self.receive(timeout)
        return received


def test_a_consumer_that_skips_a_payload_after_a_seek(tmp_path: Path) -> None:
    with rig.lab(tmp_path, "chunking", consumer=_Overshooting) as lab:
        result = seek.run(lab)

    assert (result.verdict, facts(result)["lost/chunking"]) == ("disagrees", 9)  # one for each seek


class _Tearing(rig.Proxy):
    """A consumer that delivers the rest of a payload as if it were all of it."""

    sought = False

    def seek(self, partition: int, position: Any) -> None:
        self.inner.seek(partition, position)
        self.sought = True

    def receive(self, timeout: float) -> Any:
        received = self.inner.receive(timeout)
        if received is None or received.payload is None or not self.sought:
            return received
        self.sought = False
        return rig.swapped(received, received.payload[len(received.payload) // 2 :])


def test_a_consumer_that_delivers_a_part_of_a_payload(tmp_path: Path) -> None:
    with rig.lab(tmp_path, "chunking", consumer=_Tearing) as lab:
        result = seek.run(lab)

    assert (result.verdict, facts(result)["wrong/chunking"]) == ("disagrees", 9)


class _Rewinding(rig.Proxy):
    """A consumer that begins at the beginning of the topic, wherever it should begin."""

    def seek(self, partition: int, position: Any) -> None:
        self.inner.seek(partition, 0)


def test_a_consumer_that_goes_back_too_far(tmp_path: Path) -> None:
    with rig.lab(tmp_path, "chunking", consumer=_Rewinding) as lab:
        result = seek.run(lab)

    assert (result.verdict, facts(result)["skipped/chunking"]) == ("disagrees", 0)
    assert facts(result)["wrong/chunking"] > 0


def test_the_plan_leads_into_each_payload_but_the_last() -> None:
    targets = plan(["a", "b", "c", "d", "e", "f"], [3, 5, 6])

    assert targets == [
        Target("b", 0, inside=True),
        Target("c", 0, inside=True),
        Target("a", 0, inside=False),
        Target("e", 1, inside=True),
        Target("d", 1, inside=False),
    ]
    assert plan([10, 11, 12], [1, 2, 3]) == [Target(10, 0, inside=False), Target(11, 1, inside=False)]


INSIDE = Jump("chunking", Target(4, 1, inside=True), last=3, received=(2, 3))
BACK = Jump("chunking", Target(3, 1, inside=False), last=3, received=(1, 2, 3))


@pytest.mark.parametrize(
    ("jumps", "verdict", "expected"),
    [
        ((INSIDE, BACK), "agrees", {"skipped": 1, "lost": 0, "wrong": 0}),
        ((replace(INSIDE, received=(1, 2, 3)), BACK), "disagrees", {"skipped": 0, "lost": 0, "wrong": 0}),
        ((INSIDE, replace(BACK, received=(2, 3))), "disagrees", {"skipped": 1, "lost": 1, "wrong": 0}),
        ((replace(INSIDE, received=(3,)), BACK), "disagrees", {"skipped": 1, "lost": 1, "wrong": 0}),
        ((INSIDE, replace(BACK, received=(1, 2, 2, 3))), "disagrees", {"skipped": 1, "lost": 0, "wrong": 1}),
        ((INSIDE, replace(BACK, received=(0, 1, 2, 3))), "disagrees", {"skipped": 1, "lost": 0, "wrong": 1}),
        ((INSIDE, replace(BACK, wrong=1)), "disagrees", {"skipped": 1, "lost": 0, "wrong": 1}),
        ((INSIDE, replace(INSIDE, received=(1, 2, 3)), BACK), "partly", {"skipped": 1, "lost": 0, "wrong": 0}),
    ],
)
def test_verdicts(jumps: tuple[Jump, ...], verdict: str, expected: dict[str, int]) -> None:
    result = judge(jumps)

    assert result.verdict == verdict
    assert facts(result) == {f"{name}/chunking": count for name, count in expected.items()}
