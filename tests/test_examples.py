"""Every example runs as its docstring describes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted(path.name for path in (ROOT / "examples").glob("*.py") if path.name[:6] not in ("kafka_", "pulsar"))
MARKS = {"spark_job.py": pytest.mark.spark}
KINDS = [pytest.param(kind, marks=getattr(pytest.mark, kind)) for kind in ("kafka", "pulsar")]


def run(
    script: str, *arguments: str, cwd: Path = ROOT / "examples", timeout: float | None = None, **environment: str
) -> str:
    command, known = [sys.executable, str(ROOT / "examples" / script), *arguments], {**os.environ, **environment}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, env=known, timeout=timeout)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize("script", [pytest.param(name, marks=MARKS.get(name, ())) for name in EXAMPLES])
def test_it_runs_on_its_own_folder(script):
    assert "spark_job.py" in run(script)


@pytest.mark.parametrize("strategy", ["external", "chunking", "hybrid"])
@pytest.mark.parametrize("kind", KINDS)
def test_files_through_a_real_broker(kind, strategy, request, tmp_path):
    for name, size in {"empty": 0, "small": 10, "large": 700_000}.items():
        (tmp_path / name).write_bytes(os.urandom(size))
    broker = request.getfixturevalue(f"{kind}_broker")
    where = {"KAFKA_SERVERS": broker.bootstrap_servers} if kind == "kafka" else {"PULSAR_URL": broker.service_url}
    said = run(f"{kind}_files.py", str(tmp_path), "--strategy", strategy, **where)
    found = sorted(line.split()[:2] for line in said.splitlines())  # of several partitions, in any order
    assert found == [["0", "empty"], ["10", "small"], ["700,000", "large"]]


def test_pulsar_workers(pulsar_broker):
    where = {"PULSAR_URL": pulsar_broker.service_url, "PULSAR_ADMIN_URL": pulsar_broker.admin_url}
    said = run("pulsar_workers.py", "--payloads", "6", "--size", "500000", **where)
    assert said.count("500,000 bytes") == 6
    assert "first: " in said
    assert "second: " in said


@pytest.mark.parametrize("strategy", ["external", "chunking"])
def test_kafka_etl(kafka_broker, strategy):
    where = {"KAFKA_SERVERS": kafka_broker.bootstrap_servers}
    said = run("kafka_etl.py", "--payloads", "7", "--size", "1500000", "--strategy", strategy, **where)
    assert said.count("worker crashed") == 1
    assert said.endswith("7 payloads, each exactly once\n")


def test_files_of_all_sizes_come_back(tmp_path):
    (tmp_path / "empty.bin").write_bytes(b"")
    (tmp_path / "large.bin").write_bytes(os.urandom(3 << 20))
    (tmp_path / "lookalike.bin").write_bytes(b"PRF_wdkafcli_header_\x02")
    said = run("files_through_a_broker.py", str(tmp_path))
    assert said.count("bytes  ok\n") == 3
    assert "3 messages" in said


@pytest.mark.spark
def test_spark_text_statistics(worker_env, tmp_path):
    (tmp_path / "long.txt").write_text("word " * 20_000)
    (tmp_path / "short.md").write_text("one\ntwo\n")
    (tmp_path / "none.txt").write_bytes(b"\xff\xfe")
    said = run("spark/text_statistics.py", str(tmp_path), **worker_env)
    assert re.search(r"\|long.txt\|100000\|\s+0\|20000\|\s+word\|\s+NULL\|", said)
    assert "UnicodeDecodeError" in said
    assert "3 documents, 100,008 bytes, 20,002 words, 1 that are not text" in said
    assert "100,000 bytes came from the store" in said


@pytest.mark.spark
def test_spark_archives(worker_env, tmp_path):
    for name, size in (("small", 10), ("large", 3 << 20), ("other", 50_000), ("last", 0)):
        with zipfile.ZipFile(tmp_path / f"{name}.zip", "w") as archive:
            archive.writestr("content", os.urandom(size))
            archive.writestr("more", b"")
    said = run("spark/archives.py", str(tmp_path), **worker_env)
    assert "killed after" in said
    assert "4 archives of" in said


@pytest.mark.spark
@pytest.mark.parametrize("kind", KINDS)
def test_spark_round_trip(kind, request, worker_env):
    broker, environment = request.getfixturevalue(f"{kind}_broker"), worker_env
    if kind == "kafka":
        jars = os.path.dirname(request.getfixturevalue("spark_kafka_jars").split(",")[0])
        environment = {**environment, "SPARK_KAFKA_JARS": jars}
    address = broker.bootstrap_servers if kind == "kafka" else broker.service_url
    said = run("spark/round_trip.py", "--rows", "20", f"--{kind}", address, **environment)
    assert said.startswith("20 rows of")
    assert "all equal" in said
