"""Which stores a pointer may lead to, and what becomes of a pointer to a store that this process cannot use."""

from __future__ import annotations

import json
import sys

import pytest

import claimcheck
from claimcheck import Failed
from claimcheck._wire.envelope import encode_pointer
from claimcheck.errors import ConfigError, MissingDependencyError, PointerRejectedError

V1 = encode_pointer(b"\x01\x00\x00\x00\x01kafka-over-redis-orders-6ba7b810-9dad-11d1-80b4-00c04fd430c8")
PAYLOAD = b"x" * 1_000_000


def pointer_to(store, **fields):
    body = {"key": "claimcheck:k", "store": store, "size": 1, "segments": 1, "checksum": "crc32:0"} | fields
    return encode_pointer(b"\x02" + json.dumps(body).encode())


def attempts(cc, message):
    """Every way to read a message, as functions."""
    yield lambda: cc.resolve(message)
    yield lambda: cc.open(message).read()
    yield lambda: cc.open(message).read(1)
    yield lambda: cc.read(cc.pointer(message))


@pytest.fixture
def config(monkeypatch, tmp_path):
    monkeypatch.delenv("CLAIM_NOT_SET", raising=False)
    for name in ("redis", "boto3", "pulsar", "obstore"):
        monkeypatch.setitem(sys.modules, name, None)  # as if it were not installed
    (tmp_path / "claims").mkdir()
    disk = {"type": "filesystem", "path": str(tmp_path / "claims")}
    stores = {
        "disk": disk,
        "other": disk,
        "variable": {"type": "redis", "url": "redis://:${CLAIM_NOT_SET}@localhost"},
        "redis": {"type": "redis", "url": "redis://localhost", "v1_pointers": True},
        "s3": {"type": "s3", "bucket": "b"},
        "obstore": {"type": "obstore", "url": "s3://b"},
        "topic": {"type": "pulsar-topic", "url": "pulsar://localhost", "topic": "t"},
    }
    return {"strategy": "external", "store": "disk", "stores": stores}


@pytest.mark.parametrize("name", ["variable", "redis", "s3", "obstore", "topic"])
def test_a_store_that_this_process_cannot_use_is_an_error_of_the_message(config, name):
    cc = claimcheck.from_dict(config)
    with pytest.raises((ConfigError, MissingDependencyError)) as original:
        cc.store(name).write(b"x")
    key = "somebody@-1.1.0" if name == "topic" else "claimcheck:k" if name in ("variable", "redis") else "k"
    message = pointer_to(name, key=key)
    for read in attempts(cc, message):
        with pytest.raises(PointerRejectedError, match=f"names the store '{name}', which this process cannot use") as e:
            read()
        assert (e.value.reason, e.value.store, e.value.key) == ("store", name, key)
        assert type(e.value.__cause__) is type(original.value)
    [outcome] = cc.resolver().feed("orders-0", 0, message)
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, PointerRejectedError)


def test_the_user_of_a_store_gets_the_original_error(config):
    cc = claimcheck.from_dict(config)
    with pytest.raises(ConfigError, match="CLAIM_NOT_SET"):
        cc.store("variable")
    pointer = cc.pointer(pointer_to("redis"))
    for read in (cc.store("redis").read, lambda pointer: cc.store("redis").open(pointer).read()):
        with pytest.raises(MissingDependencyError):
            read(pointer)


def test_only_listed_stores_are_read_from(config):
    writer, reader = claimcheck.from_dict(config), claimcheck.from_dict(config | {"reads_from": ["other"]})
    for store in ("disk", "other"):
        message = writer.seal(writer.store(store).write(PAYLOAD))
        assert writer.resolve(message) == PAYLOAD
        if store == "other":
            assert reader.resolve(message) == PAYLOAD
            continue
        for read in attempts(reader, message):
            with pytest.raises(PointerRejectedError, match="'disk', which is not listed in reads_from") as caught:
                read()
            assert (caught.value.reason, caught.value.store) == ("store", "disk")
    assert reader.store("disk").write(b"x").store == "disk", "writers may still use it"


def test_a_pointer_of_version_1_leads_to_listed_stores_only(config):
    with pytest.raises(PointerRejectedError, match="'redis', which is not listed in reads_from"):
        claimcheck.from_dict(config | {"reads_from": ["disk"]}).resolve(V1)
    with pytest.raises(PointerRejectedError, match="cannot use"):
        claimcheck.from_dict(config | {"reads_from": ["redis"]}).resolve(V1)


@pytest.mark.parametrize("require", [None, True, False])
def test_a_pointer_of_version_1_is_refused_wherever_there_are_signing_keys(config, require):
    signing = {"keys": {"k1": "0123456789abcdef"}, "require": require}
    cc = claimcheck.from_dict(config | {"signing": signing})
    with pytest.raises(PointerRejectedError, match="version 1.*no signature") as caught:
        cc.pointer(V1)
    assert caught.value.reason == "signature"


def test_a_signature_that_cannot_be_checked_is_an_error_of_the_message_where_signatures_are_optional(config):
    keys = {"k1": "${CLAIM_NOT_SET}"}
    cc = claimcheck.from_dict(config | {"signing": {"keys": keys, "require": False}})
    with pytest.raises(PointerRejectedError, match="cannot be checked here.*CLAIM_NOT_SET") as caught:
        cc.resolve(pointer_to("disk", mac="00", key_id="k1"))
    assert caught.value.reason == "signature"
    assert cc.resolve(cc.seal(cc.store("disk").write(PAYLOAD))) == PAYLOAD

    strict = claimcheck.from_dict(config | {"signing": {"keys": keys}})
    for message in (pointer_to("disk", mac="00", key_id="k1"), pointer_to("disk")):
        with pytest.raises(ConfigError, match="CLAIM_NOT_SET"):
            strict.resolve(message)
