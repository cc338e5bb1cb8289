"""`make compare`: its recommendation follows from measurements alone, and a run removes all that it created."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import claimcheck
from tests import servers
from tests.benchmarks.compare import kafka
from tests.benchmarks.compare import main as program
from tests.benchmarks.compare.broker import MODES, make, number_of
from tests.benchmarks.compare.lab import Lab
from tests.benchmarks.compare.main import compare, main
from tests.benchmarks.compare.measures import Measure
from tests.benchmarks.compare.recommendation import Recommendation, Setting, recommend
from tests.benchmarks.compare.report import render
from tests.docs_pages import ROOT
from tests.real.process import wait_until

KIB, MIB = 1 << 10, 1 << 20
SIZES = (64 * KIB, 256 * KIB, MIB, 10 * MIB)
SETTING = Setting(limit_bytes=1_000_000, store="s")
# How many times as long the store takes, by size.
SLOW_STORE, FAST_STORE, FASTEST_STORE, MIDDLE, TIE = (
    dict(zip(SIZES, ratios, strict=True))
    for ratios in ((4.0, 3.0, 2.5, 2.0), (4.0, 2.0, 0.5, 0.2), (2.0, 0.5, 0.3, 0.1), (4.0, 3.0, 2.0, 0.5), (1.0,) * 4)
)


# The recommendation ----------------------------------------------------------------------------------------------


def facts(ratios: Mapping[int, float], *, rounds: int = 7, noise: float = 0.0, seed: int = 0) -> dict[str, float]:
    """Return measurements in which the store takes so many times as long as chunks, at 1 GB/s."""
    rng = random.Random(seed)
    return {
        f"seconds/{mode}/{size}/{number}": size / 1e9 * factor * (1 + rng.uniform(-noise, noise))
        for size, ratio in ratios.items()
        for mode, factor in (("external", ratio), ("chunking", 1.0), ("native", 0.8))
        for number in range(rounds)
    }


def found(ratios: Mapping[int, float], setting: Setting = SETTING, **options: Any) -> Recommendation:
    result = recommend(facts(ratios, **options), setting)
    assert result is not None
    return result


@pytest.mark.parametrize(
    ("ratios", "strategy", "threshold", "below"),
    [
        pytest.param(FAST_STORE, "hybrid", "auto", None, id="fast store"),
        pytest.param(SLOW_STORE, "chunking", "auto", None, id="slow store"),
        pytest.param(MIDDLE, "hybrid", "auto", MIB, id="chunks up to 1 MiB"),
        pytest.param(FASTEST_STORE, "hybrid", 64 * KIB, None, id="lower threshold"),
        pytest.param(dict.fromkeys(SIZES, 1.2), "hybrid", "auto", None, id="within the margin"),
    ],
)
def test_the_faster_way_is_recommended_as_a_configuration(ratios, strategy, threshold, below, tmp_path):
    stores = f"stores:\n  s: {{type: filesystem, path: {tmp_path}, create: true}}\n"
    raw = yaml.safe_load(found(ratios, Setting(limit_bytes=1_000_000, store="s", stores_yaml=stores)).yaml)

    assert (raw["strategy"], raw["threshold_bytes"]) == (strategy, threshold)
    assert raw.get("hybrid", {}).get("chunk_below_bytes") == below
    with claimcheck.from_dict(raw) as cc:
        assert cc.check().ok


def test_what_cannot_be_chunked_or_stored_goes_the_other_way_and_without_speed_there_is_none():
    assert found(FAST_STORE, Setting(1_000_000, "s", max_chunked_bytes=4 * MIB)).strategy == "external"
    chunks = {name: value for name, value in facts(TIE).items() if "external" not in name}
    assert getattr(recommend(chunks, Setting(1_000_000, None)), "strategy", "") == "chunking"
    assert recommend({"buffered/chunking": 1.0}, SETTING) is None


@given(st.integers(0, 10**6), st.sampled_from([FAST_STORE, TIE, SLOW_STORE, MIDDLE, FASTEST_STORE]))
def test_noise_does_not_change_the_recommendation(seed, ratios):
    """Rounds that differ by up to 10 % each way."""
    assert found(ratios, noise=0.1, seed=seed).yaml == found(ratios).yaml


def test_what_is_not_clear_stays_at_the_default():
    """Rounds without any order: half of them would lead to chunking, half to the store."""
    results = [found(dict.fromkeys(SIZES, 1.3), noise=0.9, rounds=3, seed=seed) for seed in range(20)]

    assert sum(result.strategy == "hybrid" for result in results) > len(results) / 2
    assert [found(FAST_STORE, rounds=n).confidence.split(":")[0] for n in (7, 3, 1)] == ["high", "medium", "low"]


def test_a_crossover_is_the_size_from_which_a_mode_is_faster():
    assert "external is faster than chunking from 1 MiB on." in found(FAST_STORE).reasons
    always = "chunking is faster than external at every measured size (2.0 to 4.0 times as fast)."
    assert always in found(SLOW_STORE).reasons


# The report ------------------------------------------------------------------------------------------------------


def test_a_report_begins_with_the_recommendation_and_hostile_names_stay_text():
    hostile = "<script>alert(1)</script> | ``` \x00\x1b\u202e $x^2$"
    run = json.loads((ROOT / "docs/pictures/compare-kafka.json").read_text())
    page = render({**run, "broker": hostile, "store": hostile, "machine": {hostile: hostile}, "made": hostile}, "x.png")

    advice = run["recommendation"]
    assert page.index(advice["yaml"].strip()) < page.index(advice["reasons"][0]) < page.index("![Measurements](x.png)")
    assert "None: the recommendation needs" in render({**run, "recommendation": None}, "x.png")
    assert not any(each in page for each in ("<script", "\x1b", "\u202e"))


# Runs ------------------------------------------------------------------------------------------------------------

PASSWORD = "hunter2-hunter2"


@pytest.fixture(autouse=True)
def _folders(tmp_path, monkeypatch):
    """Temporary folders are below the test's folder."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.chdir(tmp_path)


