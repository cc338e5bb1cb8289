"""Which payloads can be garbage, and what messages refer to."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest

from claimcheck._operate.garbage import Candidates, fingerprint, reference_of, same_slug
from claimcheck._store.contract import StoreContext
from claimcheck._store.listing import StoreEntry
from claimcheck._wire.envelope import encode_abort, encode_chunk, encode_literal, encode_pointer
from claimcheck._wire.pointer import Pointer, encode, encode_signed
from claimcheck.config import HEADER
from claimcheck.errors import EnvelopeError, UnknownVersionError
from claimcheck.stores.memory import MemoryStore
from tests.clocks import Clock

UUID = "c588ed27-7265-4f4d-9d42-64e1de14b8c6"
POINTER = Pointer(key=f"orders-{UUID}", store="hot", size=3, checksum="crc32:352441c2")


class TestReferences:
    @pytest.mark.parametrize(
        "pointer",
        [
            encode(POINTER),
            encode_signed(POINTER, key_id="of another configuration", secret=b"unknown here"),
            encode(Pointer(key=POINTER.key, version=1)),
            encode(replace(POINTER, extra={"new": "x" * 9000})),
        ],
        ids=["version 2", "signed by others", "version 1", "longer than max_pointer_bytes"],
    )
    def test_every_pointer_that_some_reader_reads_counts(self, pointer):
        message = encode_pointer(pointer, header=b"OURS")
        assert reference_of(message, header=b"OURS") == POINTER.key

    @pytest.mark.parametrize(
        "message",
        [
            b"",
            b"plain",
            HEADER,
            encode_literal(encode_pointer(encode(POINTER))),
            encode_chunk(UUID, 0, 1, encode_pointer(encode(POINTER))),
            encode_abort(UUID),
            HEADER + b"\x01damaged chunk",
        ],
    )
    def test_other_messages_refer_to_nothing(self, message):
        assert reference_of(message) is None

    @pytest.mark.parametrize("data", [b"", b"\x01\x00\x00\x00\x00key", b"\x02{}", b"\x02not json"])
    def test_a_damaged_pointer_is_told_from_a_newer_one(self, data):
        with pytest.raises(EnvelopeError) as caught:
            reference_of(encode_pointer(data))
        assert not isinstance(caught.value, UnknownVersionError)

    @pytest.mark.parametrize("message", [HEADER + b"\x02\x03{}", HEADER + b"\x05", HEADER + b"\xffx"])
    def test_what_a_newer_release_wrote_may_point_at_anything(self, message):
        with pytest.raises(UnknownVersionError):
            reference_of(message)


class TestCandidates:
    """Payloads that a store wrote at 1000 s; it is 2000 s now."""

    @pytest.fixture
    def store(self):
        store = MemoryStore(space=str(uuid.uuid4()), ttl_seconds=60)
        store.prefix = "a-team/"
        store.context = StoreContext(clock=Clock())
        return store

    def verdict(self, store: MemoryStore, grace: float, **write) -> str:
        store.write(b"payload", **{"destination": "a/b", **write})
        (entry,) = store.scan()
        candidates = Candidates.of({"a/b": ["a/b", "long/a/b"]}, now=2000, grace_seconds=grace)
        return candidates.verdict(entry, prefix=store.prefix)

    @pytest.mark.parametrize(("grace", "verdict"), [(998, "candidate"), (1000, "recent"), (1001, "recent")])
    def test_the_grace_begins_when_the_write_does(self, store, grace, verdict):
        assert self.verdict(store, grace) == verdict

    @pytest.mark.parametrize(
        ("destination", "verdict"), [("long/a/b", "candidate"), ("a-b", "other"), ("a/b.dlq", "other"), ("", "other")]
    )
    def test_payloads_of_other_destinations_are_none(self, store, destination, verdict):
        assert self.verdict(store, 0, destination=destination) == verdict

    @pytest.mark.parametrize(
        ("entry", "verdict"),
        [
            (StoreEntry(kind="leftover", key=f"a_b-{UUID}", created_ms=0), "leftover"),
            (StoreEntry(key=f"a_b-{UUID}", created_ms=0), "unknown"),
            (StoreEntry(key=f"a_b-60s_{UUID}", has_lifetime=True, expires_ms=1), "unknown"),
        ],
        ids=["leftover", "earlier release", "no time"],
    )
    def test_what_is_not_known_is_kept(self, entry, verdict):
        assert Candidates.of({"a/b": ["a/b"]}, now=2000, grace_seconds=0).verdict(entry) == verdict


def test_a_payload_has_one_fingerprint_whatever_its_store_is_called():
    keys = [f"orders-{UUID}", f"hot/orders-60s_{UUID}", f"claimcheck:orders-20261122T113004Z-60s.{{{UUID}}}"]
    assert {fingerprint(key) for key in keys} == {uuid.UUID(UUID).bytes}
    others = ["of-another-medium", f"orders-{UUID}x", UUID[:-1] + "7"]
    assert len({fingerprint(key) for key in [*keys, *others]}) == 1 + len(others)


def test_topics_whose_payloads_cannot_be_told_apart_are_found():
    known = {name: [name] for name in ("a/b", "a_b", "a-b", "x" * 65, "x" * 64 + "y")}
    assert same_slug({"a/b": ["a/b"]}, known) == {"a_b": "a/b"}
    assert same_slug({"a/b": ["a/b"], "a_b": ["a_b"]}, known) == {}
    assert same_slug({"x" * 65: ["x" * 65]}, known) == {"x" * 64 + "y": "x" * 65}
