"""ClaimCheck: lazy, one store per process, picklable, open to third parties."""

from __future__ import annotations

import asyncio
import inspect
import io
import multiprocessing
import pickle
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import assert_type

import pytest

import claimcheck
from claimcheck import Payload
from claimcheck._wire.envelope import encode_chunk
from claimcheck.errors import (
    ArgumentTypeError,
    ChunkError,
    ConfigError,
    PayloadTooLargeError,
    PayloadTypeError,
)

CONFIG = {"strategy": "external", "threshold_bytes": 100, "stores": {"hot": {"type": "memory", "space": "wiring"}}}


BIG = b"x" * 1000


@pytest.mark.parametrize("section", ["limits", "chunking"])
def test_a_reader_of_chunks_keeps_the_smaller_limit(section):
    cc = claimcheck.from_dict({"strategy": "chunking", section: {"max_payload_bytes": 500}})
    uuid, resolver = "00000000-0000-4000-8000-000000000000", cc.resolver()
    outcomes = [
        outcome
        for position in range(2)
        for outcome in resolver.feed("t", position, encode_chunk(uuid, position, 2, memoryview(b"x" * 300)))
    ]
    [outcome] = outcomes
    assert isinstance(outcome, claimcheck.Failed)
    assert isinstance(outcome.error, PayloadTooLargeError)


def test_it_pickles_as_its_configuration_without_hooks_or_connections():
    events = []
    cc = claimcheck.from_dict(CONFIG, hooks=[events.append])
    pointer = cc.store("hot").write(BIG)
    events.clear()
    copy = pickle.loads(pickle.dumps(cc))
    assert copy.config == cc.config
    assert copy.store("hot") is not cc.store("hot")
    assert copy.store("hot").read(pointer) == BIG
    assert events == []


def test_one_store_per_name_whatever_the_threads_do():
    cc, start = claimcheck.from_dict(CONFIG), threading.Barrier(8)

    def opened(_):
        start.wait()
        return cc.store("hot")

    with ThreadPoolExecutor(8) as threads:
        assert len(set(threads.map(opened, range(8)))) == 1


def test_hooks_receive_each_operation_and_a_failing_hook_has_no_effect(caplog):
    events = []

    def failing(event):
        raise RuntimeError("a bad hook")

    cc = claimcheck.from_dict(CONFIG, hooks=[failing, events.append])
    store = cc.store("hot")
    pointer = store.write(BIG)
    store.read(pointer)
    store.rollback(pointer)
    with pytest.raises(claimcheck.PayloadNotFoundError):
        store.read(pointer)
    expected = ["write completed", "read completed", "rollback completed", "read failed"]
    assert [f"{event.operation} {event.phase}" for event in events[1::2]] == expected
    assert {event.phase for event in events[::2]} == {"started"}
    assert {event.key for event in events} == {pointer.key}
    assert isinstance(events[-1].error, claimcheck.PayloadNotFoundError)
    assert "a bad hook" in caplog.text


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda cc: cc.offload(classify=5), "^classify: found an object of type int"),
        (lambda cc: cc.outbound(BIG, destination="t", classify="failed"), "^classify: found an object of type str"),
        (lambda cc: cc.offload(len), r"@cc\.offload\(payload=\.\.\., destination=\.\.\.\)"),
        (lambda cc: cc.resolver(clock=5), "^clock: found an object of type int"),
        (lambda cc: cc.resolver(max_redeliveries=-1), "^max_redeliveries: found"),
        (lambda cc: cc.resolver(max_redeliveries=True), "^max_redeliveries: found"),
        (lambda cc: cc.store("cold"), "'cold'.*hot"),
        *(
            (lambda _, hooks=hooks: claimcheck.from_dict(CONFIG, hooks=hooks), "^hooks: found an object of type")
            for hooks in (5, None, print, [5], "abc")
        ),
    ],
)
def test_arguments_are_checked(call, why):
    with pytest.raises((ArgumentTypeError, ConfigError), match=why):
        call(claimcheck.from_dict(CONFIG))


@pytest.mark.parametrize("name", claimcheck.__all__)
def test_every_public_name_exists_and_errors_pickle_with_their_facts(name):
    found = getattr(claimcheck, name)
    if isinstance(found, type) and issubclass(found, claimcheck.ClaimCheckError):
        facts = [fact for cls in found.__mro__ for fact in inspect.get_annotations(cls) if fact != "retryable"]
        error = found("text", **dict.fromkeys(facts, 5))
        copy = pickle.loads(pickle.dumps(error))
        assert (str(copy), copy.__dict__) == ("text", error.__dict__)
        with pytest.raises(TypeError, match="no attribute"):
            found("text", nonsense=1)


def test_the_import_brings_no_vendor_and_no_reader_of_yaml():
    heavy = ["redis", "boto3", "pyspark", "click", "rich", "yaml", "cattrs", "sqlite3", "pulsar", "confluent_kafka"]
    code = f"import claimcheck, sys; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_child_opens_its_own_stores_leaves_the_parents_alone_and_never_hangs(monkeypatch):
    cc, closed = claimcheck.from_dict(CONFIG), []
    mine = cc.store("hot")
    monkeypatch.setattr(mine, "close", lambda: closed.append("parent's"))
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()

    def child():
        own = cc.store("hot")
        cc.close()
        answers.put((own is mine, list(closed)))

    with cc._lock:  # held by a thread that the child does not have
        process = context.Process(target=child)
        process.start()
    process.join(10)
    assert process.exitcode == 0
    assert answers.get() == (False, [])


@pytest.mark.parametrize("message", [io.BytesIO(b"x"), "text"])
@pytest.mark.parametrize("method", ["resolve", "open", "pointer"])
def test_a_message_that_is_not_bytes_like_is_called_a_message(method, message):
    with pytest.raises(PayloadTypeError, match=f"^a message must be bytes-like, not {type(message).__name__}"):
        getattr(claimcheck.from_dict(CONFIG), method)(message)


def test_closing_reaches_every_store_even_if_one_fails(monkeypatch):
    stores = {"a": {"type": "memory"}, "b": {"type": "memory"}, "c": {"type": "memory"}}
    cc, closed = claimcheck.from_dict({"strategy": "inline", "stores": stores}), []

    def fail():
        raise OSError("cannot")

    for name in stores:
        monkeypatch.setattr(cc.store(name), "close", fail if name == "b" else lambda name=name: closed.append(name))
    with pytest.raises(OSError, match="cannot"):
        cc.close()
    assert sorted(closed) == ["a", "c"]


def test_a_chunk_that_is_resolved_alone_says_who_sends_chunks_and_what_reads_them():
    with claimcheck.from_dict({"strategy": "chunking", "threshold_bytes": 900}) as cc:
        with cc.outbound(BIG, destination="t") as out:
            chunk = next(out.envelopes)
        with pytest.raises(ChunkError, match="strategy 'chunking' or 'hybrid'.*resolver.*reassemble.*'external'"):
            cc.resolve(chunk.data)


def test_a_decorated_function_and_a_resolved_message_keep_their_types() -> None:
    cc = claimcheck.from_dict(CONFIG)

    @cc.offload(payload="value", destination="topic")
    def publish(topic: str, value: Payload, *, retries: int = 3) -> int:
        return retries

    assert list(inspect.signature(publish).parameters) == ["topic", "value", "retries"]
    assert assert_type(publish("orders", bytes(1000), retries=4), int) == 4
    plain = b"plain"
    assert assert_type(cc.resolve(plain), bytes) is asyncio.run(cc.aresolve(plain)) is plain