def left(tmp_path: Path) -> list[str]:
    return [str(path) for path in (tmp_path / "tmp").iterdir()]


def ran(*arguments: str, secret: str = PASSWORD) -> dict[str, Any]:
    """Return the JSON of a run that measured every mode."""
    result = CliRunner().invoke(main, ["--quick", "--rounds", "1", *arguments])

    assert result.exit_code == 0, result.output
    assert secret not in result.output
    (file,) = Path("compare-results").glob("*.json")
    values: dict[str, Any] = json.loads(file.read_text())
    assert all(set(each["measured"]) == set(MODES) for each in values["measures"])
    return values


@pytest.mark.slow
def test_a_run_measures_everything_and_writes_a_report_with_a_picture(tmp_path):
    pytest.importorskip("matplotlib", reason="only the extra `bench` has matplotlib")
    values = ran("--brokers", "embedded", "--sizes", "64KiB,1KiB")

    assert values["sizes"] == [1024, 65_536]
    assert [each["name"] for each in values["measures"]] == ["partition", "memory", "speed"]
    assert values["recommendation"]["strategy"] in MODES
    assert "embedded.png" in Path("compare-results/embedded.md").read_text()
    assert Path("compare-results/embedded.png").stat().st_size > 10_000
    assert left(tmp_path) == []


@pytest.mark.parametrize("error", [None, KeyboardInterrupt])
def test_what_a_measurement_leaves_is_removed(monkeypatch, tmp_path, error):
    folder = tmp_path / "tmp"

    def stored() -> list[Path]:
        return [path for path in folder.glob("*/store/**/*") if path.is_file()]

    def untidy(lab: Lab) -> Measure:
        with lab.pairs("untidy", 64 * KIB) as pairs:
            report = pairs[0].producer.call("produce", size=64 * KIB, first=0)
            pairs[0].check(64 * KIB, report)
            assert stored()
            if error is not None:
                raise error
        return Measure("untidy", "untidy", {}, "")

    def after(lab: Lab) -> Measure:
        assert not stored()
        assert not [*folder.glob("*/*.sqlite")]
        return Measure("after", "after", {}, "")

    monkeypatch.setattr(program, "MEASURES", {"untidy": untidy, "after": after})
    if error is None:
        assert [each["name"] for each in compare(sizes=(64 * KIB,))["measures"]] == ["untidy", "after"]
    else:
        with pytest.raises(error):
            compare(sizes=(64 * KIB,))
    assert left(tmp_path) == []


