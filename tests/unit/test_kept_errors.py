"""An error that is kept holds no payload: not in its traceback, nor in what it came from."""

import gc
import tracemalloc

import pytest

import claimcheck
from claimcheck._wire.envelope import encode_chunk
from claimcheck.errors import IntegrityError, clear_frames

SIZE = 8 << 20


@pytest.fixture(params=["memory", "filesystem"])
def damaged(request, tmp_path):
    """A store, and the pointer of a payload that is not what it was."""
    entry = {"type": request.param} | ({"path": str(tmp_path)} if request.param == "filesystem" else {})
    with claimcheck.from_dict({"strategy": "external", "stores": {"m": entry}}) as cc:
        store = cc.store("m")
        pointer = store.write(bytes(SIZE))
        if request.param == "filesystem":
            (tmp_path / pointer.key).write_bytes(b"x" * SIZE)
        else:
            store._payloads[pointer.key] = b"x" * SIZE
        yield cc, store, pointer


def held_by(work):
    """Bytes that are still taken by what this returns, without the help of the garbage collector."""
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        kept = work()
        return tracemalloc.get_traced_memory()[0], kept
    finally:
        tracemalloc.stop()
        gc.enable()


def caught(call):
    try:
        call()
    except IntegrityError as error:
        return error
    raise AssertionError("no error")


def test_of_a_store(damaged):
    _, store, pointer = damaged
    for read in (lambda: store.read(pointer), lambda: store.open(pointer).read()):
        held, errors = held_by(lambda read=read: [caught(read) for _ in range(3)])
        assert held < SIZE // 4
        assert errors[0].__traceback__ is not None


def test_of_a_resolver(damaged):
    cc, _, pointer = damaged
    resolver, message = cc.resolver(), cc.seal(pointer)
    held, outcomes = held_by(lambda: [resolver.feed("t", i, message)[0] for i in range(3)])
    assert held < SIZE // 4
    assert {type(outcome.error) for outcome in outcomes} == {IntegrityError}


def test_of_chunks():
    with claimcheck.from_dict({"strategy": "chunking"}) as cc:
        resolver = cc.resolver()
        uuid, wrong = "00000000-0000-4000-8000-000000000001", {"claimcheck-type": "chunk", "claimcheck-size": "1"}

        def feed():
            """Keeps no chunk itself: an error also holds on to those who called, and so to the last message."""
            outcomes = []
            for i in range(2):
                outcomes += resolver.feed("t", i, encode_chunk(uuid, i, 2, memoryview(bytes(SIZE))), headers=wrong)
            return outcomes

        held, (outcome,) = held_by(feed)
        assert isinstance(outcome.error, IntegrityError)
        assert held < SIZE + SIZE // 4  # of the payload, twice as large, nothing


def test_what_an_error_came_from_lets_go_too():
    def inner():
        large = bytes(SIZE)
        raise ValueError(len(large))

    def outer():
        try:
            inner()
        except ValueError as error:
            raise KeyError from error

    def work():
        try:
            outer()
        except KeyError as error:
            clear_frames(error)
            return error

    held, _ = held_by(work)
    assert held < SIZE // 4
