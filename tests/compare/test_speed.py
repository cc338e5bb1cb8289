"""Speed and memory: figures follow from the reports of the workers, and wrong payloads end the experiment."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.compare import memory, speed
from tests.benchmarks.compare.lab import Lab
from tests.benchmarks.compare.memory import Peak
from tests.benchmarks.compare.model import CompareError, Mode
from tests.benchmarks.compare.payloads import MIN_BYTES, Payloads, number_of, representative
from tests.benchmarks.compare.process import Delivered, Report, Role, Worker
from tests.benchmarks.compare.speed import Samples, amount, is_steady
from tests.benchmarks.compare.stats import interval, median_point, percentile
from tests.compare.rig import KIB, MIB, embedded, lab_on

MB = 1_000_000


class TwoModes(Lab):
    """A lab for two modes, whose workers can be made wrong."""

    broken: dict[tuple[Role, Mode], Callable[[Lab, dict[str, Any]], None]] = {}

    @property
    def modes(self) -> tuple[Mode, ...]:
        return ("external", "chunking")

    def worker(self, role: Role, mode: Mode, topic: str, **options: Any) -> Worker:
        if (role, mode) in self.broken:
            self.broken[role, mode](self, options)
        return super().worker(role, mode, topic, **options)


@pytest.fixture
def lab(tmp_path):
    sizes = (64 * KIB, 2 * MIB)
    with lab_on(embedded(tmp_path), tmp_path, kind=TwoModes, sizes=sizes, rounds=2, quick=True) as made:
        yield made


def report(size: int, count: int, seconds: float, *, latencies: tuple[float, ...] = (), cpu: float = 0.0) -> Report:
    return Report(count, size * count, seconds, cpu, 0, latencies or (seconds / count,) * count)


# Speed ---------------------------------------------------------------------------------------------------------


def test_throughput_latency_and_processor_time_by_hand():
    """10 payloads of 1 MB in 0.1 s are 100 MB/s; 0.02 s of processor time for 10 MB are 2 s per GB."""
    produce = [report(MB, 10, seconds, cpu=0.02) for seconds in (0.1, 0.2, 0.05)]
    single = [report(MB, 4, 1.0, latencies=(0.001, 0.002, 0.003, 0.100))] * 3
    first = [report(MB, 1, seconds, cpu=0.001) for seconds in (0.9, 1.0, 7.0)]
    consume = [report(MB, 11, 1.05, latencies=(1.02, *(0.001,) * 10), cpu=0.011)] * 3  # some were fetched in advance
    samples = Samples("chunking", MB, produce, single, first, consume)

    experiment = speed.judge([samples], limit_bytes=MB)

    assert (experiment.verdict, experiment.claimed) == ("measured", {})
    series = {each.name: each.points["chunking"][0] for each in experiment.series}
    assert series["produce_throughput"].y == pytest.approx(100)
    assert (series["produce_throughput"].low, series["produce_throughput"].high) == pytest.approx((50, 200))
    assert series["consume_throughput"].y == pytest.approx(200)
    assert series["produce_latency"].y == pytest.approx(2.5)
    assert series["cpu"].y == pytest.approx(3)
    facts = experiment.facts or {}
    assert facts[f"produce_seconds/chunking/{MB}/1"] == pytest.approx(0.02)
    assert facts[f"consume_mb_per_second/chunking/{MB}"] == pytest.approx(200)
    row = dict(zip(experiment.columns, experiment.rows[0], strict=True))
    assert (row["size"], row["mode"], row["produce MB/s"]) == ("976.6 KiB", "chunking", 100.0)


def test_a_consumer_that_connects_again_after_a_seek_is_not_faster_than_its_payloads():
    """The first payload alone took 1.3 s this time, all of them 1.2 s: the other ten still took 0.1 s."""
    consume = [report(MB, 11, 1.2, latencies=(1.1, *(0.01,) * 10))]
    samples = Samples("native", MB, [report(MB, 1, 1)], [report(MB, 1, 1)], [report(MB, 1, 1.3)], consume)

    assert (speed.judge([samples], limit_bytes=MB).facts or {})[f"consume_mb_per_second/native/{MB}"] == pytest.approx(
        100
    )


@pytest.mark.slow
def test_every_mode_and_size_is_measured_and_nothing_stays_behind(lab):
    experiment = speed.run(lab)

    assert experiment.measured.keys() == {"external", "chunking"}
    for series in experiment.series:
        for points in series.points.values():
            assert [point.x for point in points] == [64 * KIB, 2 * MIB]
            assert all(0 < point.low <= point.y <= point.high for point in points)
    rounds = [name for name in experiment.facts or {} if name.startswith(f"consume_seconds/external/{2 * MIB}/")]
    assert len(rounds) == 2
    assert lab.topics == []
    assert lab.store_objects() == 0


@pytest.mark.slow
def test_wrong_payloads_end_the_experiment(lab, tmp_path):
    """The consumer of one mode expects other contents than its producer sends."""
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "f").write_bytes(bytes(1000))

    def other_contents(lab: Lab, options: dict[str, Any]) -> None:
        lab.payloads = Payloads(str(tmp_path / "files"))

    lab.broken = {("consumer", "chunking"): other_contents}
    lab.payloads = Payloads()
    with pytest.raises(CompareError, match=r"external: 0 of \d+ payloads .* unchanged \(damaged\)|chunking: 0 of \d+"):
        speed.run(lab)


def test_a_failed_send_ends_the_experiment(lab):
    """The producer's store does not exist."""

    def no_store(lab: Lab, options: dict[str, Any]) -> None:
        options["config"] = lab.config("external", path="/dev/null/nowhere")

    lab.broken = {("producer", "external"): no_store}
    with pytest.raises(CompareError, match="external: 1 of 1 payloads of 64 KiB failed"):
        speed.run(lab)


