"""Helpers for tests of applications: the recording broker, the assertions and the pytest plugin."""

from __future__ import annotations

import importlib
import io
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import claimcheck
from claimcheck import HEADER, IncompletePayloadError
from claimcheck._store.contract import StoreContext
from claimcheck._wire.envelope import encode_abort
from claimcheck.errors import PayloadNotFoundError, StoreUnavailableError
from claimcheck.stores.memory import MemoryStore
from claimcheck.testing import FaultyStore, RecordedMessage, RecordingBroker, assert_inline, assert_offloaded

ROOT = Path(__file__).resolve().parents[2]


LARGE = os.urandom(5000)


def publisher(broker, strategy="external", **more):
    raw = {"strategy": strategy, "threshold_bytes": 1000, "stores": {"memory": {"type": "memory"}}, **more}
    cc = claimcheck.from_dict(raw)
    return cc, cc.offload(destination="topic", key="key", headers="headers")(broker.send)


@pytest.fixture
def broker():
    return RecordingBroker()


@pytest.mark.parametrize("strategy", ["external", "chunking"])
def test_the_broker_records_messages_and_resolves_their_payloads(broker, strategy):
    cc, publish = publisher(broker, strategy)
    publish("orders", b"small", key="k", headers={"name": "value"})
    publish("orders", LARGE, key="k")
    publish("audit", None, key="k")
    assert broker.messages[0] == RecordedMessage("orders", b"small", "k", {"name": "value"})
    assert {message.topic for message in broker.messages[1:-1]} == {"orders"}
    assert broker.payloads(cc) == [b"small", LARGE, None]
    assert broker.payloads(cc, topic="audit") == [None]


@pytest.mark.parametrize(
    ("strategy", "error", "text"),
    [("external", PayloadNotFoundError, "is gone"), ("chunking", IncompletePayloadError, "chunks of 1 payloads")],
)
def test_payloads_that_cannot_be_resolved_are_errors(broker, strategy, error, text):
    cc, publish = publisher(broker, strategy)
    publish("orders", LARGE, key="k")
    if strategy == "external":
        cc.store("memory").rollback(cc.pointer(broker.messages[0].value))
    else:
        del broker.messages[-1]
    with pytest.raises(error, match=text):
        broker.payloads(cc)


LITERAL = HEADER + b"\x02looks like a pointer"
ENCODED, ABORT = HEADER + b"\x04content", encode_abort("c588ed27-7265-4f4d-9d42-64e1de14b8c6")


@pytest.mark.parametrize(
    ("strategy", "payload", "offloaded", "inline"),
    [
        ("external", LARGE, None, "sent inline, got an envelope of type PointerData"),
        ("chunking", LARGE, None, "of type Chunk"),
        *(("external", payload, "expected an offloaded payload, got a", None) for payload in (b"small", None, LITERAL)),
        (None, ENCODED, "of type Encoded", None),
        (None, ABORT, "of type Abort", "of type Abort"),
    ],
)
def test_assertions_say_what_was_sent(broker, strategy, payload, offloaded, inline):
    message = payload
    if strategy:
        publisher(broker, strategy)[1]("orders", payload, key="k")
        message = broker.messages[0]
    for check, text in ((assert_offloaded, offloaded), (assert_inline, inline)):
        if text is None:
            check(message)
        else:
            with pytest.raises(AssertionError, match=text):
                check(message)


def test_assertions_about_the_store(broker):
    _, publish = publisher(broker)
    publish("orders", LARGE)
    assert_offloaded(broker.messages[0].value, store="memory")
    with pytest.raises(AssertionError, match="in the store 'other', got one in 'memory'"):
        assert_offloaded(broker.messages[0], store="other")
    cc, publish = publisher(broker, envelope={"header": "another header"})
    publish("orders", LARGE)
    assert_offloaded(broker.messages[-1], cc=cc, store="memory")
    with pytest.raises(AssertionError):
        assert_inline(broker.messages[-1], cc=cc)


# The plugin ------------------------------------------------------------------------------------------------------

TESTS = """
seen = []

def test_something_is_stored(claimcheck_memory):
    seen.append(claimcheck_memory.store("memory"))
    seen[0].write(b"payload")

def test_payloads_of_another_test_are_gone(claimcheck_memory):
    assert seen[0]._payloads == {}
    assert claimcheck_memory.store("memory")._payloads is not seen[0]._payloads
"""


def test_the_plugin_gives_each_test_a_memory_of_its_own(tmp_path):
    """More of it runs in the guide about testing."""
    plugin = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]["claimcheck"]
    importlib.import_module(plugin)
    (tmp_path / "test_application.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", plugin, "test_application.py"]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout


def test_helpers_need_no_pytest():
    code = "import sys; sys.modules['pytest'] = None; from claimcheck.testing import RecordingBroker, FaultyStore"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)


@pytest.fixture
def store(request):
    faulty = FaultyStore(store=MemoryStore(space=request.node.nodeid))
    faulty.context = StoreContext(name="hot")
    return faulty


def payloads(store):
    return store.inner._payloads


@pytest.mark.parametrize("when", ["before", "during", "after"])
class TestFaults:
    @pytest.mark.parametrize("size", [0, 5 << 20])
    @pytest.mark.parametrize("shape", [bytes, io.BytesIO])
    def test_a_write_leaves_nothing_and_a_read_fails(self, store, when, size, shape):
        store.fail("write", when=when)
        with pytest.raises(StoreUnavailableError, match="injected fault"):
            store.write(shape(bytes(size)))
        assert payloads(store) == {}
        store.heal()
        pointer = store.write(bytes(size))
        store.fail("read", when=when)
        with pytest.raises(StoreUnavailableError):
            store.read(pointer)
        with store.open(pointer) as file, pytest.raises(StoreUnavailableError):
            file.read()

    def test_a_rollback_may_be_repeated_and_of_a_failed_write_is_a_note(self, store, when):
        pointer = store.write(b"payload")
        store.fail("rollback", when=when, times=1)
        with pytest.raises(StoreUnavailableError):
            store.rollback(pointer)
        store.rollback(pointer)
        assert payloads(store) == {}
        store.fail("write", when="after")
        store.fail("rollback", when=when, error=RuntimeError("second"))
        with pytest.raises(StoreUnavailableError, match="injected fault") as caught:
            store.write(b"payload")
        assert any("RuntimeError" in note for note in caught.value.__notes__)
        assert len(payloads(store)) == (when != "after")
