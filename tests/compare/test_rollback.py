"""The experiment ``rollback``: what it measures, and that it shows rollbacks that leave or delete too much."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from claimcheck._send.outbound import Verdict
from claimcheck.stores.filesystem import FilesystemStore
from tests.benchmarks.compare import rollback
from tests.benchmarks.compare.model import MODES, Experiment, Mode
from tests.benchmarks.compare.rollback import Failure, Reading, judge
from tests.compare import experiment_rig as rig
from tests.compare.experiment_rig import facts


def left(result: Experiment, mode: str) -> dict[tuple[str, str], tuple[Any, Any]]:
    """Return messages and stored payloads that were left, by failure and point."""
    rows: list[dict[str, Any]] = [dict(zip(result.columns, row, strict=True)) for row in result.rows if row[0] == mode]
    return {(row["what fails"], row["point"]): (row["messages left"], row["stored payloads left"]) for row in rows}


@pytest.mark.slow
def test_what_stays_after_each_failure(tmp_path: Path) -> None:
    with rig.lab(tmp_path, *MODES) as lab:
        result = rollback.run(lab)

    assert result.verdict == "agrees"
    external = {
        ("the write to the store fails", "before the write"): (0, 0),
        ("the write to the store fails", "during the write"): (0, 0),
        ("the write to the store fails", "after the write"): (0, 0),
        ("the broker refuses a message, and the store refuses to delete", "message 1 of 1"): (0, 1),
        ("the broker refuses a message", "message 1 of 1"): (0, 0),
        ("the outcome of a message is unknown", "message 1 of 1"): (0, 1),
        ("the process is killed", "during the write to the store"): (0, 1),  # half of it
        ("the process is killed", "before message 1 of 1"): (0, 1),
    }
    assert left(result, "external") == external
    assert left(result, "hybrid") == external
    assert "3 payloads sent nevertheless" in result.measured["hybrid"]
    chunking = left(result, "chunking")
    assert len(chunking) == 27
    for number in range(9):
        point = f"message {number + 1} of 9"
        with_abort = number + 1 if number else 0  # readers do not know of a payload of which no chunk was sent
        assert chunking["the broker refuses a message", point] == (with_abort, 0)
        assert chunking["the outcome of a message is unknown", point] == (number + 1, 0)
        assert chunking["the process is killed", f"before {point}"] == (number, 0)
    assert left(result, "native") == {("the broker refuses a message", "it is over the topic's limit"): (0, 0)}
    assert all(facts(result)[f"{name}/{mode}"] == 0 for name in ("lost", "wrong") for mode in MODES)


def test_a_rollback_that_deletes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FilesystemStore, "_delete", lambda self, pointer: None)
    with rig.lab(tmp_path, "external") as lab:
        result = rollback.run(lab)

    assert (result.verdict, facts(result)["wrong/external"]) == ("disagrees", 2)  # refused, and after the write
    assert "the broker refuses a message" in result.explanation


def test_a_rollback_that_deletes_although_the_message_may_be_in_the_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Verdict, "rollback", property(lambda self: self.outcome != "sent"))
    with rig.lab(tmp_path, "external") as lab:
        result = rollback.run(lab)

    assert (result.verdict, facts(result)["wrong/external"]) == ("disagrees", 1)
    assert "the outcome of a message is unknown" in result.explanation


def test_a_consumer_that_delivers_a_payload_whose_send_failed(tmp_path: Path) -> None:
    with rig.lab(tmp_path, "external") as lab:

        class Inventing(rig.Proxy):
            """Delivers payload 3, which was not sent, in place of the first payload."""

            done = False

            def receive(self, timeout: float) -> Any:
                received = self.inner.receive(timeout)
                if received is None or self.done:
                    return received
                self.done = True
                return rig.swapped(received, lab.payload(len(received.payload or b""), 3))

        lab.broker.wrappers = lab.broker.wrappers[0], Inventing
        lab.broker.faulty = ("external",)
        result = rollback.run(lab)

    assert result.verdict == "disagrees"
    assert (facts(result)["lost/external"], facts(result)["wrong/external"]) == (1, 1)


REFUSED = Failure("external", "refused", "message 1 of 1", sent=False, messages=0, size=0, objects=0, seconds=0.0)
UNKNOWN = replace(REFUSED, kind="unknown", objects=1, seconds=None)
CHUNKS = replace(REFUSED, mode="chunking", point="message 3 of 9", messages=3, size=300)
READINGS: dict[Mode, Reading] = {"external": Reading(2, 2, 0), "chunking": Reading(2, 2, 0)}


@pytest.mark.parametrize(
    ("failures", "readings", "verdict"),
    [
        ((REFUSED, UNKNOWN, CHUNKS), READINGS, "agrees"),
        ((REFUSED, UNKNOWN, replace(CHUNKS, messages=0)), READINGS, "partly"),
        ((replace(REFUSED, messages=1), UNKNOWN, CHUNKS), READINGS, "partly"),
        ((replace(REFUSED, objects=1), UNKNOWN, CHUNKS), READINGS, "disagrees"),
        ((REFUSED, replace(UNKNOWN, objects=0), CHUNKS), READINGS, "disagrees"),
        ((REFUSED, replace(UNKNOWN, kind="killed", objects=0), CHUNKS), READINGS, "agrees"),
        ((replace(REFUSED, objects=None), UNKNOWN, CHUNKS), READINGS, "agrees"),
        ((REFUSED, UNKNOWN, CHUNKS), READINGS | {"chunking": Reading(2, 1, 0)}, "disagrees"),
        ((REFUSED, UNKNOWN, CHUNKS), READINGS | {"chunking": Reading(2, 2, 1)}, "disagrees"),
    ],
)
def test_verdicts(failures: tuple[Failure, ...], readings: dict[Any, Reading], verdict: str) -> None:
    assert judge(failures, readings, has_retention=True).verdict == verdict


def test_a_store_that_cannot_be_listed_is_reported() -> None:
    unknown = [replace(REFUSED, objects=None, seconds=None), CHUNKS]
    result = judge(unknown, READINGS, has_retention=False)

    assert "stored payloads cannot be counted" in result.measured["external"]
    assert "objects_left/external" not in facts(result)
    assert "3 messages (300 bytes) left until the topic is deleted" in result.measured["chunking"]


def test_a_client_that_splits_payloads_over_the_limit_does_not_fail() -> None:
    sent = replace(REFUSED, mode="native", sent=True)
    result = judge([sent], {"native": Reading(2, 2, 0)}, has_retention=True)

    assert result.measured["native"] == "no send failed: the client splits payloads over the limit"