@pytest.mark.parametrize(
    ("size", "seconds", "count"),
    [(64 * KIB, 0.0001, 400), (64 * KIB, 0.01, 25), (10 * MIB, 0.001, 4), (100 * MIB, 0.5, 1), (64 * KIB, 0.0, 400)],
)
def test_a_round_takes_neither_too_long_nor_too_many_bytes(size, seconds, count):
    assert amount(size, seconds) == count


@pytest.mark.parametrize(
    ("seconds", "steady"),
    [
        ([1.0] * 7, False),  # too few to tell
        ([1.0] * 8, True),
        ([1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.5, 0.5], False),
        ([9.0, 0.8, 0.7, 0.6, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5], True),  # only the last eight count
        ([1.0, 1.0, 1.0, 1.0, 0.95, 0.2, 0.95, 0.95], True),  # one fast round is noise
    ],
)
def test_rounds_are_steady_when_they_become_no_faster(seconds, steady):
    assert is_steady(seconds) is steady


class WarmingPair:
    """A producer and a consumer of a broker that takes 20 rounds to reach its full speed."""

    mode, topic = "chunking", "t"

    def __init__(self) -> None:
        self.producer = self.consumer = self
        self.sent = self.received = self.rounds = 0
        self.delivered = [Delivered(0, MB, correct=True, partition=0, position=0)]

    def send(self, size: int, first: int, count: int, **_: Any) -> Report:
        assert first == self.sent
        self.sent, self.rounds = first + count, self.rounds + 1
        return report(size, count, count * max(0.05, 0.5 - 0.0225 * self.rounds))

    def receive(self, count: int, **_: Any) -> Report:
        self.delivered = self.delivered[:1] * count
        self.received += count
        return report(MB, count, 1)


def test_the_first_measured_round_is_as_fast_as_the_broker_can_be(lab, monkeypatch):
    """A new Java broker becomes twice as fast during the first gigabyte; this must not count against chunks."""
    pair = WarmingPair()
    monkeypatch.setattr(Lab, "pairs", lambda *_, **modes: contextlib.nullcontext([pair]))

    speed.warm_up(lab, 10 * MB)

    assert 20 <= pair.rounds <= 32
    assert pair.received == pair.sent


