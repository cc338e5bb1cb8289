"""`make compare`: every payload arrives, the results are written, and all that a run creates is removed."""

import json
import os
import signal
import subprocess
import sys
import tempfile

import pytest
import redis
from click.testing import CliRunner
from confluent_kafka.admin import AdminClient

from claimcheck.transports.pulsar._queries import AdminClient as PulsarAdmin
from claimcheck.transports.pulsar._queries import topics_of
from tests.benchmarks.brokers import STRATEGIES
from tests.benchmarks.children import ROOT
from tests.benchmarks.compare import BUCKET, PREFIX, advice, main
from tests.real.process import wait_until

pytest.importorskip("matplotlib", reason="only the extra `bench` has matplotlib")


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    """The folder below which a run makes temporary ones."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.chdir(tmp_path)
    return folder


def run(name, temporary, sizes="1KiB,256KiB"):
    result = CliRunner().invoke(main, ["--quick", "--brokers", name, "--sizes", sizes])

    assert result.exit_code == 0, result.output
    found = json.loads((temporary.parent / f"compare-results/{name}.json").read_text())
    assert [(each["size"], each["strategy"]) for each in found["results"]] == [
        (size, strategy) for size in (1 << 10, 256 << 10) for strategy in STRATEGIES
    ]
    assert all(each["sent"] == each["intact"] > 10 for each in found["results"])
    assert min(each["receive"][0] for each in found["results"]) > 0
    assert f"256 KiB  external {found['results'][3]['send'][0]:6.0f}" in result.stdout
    assert found["advice"] in result.stdout
    assert (temporary.parent / f"compare-results/{name}.png").stat().st_size > 10_000
    assert not [*temporary.iterdir()]


def test_the_embedded_broker_with_files(temporary):
    run("embedded", temporary)


def test_kafka_with_redis(kafka_broker, redis_url, temporary, monkeypatch):
    monkeypatch.setenv("CLAIMCHECK_TEST_KAFKA_BOOTSTRAP_SERVERS", kafka_broker.bootstrap_servers)
    monkeypatch.setenv("CLAIMCHECK_TEST_REDIS_URL", redis_url)
    run("kafka", temporary)
    admin = AdminClient({"bootstrap.servers": kafka_broker.bootstrap_servers})
    wait_until(lambda: not any(PREFIX in name for name in admin.list_topics(timeout=10).topics), "no topics are left")
    with redis.Redis.from_url(redis_url) as client:
        assert not client.keys(f"*{PREFIX}*")


def test_pulsar_with_s3(pulsar_broker, s3_server, s3_resource, temporary, monkeypatch):
    monkeypatch.setenv("CLAIMCHECK_TEST_PULSAR_URL", pulsar_broker.service_url)
    monkeypatch.setenv("CLAIMCHECK_TEST_PULSAR_ADMIN_URL", pulsar_broker.admin_url)
    monkeypatch.setenv("CLAIMCHECK_TEST_S3_ENDPOINT", s3_server.endpoint_url)
    run("pulsar", temporary)
    topics = topics_of(PulsarAdmin(pulsar_broker.admin_url), ["public/default"])
    assert not any(PREFIX in name for name in topics)
    assert not [*s3_resource.Bucket(BUCKET).objects.all()]


def test_a_store_that_fails_is_one_line(temporary):
    (temporary.parent / "store.yaml").write_text("stores: {far: {type: redis, url: 'redis://127.0.0.1:1'}}")
    result = CliRunner().invoke(main, ["--quick", "--config", "store.yaml"])
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1].startswith("compare: store 'far'"), result.stderr
    assert not [*temporary.iterdir()]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--sizes", "1B"], "expected sizes of 16 bytes to 256 MiB"),
        (["--sizes", "1GB"], "found '1GB'"),
        (["--admin-url", "http://localhost:1"], "--admin-url needs --pulsar"),
        (["--config", "missing.yaml"], "missing.yaml"),
    ],
)
def test_wrong_usage_is_refused(arguments, text):
    result = CliRunner().invoke(main, arguments)
    assert (result.exit_code, text in result.output) == (2, True), result.output


def test_a_signal_ends_the_run_and_removes_everything(temporary):
    options = ("--brokers", "embedded", "--sizes", "64KiB", "--rounds", "500")
    command = [sys.executable, "-m", "tests.benchmarks.compare", *options]
    process = subprocess.Popen(command, cwd=ROOT, env=os.environ, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: bool([*temporary.glob(f"{PREFIX}-*/*.sqlite")]), "the run measures")
    process.terminate()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM, errors
    assert "Traceback" not in errors
    assert not [*temporary.iterdir()]


def test_advice_names_the_fastest_and_where_pointers_begin_to_be():
    rates = ("chunking", 1, 2), ("external", 1, 1), ("chunking", 9, 1), ("external", 9, 2)
    results = [{"strategy": name, "size": mib << 20, "send": [rate], "receive": [rate]} for name, mib, rate in rates]
    assert "chunking at 1 MiB, external at 9 MiB. Pointers (external) are the fastest from 9 MiB on." in advice(results)
    assert advice(results[:2]).endswith("slower at the largest size.")
