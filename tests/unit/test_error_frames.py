"""Error reports show the local variables of each function in a traceback: there must be no secrets among them."""

from __future__ import annotations

import base64
import gc
import os
import pickle
import tracemalloc
from dataclasses import replace

import pytest

import claimcheck
from claimcheck._content.header import read_header
from claimcheck._wire.buffers import PieceReader
from claimcheck._wire.envelope import encode_chunk
from claimcheck.errors import ClaimCheckError, IntegrityError, clear_frames

pytest.importorskip("cryptography")
PAYLOAD = b"PLAINTEXT-SECRET" * (80 * 1024)  # more than one segment of the encryption
SIGNING = "signing-secret-0123456789abcdef!"
KEY = bytes(range(50, 82))


@pytest.fixture
def cc():
    config = {
        "strategy": "external",
        "threshold_bytes": 1000,
        "stores": {"s": {"type": "memory", "space": os.urandom(8).hex()}},
        "encryption": {"key_id": "k", "keys": {"k": base64.b64encode(KEY).decode()}, "inline": True},
        "signing": {"key_id": "k", "keys": {"k": SIGNING}},
    }
    with claimcheck.from_dict(config) as cc:
        yield cc


def secrets_in(error: BaseException, *secrets: bytes) -> list[str]:
    """Where a secret is in the repr of a local variable of the library, in all tracebacks of an error."""
    texts = [*(repr(secret)[2:-1] for secret in secrets), SIGNING, base64.b64encode(KEY).decode(), repr(KEY)[2:-1]]
    found, seen = list[str](), set[int]()
    pending: list[BaseException | None] = [error]
    while pending:
        one = pending.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        pending += [one.__cause__, one.__context__]
        trace = one.__traceback__
        while trace is not None:
            code = trace.tb_frame.f_code
            if code.co_filename != __file__:
                for name, value in trace.tb_frame.f_locals.items():
                    found += [f"{code.co_qualname}.{name}" for text in texts if text in repr(value)]
            trace = trace.tb_next
    return found


def caught(read) -> ClaimCheckError:
    with pytest.raises(ClaimCheckError) as raised:
        read()
    return raised.value


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@pytest.mark.parametrize("part", ["stream header", "salt", "segment", "tag", "wrapped key", "end", "header"])
def test_content_that_was_changed(cc, part):
    store = cc.store("s")
    pointer = store.write(PAYLOAD, destination="o")
    content = store._payloads[pointer.key]
    header, begin = read_header(PieceReader([content]))
    data_key = store.context.content.keys.open(header.key_id, header.wrapped_key, header.key_context)
    store.context.content.keys._opened.clear()
    at = {
        "stream header": begin,
        "salt": begin + 1,
        "segment": begin + (1 << 20) + 5,
        "tag": len(content) - 1,
        "wrapped key": content.index(b'"key":"') + 10,
        "header": 10,
    }
    store._payloads[pointer.key] = content[:-5] if part == "end" else flipped(content, at[part])
    message = cc.seal(pointer)
    shorter = replace(pointer, stored_bytes=len(content) - 5)

    def streamed():
        with cc.open(message, destination="o") as file:
            file.read()

    for read in (
        lambda: cc.resolve(message, destination="o"),
        lambda: store.read_range(pointer, 0, len(PAYLOAD)),
        lambda: store.read_range(shorter, 0, 10),
        streamed,
    ):
        assert secrets_in(caught(read), data_key, b"PLAINTEXT-SECRET") == []


def test_a_message_or_a_signature_that_was_changed(cc):
    with cc.outbound(b"PLAINTEXT-SECRET", destination="o", key=b"k") as out:
        (envelope,) = out.envelopes
    data = bytes(envelope.data)
    config = {"strategy": "inline", "encryption": {"keys": {"k": base64.b64encode(KEY).decode()}}}
    with claimcheck.from_dict(config) as reader:
        for changed in (flipped(data, len(data) - 1), data[:-1], data + b"x", flipped(data, len(data) - 40)):
            error = caught(lambda changed=changed: reader.resolve(changed, destination="o"))
            assert secrets_in(error, b"PLAINTEXT-SECRET") == []
    pointer = cc.seal(cc.store("s").write(PAYLOAD, destination="o"))
    wrong = flipped(pointer, pointer.index(b'"mac":"') + 8)
    assert secrets_in(caught(lambda: cc.resolve(wrong, destination="o"))) == []
    assert secrets_in(caught(lambda: cc.resolve(data, destination="o", headers={}))) == []
    statement = {"claimcheck-signature": envelope.headers["claimcheck-signature"].replace('"mac":"', '"mac":"0')}
    assert secrets_in(caught(lambda: cc.resolve(data, destination="o", headers=statement))) == []


def test_a_configuration(cc):
    coder = cc.store("s").context.content
    assert not [each for each in (SIGNING, base64.b64encode(KEY).decode()) if each in f"{cc!r}{cc.config!r}{coder!r}"]
    with pytest.raises(TypeError, match="secret"):
        pickle.dumps(coder)


def test_a_failed_write(cc, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left")

    store = cc.store("s")
    monkeypatch.setattr(store, "_write", full)
    assert secrets_in(caught(lambda: store.write(PAYLOAD, destination="o")), b"PLAINTEXT-SECRET") == []


# What was read is not held -------------------------------------------------------------------------------------------

SIZE = 8 << 20


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


def test_of_a_damaged_payload():
    with claimcheck.from_dict({"strategy": "external", "stores": {"m": {"type": "memory"}}}) as cc:
        store, resolver = cc.store("m"), cc.resolver()
        pointer = store.write(bytes(SIZE))
        store._payloads[pointer.key] = b"x" * SIZE
        message = cc.seal(pointer)
        for read in (
            lambda: caught(lambda: store.read(pointer)),
            lambda: caught(lambda: store.open(pointer).read()),
            lambda: resolver.feed("t", 0, message)[0].error,
        ):
            held, errors = held_by(lambda read=read: [read() for _ in range(3)])
            assert held < SIZE // 4
            assert {type(error) for error in errors} == {IntegrityError}
            assert errors[0].__traceback__ is not None


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

    def work():
        try:
            try:
                inner()
            except ValueError as error:
                raise KeyError from error
        except KeyError as error:
            clear_frames(error)
            return error

    held, error = held_by(work)
    assert held < SIZE // 4
    assert isinstance(error.__cause__, ValueError)
