"""Relative paths: accepted on one machine, rejected on a cluster before anything runs."""

import os

import pytest

from claimcheck._config_file import from_dict
from claimcheck.errors import ConfigError
from claimcheck.spark import resolve
from claimcheck.spark._columns import check_paths, is_one_machine
from tests.real.spark_home import spark_home
from tests.spark import shipping_rig

READS = ("resolve", "map_payloads", "offload", "reassemble", "resolver")


def check_paths_of(config):
    """Check the paths as the driver of a cluster does."""
    check_paths(config, Session("yarn"))


def stores(path, **more):
    return from_dict({"store": "disk", "stores": {"disk": {"type": "filesystem", "path": path}} | more})


def test_a_cluster_refuses_relative_paths_on_the_driver(tmp_path):
    home = spark_home(tmp_path / "spark")
    given = {
        "cases": {
            "relative": "claims",
            "absolute": str(tmp_path / "claims"),
        },
    }
    environment = {**os.environ, "SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1"}

    found = shipping_rig.run("cluster_paths_child.py", given, environment, tmp_path)

    assert found["absolute"] == dict.fromkeys(READS)
    assert found["relative"].keys() == set(READS)
    for step, error in found["relative"].items():
        assert "ConfigError" in error, step
        assert "a relative path" in error, step
        assert "an absolute path that driver and executors share" in error, step
    assert found["jobs"] == 0


def test_one_machine_takes_relative_paths(spark, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    df = spark.createDataFrame([(bytearray(b"payload"),)], "value binary")

    assert is_one_machine(spark)
    df.transform(resolve("value", config=stores("claims")))


class Session:
    """A session that only knows its master."""

    def __init__(self, master):
        self.conf, self.master = self, master

    def get(self, name):
        if self.master is None:
            raise RuntimeError("not available")
        return self.master


@pytest.mark.parametrize(
    ("master", "one"),
    [
        ("local", True),
        ("local[*]", True),
        ("local[4,2]", True),
        ("local-cluster[1,1,512]", False),
        ("yarn", False),
        ("spark://localhost:7077", False),
        ("k8s://https://host", False),
        (None, False),
    ],
)
def test_which_masters_are_one_machine(master, one):
    assert is_one_machine(Session(master)) is one


@pytest.mark.parametrize("path", ["claims", "./claims", "~/claims", "${CLAIMS:-claims}"])
def test_paths_that_are_relative(monkeypatch, path):
    monkeypatch.delenv("CLAIMS", raising=False)

    with pytest.raises(ConfigError, match="absolute") as caught:
        check_paths_of(stores(path))
    assert caught.value.path == "stores.disk.path"


def test_a_default_that_is_relative_is_refused_though_the_variable_is_set_here(monkeypatch):
    monkeypatch.setenv("CLAIMS", "/mnt/claims")

    with pytest.raises(ConfigError, match="default of a variable"):
        check_paths_of(stores("${CLAIMS:-claims}"))


@pytest.mark.parametrize("path", ["/mnt/claims", "${CLAIMS:-/mnt/claims}", "${ONLY_ON_EXECUTORS}"])
def test_paths_that_are_absolute(path):
    check_paths_of(stores(path))


def test_every_store_that_a_pointer_may_name_counts():
    with pytest.raises(ConfigError) as caught:
        check_paths_of(stores("/mnt", other={"type": "filesystem", "path": "claims"}))
    assert caught.value.path == "stores.other.path"
