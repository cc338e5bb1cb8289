"""Bounds in bytes hold for what is in memory: for every reader, under attack, in a process with little memory."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("zstandard")
from tests.harness.bounds import problems
from tests.harness.bounds_drivers import DRIVERS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_AS and /proc are those of Linux")

NEEDS = {"kafka": ("confluent_kafka",), "pulsar": ("pulsar",), "spark": ("pyspark", "pyarrow")}


@pytest.mark.parametrize("reader", DRIVERS)
def test_no_attack_needs_more_memory_than_the_bounds(reader: str, tmp_path: Path) -> None:
    for module in NEEDS.get(reader.partition("_")[0], ()):
        pytest.importorskip(module)
    assert problems(reader, tmp_path) == {}


@pytest.mark.parametrize(
    ("fault", "attack"), [("counts bytes on the wire", "many_that_decompress"), ("trusts declared sizes", "raised")]
)
def test_a_planted_fault_is_reported(fault: str, attack: str, tmp_path: Path) -> None:
    assert list(problems("resolve_many", tmp_path, [attack], fault=fault)) == [attack]