def test_a_signal_ends_the_run_and_removes_everything(tmp_path):
    options = ("--brokers", "embedded", "--only", "speed", "--sizes", "64KiB", "--rounds", "500")
    command = [sys.executable, "-m", "tests.benchmarks.compare.main", *options, "--out", str(tmp_path / "out")]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: bool(list((tmp_path / "tmp").glob("claimcheck-compare-*/*.sqlite"))), "the run measures")

    process.terminate()

    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM, errors
    assert "Traceback" not in errors
    assert left(tmp_path) == []


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--brokers", "embedded", "--only", "sped"], 1, "there is no measurement 'sped'"),
        (["--sizes", "1B"], 2, "expected sizes of 16 bytes to 256 MiB"),
        (["--admin-url", "http://localhost:1"], 2, "--admin-url needs --pulsar"),
        (["--kafka", "127.0.0.1:1", "--only", "speed"], 1, "no Kafka broker answered"),
    ],
)
def test_wrong_usage_is_one_line(arguments, code, text, monkeypatch):
    monkeypatch.setattr(kafka, "_SECONDS", 1.0)
    result = CliRunner().invoke(main, arguments)
    assert (result.exit_code, text in result.output) == (code, True), result.output
    assert "Traceback" not in result.output


def test_a_payload_that_is_cut_or_changed_is_not_recognized():
    payload = make(3 * MIB, 7)
    assert (len(payload), number_of(payload)) == (3 * MIB, 7)
    assert [number_of(each) for each in (None, b"", payload[:-1], payload[1:], b"x" + payload[1:])] == [None] * 5


def test_kafka_with_a_password_and_tls(own_kafka_jars: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with servers.kafka(password=PASSWORD) as broker:
        assert broker.server is not None
        authority = broker.server.location.folder / "ca.crt"
        settings = f"security.protocol=sasl_ssl\nssl.ca.location={authority}\nsasl.mechanism=PLAIN\n"
        (tmp_path / "client").write_text(f"{settings}sasl.username=operator\n")
        arguments = ("--kafka", broker.bootstrap_servers, "--kafka-config", str(tmp_path / "client"))
        monkeypatch.setenv("CLAIMCHECK_KAFKA_SASL_PASSWORD", PASSWORD)
        ran(*arguments, "--sizes", "64KiB")  # in this process, and in others

        monkeypatch.setenv("CLAIMCHECK_KAFKA_SASL_PASSWORD", "wrong")
        refused = CliRunner().invoke(main, arguments)
    assert (refused.exit_code, "no Kafka broker answered (_AUTHENTICATION)" in refused.stderr) == (1, True)


def test_pulsar_with_a_token_and_tls(secure_pulsar: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    token = secure_pulsar.token("operator")
    monkeypatch.setenv("CLAIMCHECK_PULSAR_TOKEN", token)
    monkeypatch.setenv("CLAIMCHECK_PULSAR_TLS_TRUST_CERTS_FILE_PATH", str(secure_pulsar.authority))
    arguments = ["--pulsar", secure_pulsar.tls_url, "--admin-url", secure_pulsar.tls_admin_url]
    ran(*arguments, "--sizes", "64KiB", secret=token)

    monkeypatch.setenv("CLAIMCHECK_PULSAR_TOKEN", secure_pulsar.token("nobody"))
    refused = CliRunner().invoke(main, arguments)
    assert (refused.exit_code, "the token's permissions" in refused.stderr) == (1, True)
