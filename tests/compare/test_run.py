"""Each experiment loses nothing; a run reports, removes what it made also when interrupted, and shows no password."""

from __future__ import annotations

import contextlib
import json
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from claimcheck._config_file import from_dict
from tests import servers
from tests.benchmarks.compare import kafka, runner
from tests.benchmarks.compare.broker import BrokerAddress, connect
from tests.benchmarks.compare.lab import Lab
from tests.benchmarks.compare.main import main
from tests.benchmarks.compare.model import MODES, STRATEGIES, Experiment
from tests.benchmarks.compare.report import table
from tests.benchmarks.compare.runner import NOT_EMBEDDED, PLANS, compare
from tests.benchmarks.compare.store_space import StoreSpace
from tests.docs_pages import ROOT
from tests.real.process import wait_until

KIB, MIB = 1 << 10, 1 << 20
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
    assert all(set(each["measured"]) >= set(MODES) for each in values["experiments"])
    return values


def test_a_run_writes_a_report_with_a_picture(tmp_path):
    pytest.importorskip("matplotlib", reason="only the extra `bench` has matplotlib")
    values = ran("--brokers", "embedded", "--sizes", "64KiB,1KiB", "--only", "partition,speed")

    assert values["sizes"] == [1024, 65_536]
    assert values["recommendation"]["strategy"] in MODES
    assert "embedded.png" in Path("compare-results/embedded.md").read_text()
    assert Path("compare-results/embedded.png").stat().st_size > 10_000
    assert left(tmp_path) == []


@pytest.mark.parametrize("error", [None, KeyboardInterrupt])
def test_what_an_experiment_leaves_is_removed(monkeypatch, tmp_path, error):
    seen: list[Any] = []

    def untidy(lab: Lab) -> Experiment:
        with lab.topic("external", "untidy") as topic, lab.worker("producer", "external", topic).ready() as worker:
            worker.call("produce", size=64 * KIB, first=0)
            assert lab.space.count() == 1
            if error is not None:
                raise error
        return Experiment("untidy", "untidy", {}, {}, "agrees", "")

    def after(lab: Lab) -> Experiment:
        seen.append(lab.space.count())
        return Experiment("after", "after", {}, {}, "agrees", "")

    monkeypatch.setattr(runner, "PLANS", {"untidy": untidy, "after": after})
    if error is None:
        assert [each["name"] for each in compare(sizes=(64 * KIB,))["experiments"]] == ["untidy", "after"]
        assert seen == [0]
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
        (["--brokers", "embedded", "--only", "sped"], 1, "there is no experiment 'sped'"),
        (["--sizes", "1B"], 2, "expected sizes of 16 bytes to 256 MiB"),
        (["--admin-url", "http://localhost:1"], 2, "--admin-url needs --pulsar"),
        (["--kafka", "127.0.0.1:1", "--only", "seek"], 1, "no Kafka broker answered"),
    ],
)
def test_wrong_usage_is_one_line(arguments, code, text, monkeypatch):
    monkeypatch.setattr(kafka, "_SECONDS", 1.0)
    result = CliRunner().invoke(main, arguments)
    assert (result.exit_code, text in result.output) == (code, True), result.output
    assert "Traceback" not in result.output


