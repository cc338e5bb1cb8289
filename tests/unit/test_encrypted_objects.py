"""Stored objects: Tink reads them, and attempts that encrypt a payload again do not believe the store."""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import uuid

import pytest

import claimcheck
from claimcheck._wire.buffers import PieceReader
from claimcheck.errors import IntegrityError, KeyTakenError, PayloadNotFoundError
from claimcheck.stores.base import Store
from claimcheck.stores.memory import MemoryStore
from tests import tink_oracle
from tests.conftest import IN_CI

KEY = base64.b64encode(os.urandom(32)).decode()


class LyingStore(MemoryStore):
    """Claims that every key is taken, and by content of its choice; remembers what it is given."""

    def __init__(self, *, space: str = "default") -> None:
        super().__init__(space=space, ttl_seconds=60)
        self.lie: bytes | None = None
        self.given: list[bytes] = []

    def _write(self, pointer, source):
        if self.lie is not None:
            raise KeyTakenError("taken", store=self.name, key=pointer.key)
        super()._write(pointer, source)

    def _rewrite(self, pointer, source):
        self.given.append(b"".join(source))
        self._payloads[pointer.key] = self.given[-1]

    def _open(self, pointer, start, stop):
        if self.lie is None:
            return super()._open(pointer, start, stop)
        return PieceReader([self.lie[start:stop]])


@pytest.fixture
def store() -> Store:
    config = {
        "stores": {"s": {"type": f"{__name__}:LyingStore", "space": uuid.uuid4().hex}},
        "encryption": {"key_id": "k1", "keys": {"k1": KEY}},
    }
    return claimcheck.from_dict(config).store("s")


def canonical(fields) -> bytes:
    return json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


@pytest.mark.parametrize("ttl_seconds", [None, 60])
@pytest.mark.parametrize("kind", ["filesystem", "memory"])
def test_a_reader_never_gets_the_header_of_one_attempt_and_the_body_of_another(kind, ttl_seconds, tmp_path):
    where = {"path": str(tmp_path)} if kind == "filesystem" else {"space": uuid.uuid4().hex}
    config = {
        "stores": {"s": {"type": kind, "ttl_seconds": ttl_seconds, **where}},
        "encryption": {"key_id": "k1", "keys": {"k1": KEY}},
    }
    first, second = (claimcheck.from_dict(config).store("s") for _ in range(2))
    payload, identity = os.urandom((2 << 20) + 1), uuid.uuid4()
    pointer = first.write(payload, destination="orders", identity=identity)
    opened, opening = first._open, []

    def attempt_and_open(*arguments):
        if opening:
            second.write(payload, destination="orders", identity=identity)
        opening.append(arguments)
        return opened(*arguments)

    first._open = attempt_and_open

    assert first.read_range(pointer, 1 << 20, 100) == payload[1 << 20 : (1 << 20) + 100]
    assert len(opening) > 1
    assert first.read(pointer) == payload


@pytest.mark.skipif(not IN_CI and importlib.util.find_spec("tink") is None, reason="tink is not installed")
@pytest.mark.parametrize("size", [1, 3_500_000])
def test_tink_reads_a_stored_object_as_the_guide_describes(store, size):
    payload = os.urandom(size)
    content = store._payloads[store.write(payload, destination="Straße/orders").key]

    end = 8 + int.from_bytes(content[4:8], "big")
    header = json.loads(content[8:end])
    wrapped, key_id = base64.b64decode(header.pop("key")), header.pop("key_id")
    bound = {"claimcheck": "2", "destination": header["destination"], "store": header["store"]}
    context = canonical({"context": bound, "key_id": key_id})
    data_key = tink_oracle.aead(base64.b64decode(KEY)).decrypt(wrapped, context)

    assert content[:4] == b"CCE2"
    associated_data = b"CCE2" + canonical(header)
    assert tink_oracle.decrypt(content[end:], key=data_key, associated_data=associated_data) == payload


def test_an_earlier_attempt_is_repeated_byte_for_byte(store):
    identity, payload = uuid.uuid4(), os.urandom(5000)
    first = store.write(payload, destination="orders", identity=identity)
    stored = store._payloads[first.key]
    store.lie = stored
    again = store.write(payload, destination="orders", identity=identity)

    assert store.given == [stored]
    store.lie = None
    assert store.read(again) == payload


@pytest.mark.parametrize(("times", "stored"), [(1, True), (2, True), (3, False)])
def test_an_earlier_attempt_that_cannot_be_read_for_a_moment_is_tried_again(store, monkeypatch, times, stored):
    """A server may show no object while another attempt replaces it, or the object has just expired."""
    misses, write, identity = [], store._write, uuid.uuid4()

    def taken(pointer, source):
        if len(misses) < times:
            raise KeyTakenError("taken", store=store.name, key=pointer.key)
        return write(pointer, source)

    def absent(pointer, start, stop):
        misses.append(pointer.key)
        raise PayloadNotFoundError("gone")

    with monkeypatch.context() as patch:
        patch.setattr(store, "_write", taken)
        patch.setattr(store, "_open", absent)
        if not stored:
            with pytest.raises(PayloadNotFoundError):
                store.write(b"x" * 5000, destination="orders", identity=identity)
            return
        pointer = store.write(b"x" * 5000, destination="orders", identity=identity)
    assert store.read(pointer) == b"x" * 5000


def test_no_payload_is_encrypted_with_the_key_and_nonce_of_another_one(store):
    """The difference of two ciphertexts of one keystream is that of their payloads."""
    one = store.write(os.urandom(5000), destination="orders", identity=uuid.uuid4())
    store.lie = store._payloads[one.key]

    with pytest.raises(IntegrityError):
        store.write(os.urandom(5000), destination="orders", identity=uuid.uuid4())
    assert store.given == []


@pytest.mark.parametrize("lie", [b"", b"x" * 6000, b"CCE2" + bytes(6000)])
def test_an_earlier_attempt_that_is_damaged_is_an_integrity_error(store, lie):
    store.lie = lie
    with pytest.raises(IntegrityError, match="cannot be trusted"):
        store.write(b"x" * 5000, destination="orders", identity=uuid.uuid4())


def test_an_error_of_a_data_key_names_the_payload():
    medium = {"stores": {"s": {"type": "memory", "space": uuid.uuid4().hex}}}
    sections = {name: {"key_id": name, "keys": {name: KEY}} for name in ("k1", "k2")}
    writer, reader = (
        claimcheck.from_dict(medium | {"encryption": section}).store("s") for section in sections.values()
    )
    pointer = writer.write(b"payload", destination="orders")
    with pytest.raises(IntegrityError, match=r"'k1', which is not configured here.*encryption\.keys") as caught:
        reader.read(pointer)
    assert (caught.value.store, caught.value.key) == ("s", pointer.key)
