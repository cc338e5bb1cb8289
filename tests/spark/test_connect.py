"""Spark Connect: a client without Java, a server, and executors with the claimcheck that the client added."""

from __future__ import annotations

import contextlib
import hashlib
import subprocess
import sys
from collections.abc import Iterator

import pytest

import claimcheck
import claimcheck.spark
from tests.spark.shipping_rig import FOLDER, Ground, ground, run

PAYLOADS = [b"small", *(bytes([n]) * 3000 for n in range(1, 8))]
DIGESTS = [hashlib.sha256(payload).hexdigest() for payload in PAYLOADS]
VERBS = ("resolve", "map_payloads", "offload", "repartition_by_payload", "reassemble")
HERE = [verb for verb in VERBS if hasattr(claimcheck.spark, verb)]
STEPS = ("before", "wheel", "artifact", *HERE, "error_column", "streaming")


@pytest.fixture(scope="module")
def lab(tmp_path_factory) -> Ground:
    return ground(tmp_path_factory.mktemp("connect"))


@pytest.fixture(scope="module")
def found(lab, spark_connect):
    """The results of all steps of shipping_client.py, in one session."""
    config = {
        "strategy": "external",
        "threshold_bytes": 1000,
        "stores": {"disk": {"type": "filesystem", "path": str(lab.folder / "claims"), "create": True}},
    }
    given = {"config": config, "messages": list(messages(config)), "steps": STEPS}
    given["chunks"] = list(messages(config | {"strategy": "chunking"}))
    given |= {"zip": str(lab.archive), "wheel": str(lab.wheel())}
    given |= {name: str(lab.folder / name) for name in ("folder", "target", "checkpoint")}
    with served(lab) as port:
        return run("shipping_client.py", given | {"port": port}, lab.environment(lab.bare), lab.folder)


def messages(config) -> Iterator[str]:
    with claimcheck.from_dict(config) as cc:
        for payload in PAYLOADS:
            with cc.outbound(payload, destination="orders") as out:
                yield from (envelope.data.hex() for envelope in out.envelopes)


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


def test_nothing_works_before_it_is_shipped(found):
    assert "No module named 'claimcheck'" in found["before"]["error"]


def test_a_wheel_is_refused_under_its_own_name(found):
    assert "whl" in found["wheel"]["error"]


def test_an_artifact_reaches_the_executors(found):
    files = found["artifact"]["result"]
    assert files
    assert all("/claimcheck.zip/claimcheck/" in file for file in files)


@pytest.mark.parametrize("verb", [verb for verb in HERE if verb not in ("repartition_by_payload", "reassemble")])
def test_payloads_arrive(found, verb):
    assert found[verb].get("result") == DIGESTS, found[verb]


def test_rows_are_spread(found):
    assert found["repartition_by_payload"].get("result") == [str(n) for n in range(8)], found["repartition_by_payload"]


@pytest.mark.skipif("reassemble" not in HERE, reason="claimcheck.spark has no reassemble yet")
def test_chunks_become_payloads(found):
    assert found["reassemble"].get("result") == sorted(DIGESTS), found["reassemble"]


def test_an_artifact_does_not_reach_the_executors_of_a_stream(found):
    """Spark runs a stream in a cloned session, without artifacts on executors; an installed package works."""
    assert "No module named 'claimcheck'" in found["streaming"]["error"]


def test_errors_become_rows(found):
    assert found["error_column"] == {"result": [None, "EnvelopeError"]}
