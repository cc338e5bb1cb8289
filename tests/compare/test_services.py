"""The experiment ``services``: what it measures, and that it shows clients that behave wrongly."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from claimcheck.config import StoreConfig
from tests.benchmarks.compare import faults, services
from tests.benchmarks.compare.model import MODES
from tests.benchmarks.compare.services import Outage, judge
from tests.compare import experiment_rig as rig


def test_an_outage_stops_external_and_no_other_mode(tmp_path: Path) -> None:
    with rig.lab(tmp_path, *MODES) as lab:
        result = services.run(lab)

    assert result.verdict == "agrees"
    assert result.measured == {
        "external": "store down: 0 of 4 sent, 0 of 4 read; afterwards all 4",
        "chunking": "store down: 4 of 4 sent, 8 of 8 read",
        "hybrid": "store down: 4 of 4 sent (4 as chunks), 4 of 8 read; afterwards all 8",
        "native": "store down: 4 of 4 sent, 8 of 8 read",
    }
    needed = {row[0]: row[1] for row in result.rows}
    assert needed == {
        "external": "broker, store",
        "chunking": "broker",
        "hybrid": "broker, store",
        "native": "broker",
    }


class _Pretending(rig.Proxy):
    """A producer that reports failed sends as successful."""

    def send(self, payload: bytes, *, done: Any, **options: Any) -> None:
        self.inner.send(payload, done=lambda error, partition: done(None, 0), **options)


def test_a_producer_that_hides_failures_loses_payloads(tmp_path: Path) -> None:
    with rig.lab(tmp_path, "external", "chunking", producer=_Pretending, faulty=("external",)) as lab:
        result = services.run(lab)

    assert result.facts is not None
    assert result.verdict == "disagrees"
    assert (result.facts["lost_after_outage/external"], result.facts["lost_after_outage/chunking"]) == (4, 0)


class _Inventing(rig.Proxy):
    """A consumer that returns other bytes in place of an error."""

    def receive(self, timeout: float) -> Any:
        received = self.inner.receive(timeout)
        return rig.swapped(received, b"a stale copy") if received is not None and received.error else received


def test_a_consumer_that_hides_errors_is_wrong(tmp_path: Path) -> None:
    with rig.lab(tmp_path, "external", "chunking", consumer=_Inventing, faulty=("external",)) as lab:
        result = services.run(lab)

    assert result.facts is not None
    assert result.verdict == "disagrees"
    assert result.facts["wrong/external"] == 4


def test_an_outage_that_does_not_affect_external_disagrees_with_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faults, "_fail_always", lambda cc, name: None)
    with rig.lab(tmp_path, "external", "chunking") as lab:
        result = services.run(lab)

    assert result.facts is not None
    assert (result.verdict, result.facts["sent_while_down/external"]) == ("partly", 1.0)


def test_without_a_store_there_is_nothing_to_switch_off(tmp_path: Path) -> None:
    with rig.lab(tmp_path, "chunking", "native") as lab:
        result = services.run(lab)

    assert result.verdict == "not measured"
    assert set(result.measured) == {"chunking", "native"}


GOOD = Outage(
    mode="hybrid",
    before=4,
    writes=4,
    attempts=4,
    sent=4,
    as_chunks=4,
    slowest_seconds=0.1,
    readable=8,
    read=4,
    read_errors=4,
    read_after=8,
    wrong=0,
)
EXTERNAL = replace(GOOD, mode="external", sent=0, as_chunks=0, readable=4, read=0, read_after=4)
CHUNKING = replace(GOOD, mode="chunking", writes=0, as_chunks=0, read=8, read_errors=0)


@pytest.mark.parametrize(
    ("outages", "verdict"),
    [
        ((EXTERNAL, CHUNKING, GOOD), "agrees"),
        ((EXTERNAL, replace(CHUNKING, sent=3), GOOD), "partly"),
        ((EXTERNAL, replace(CHUNKING, writes=1), GOOD), "partly"),
        ((replace(EXTERNAL, read_after=3), CHUNKING, GOOD), "disagrees"),
        ((EXTERNAL, CHUNKING, replace(GOOD, wrong=1)), "disagrees"),
    ],
)
def test_verdicts(outages: tuple[Outage, ...], verdict: str) -> None:
    assert judge(outages).verdict == verdict


def test_payloads_that_hybrid_does_not_send_are_reported() -> None:
    result = judge([EXTERNAL, CHUNKING, replace(GOOD, sent=1, as_chunks=1, readable=5, read_after=5)])

    assert result.explanation == "Hybrid sent 1 of 4 payloads while the store was down: the rest failed."


@pytest.mark.parametrize(
    ("store", "elsewhere"),
    [
        (StoreConfig("redis", {"url": "redis://:secret@store:6379/3"}), {"url": "redis://127.0.0.1:9/3"}),
        (StoreConfig("redis", {"url": "rediss://a:1,b:2"}), {"url": "rediss://127.0.0.1:9"}),
        (
            StoreConfig("s3", {"bucket": "b", "endpoint_url": "http://store:9000"}),
            {"bucket": "b", "endpoint_url": "http://127.0.0.1:9"},
        ),
        (StoreConfig("s3", {"bucket": "b"}), None),
        (StoreConfig("obstore", {"url": "s3://bucket/prefix"}), None),
        (StoreConfig("redis", {"url": "unix:///run/redis.sock"}), None),
        (StoreConfig("filesystem", {"path": "/srv/payloads"}), None),
    ],
)
def test_a_store_with_a_server_is_moved_to_an_address_that_refuses(
    store: StoreConfig, elsewhere: dict[str, str] | None
) -> None:
    moved = faults._elsewhere(store, "127.0.0.1:9")

    assert (None if moved is None else dict(moved.options)) == elsewhere