def test_kafka_with_a_password_and_tls(own_kafka_jars: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with servers.kafka(password=PASSWORD) as broker:
        assert broker.server is not None
        authority = broker.server.location.folder / "ca.crt"
        settings = f"security.protocol=sasl_ssl\nssl.ca.location={authority}\nsasl.mechanism=PLAIN\n"
        (tmp_path / "client").write_text(f"{settings}sasl.username=operator\n")
        arguments = ("--kafka", broker.bootstrap_servers, "--kafka-config", str(tmp_path / "client"))
        monkeypatch.setenv("CLAIMCHECK_KAFKA_SASL_PASSWORD", PASSWORD)
        ran(*arguments, "--only", "partition,speed", "--sizes", "64KiB")  # in this process, and in others

        monkeypatch.setenv("CLAIMCHECK_KAFKA_SASL_PASSWORD", "wrong")
        refused = CliRunner().invoke(main, arguments)
    assert (refused.exit_code, "no Kafka broker answered (_AUTHENTICATION)" in refused.stderr) == (1, True)


def test_pulsar_with_a_token_and_tls(secure_pulsar: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    token = secure_pulsar.token("operator")
    monkeypatch.setenv("CLAIMCHECK_PULSAR_TOKEN", token)
    monkeypatch.setenv("CLAIMCHECK_PULSAR_TLS_TRUST_CERTS_FILE_PATH", str(secure_pulsar.authority))
    arguments = ["--pulsar", secure_pulsar.tls_url, "--admin-url", secure_pulsar.tls_admin_url]
    ran(*arguments, "--only", "partition,speed", "--sizes", "64KiB", secret=token)

    monkeypatch.setenv("CLAIMCHECK_PULSAR_TOKEN", secure_pulsar.token("nobody"))
    refused = CliRunner().invoke(main, arguments)
    assert (refused.exit_code, "the token's permissions" in refused.stderr) == (1, True)


# Experiments -----------------------------------------------------------------------------------------------------

VERDICTS = {
    "services": "agrees",
    "partition": "agrees",
    "expiry": "partly",  # the embedded broker has no retention
    "seek": "agrees",
    "memory": "agrees",
    "partitions": "partly",  # chunks stay together, and no key is needed
    "rebalance": "disagrees",  # no chunk is missing
    "rollback": "agrees",
    "speed": "measured",
}
IN_GROUPS = ("services", "seek", "partitions", "rebalance", "rollback")
LONG = ("memory", "rollback", "speed")
CASES = [
    *(("local", name) for name in VERDICTS if name not in (*NOT_EMBEDDED, *LONG)),
    *(pytest.param("local", name, marks=pytest.mark.slow) for name in LONG),
    *(pytest.param(kind, name, marks=getattr(pytest.mark, kind)) for kind in ("kafka", "pulsar") for name in IN_GROUPS),
]
FAULTS = ("lost", "wrong", "split", "out of order")


def address_of(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> BrokerAddress:
    if kind == "local":
        return BrokerAddress("local", str(tmp_path))
    broker = request.getfixturevalue(f"{kind}_broker")
    if kind == "kafka":
        return BrokerAddress("kafka", broker.bootstrap_servers)
    return BrokerAddress("pulsar", broker.service_url, broker.admin_url)


@contextlib.contextmanager
def lab_on(address: BrokerAddress, folder: Path) -> Iterator[Lab]:
    """Open a lab on a broker, with a store of files; what it created is removed."""
    store = {"type": "filesystem", "path": str(folder / "store"), "create": True}
    run = secrets.token_hex(4)
    space = StoreSpace.of(from_dict({"strategy": "external", "stores": {"s": store}}), f"claimcheck-compare-{run}")
    with contextlib.closing(connect(address)) as broker:
        lab = Lab(broker=broker, space=space, run=run, sizes=(64 * KIB, 2 * MIB), rounds=2, quick=True)
        yield lab
        lab.space.clear()


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_an_experiment_loses_nothing(kind: str, name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    with lab_on(address_of(kind, request, tmp_path), tmp_path) as lab:
        result = PLANS[name](lab)
    assert not list(tmp_path.glob("*.sqlite")), "an experiment deletes its topics"
    assert result.verdict == VERDICTS[name], result
    modes = MODES if name in ("partition", "memory", "speed") else STRATEGIES
    assert set(result.measured) == set(modes) - ({"chunking"} if name == "expiry" else set())
    assert result.facts is not None
    assert not {fact: number for fact, number in result.facts.items() if fact.split("/")[0] in FAULTS and number}
    for row in result.rows:
        assert len(row) == len(result.columns)
    lines = list(table({"experiments": [asdict(result)]}))
    assert len(lines) == (4 if result.claimed else 2)