# Memory --------------------------------------------------------------------------------------------------------


def peaks(chunking: float, external: float) -> list[Peak]:
    """Return measurements in which each further payload takes so many payloads of memory."""
    lines: tuple[tuple[Mode, float], ...] = (("chunking", chunking), ("external", external))
    found = [Peak(mode, MB, 1, 0, 2 * MB) for mode, _ in lines]
    return found + [Peak(mode, 4 * MB, n, 0, 4 * MB * (1 + (n - 1) * held)) for mode, held in lines for n in (1, 4, 8)]


@pytest.mark.parametrize(
    ("chunking", "external", "verdict"),
    [(1.0, 0.0, "agrees"), (0.1, 0.0, "partly"), (1.0, 1.0, "partly"), (0.0, 1.0, "disagrees")],
)
def test_the_verdict_on_memory(chunking, external, verdict):
    experiment = memory.judge(peaks(chunking, external), sizes=[MB], several=4 * MB)

    assert experiment.verdict == verdict
    assert (experiment.facts or {})["buffered/chunking"] == pytest.approx(chunking)


@pytest.mark.slow
def test_memory_is_measured_and_a_buffering_store_mode_would_be_seen(lab):
    """Both workers of ``external`` send chunks instead: the verdict shows that they buffer."""

    def chunks(lab: Lab, options: dict[str, Any]) -> None:
        options["config"] = lab.config("chunking")

    lab.sizes = (2 * MIB,)
    right = memory.run(lab)
    lab.broken = {("producer", "external"): chunks, ("consumer", "external"): chunks}
    wrong = memory.run(lab)

    assert (right.verdict, wrong.verdict) == ("agrees", "partly")
    assert (right.facts or {})["buffered/external"] < 0.5 < (wrong.facts or {})["buffered/external"]


# Payloads and statistics ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [MIN_BYTES, 1000, 1_000_003, 3_000_000])
def test_every_changed_byte_of_a_payload_is_found(size):
    payloads = Payloads()
    payload = payloads.make(size, 5)
    assert (len(payload), number_of(payload), payloads.verify(payload)) == (size, 5, True)

    for place in (8, size // 2, size - 1):
        damaged = bytearray(payload)
        damaged[place] ^= 1
        assert not payloads.verify(damaged)
    assert not payloads.verify(payload[:-1] + b"xx") or size == MIN_BYTES


def test_exchanged_chunks_of_a_payload_are_found():
    payload = Payloads().make(4 * MIB, 1)
    a, b, c, d = (payload[i * MIB : (i + 1) * MIB] for i in range(4))

    assert not Payloads().verify(a + c + b + d)


def test_payloads_of_a_folder_have_its_contents_and_sizes(tmp_path: Path):
    for size in (1000, 2000, 9000):
        (tmp_path / f"{size}.txt").write_bytes(b"A" * size)
    payloads = Payloads(str(tmp_path))

    assert payloads.sizes() == (1000, 2000, 9000)
    assert payloads.make(2000, 3)[8:] == b"A" * 1992
    assert payloads.verify(payloads.make(2000, 3))


def test_an_empty_folder_is_an_error(tmp_path: Path):
    with pytest.raises(CompareError, match="no file"):
        Payloads(str(tmp_path)).sizes()


def test_the_representative_sizes_include_the_largest():
    assert representative(range(100, 1100), "here") == (200, 600, 999, 1099)
    with pytest.raises(CompareError, match="here"):
        representative([1, 2], "here")


def test_the_interval_is_narrow_for_equal_rounds_and_covers_the_median():
    rng = random.Random(1)
    covered = 0
    for _ in range(100):
        point = median_point(0, [rng.gauss(100, 10) for _ in range(9)])
        covered += point.low <= 100 <= point.high

    assert covered >= 85
    assert interval([[5.0]] * 7, max) == (5.0, 5.0)
    assert percentile([1, 2, 3, 4], 0.5) == 2.5
