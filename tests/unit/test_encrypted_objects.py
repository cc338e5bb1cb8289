"""Stored objects: Tink reads them, and errors name them."""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import uuid

import pytest

import claimcheck
from claimcheck.errors import IntegrityError
from claimcheck.stores.base import Store
from tests import tink_oracle
from tests.conftest import IN_CI

KEY = base64.b64encode(os.urandom(32)).decode()


@pytest.fixture
def store() -> Store:
    config = {
        "stores": {"s": {"type": "memory", "space": uuid.uuid4().hex}},
        "encryption": {"key_id": "k1", "keys": {"k1": KEY}},
    }
    return claimcheck.from_dict(config).store("s")


def canonical(fields) -> bytes:
    return json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


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
