"""Which cluster's garbage collection may delete the payloads of a topic."""

from __future__ import annotations

import contextlib
import threading
import uuid
from dataclasses import replace
from pathlib import Path

import pytest

import claimcheck
from claimcheck._operate.garbage import Candidates, Claim, check_claims, claims_of, fingerprint, reference_of, same_slug
from claimcheck._operate.sweep import Sweep
from claimcheck._store.contract import StoreContext
from claimcheck._store.listing import StoreEntry
from claimcheck._store.store import Store
from claimcheck._wire.envelope import encode_abort, encode_chunk, encode_literal, encode_pointer
from claimcheck._wire.pointer import Pointer, encode, encode_signed
from claimcheck.config import HEADER
from claimcheck.errors import ConfigError, EnvelopeError, StoreError, UnknownVersionError
from claimcheck.stores.memory import MemoryStore
from claimcheck.transports.local import LocalBroker
from claimcheck.transports.local._broker import local_cluster
from tests.clocks import Clock


def options_of(kind: str, folder: Path) -> dict[str, object]:
    if kind == "filesystem":
        return {"type": kind, "path": str(folder / "claims"), "create": True, "ttl_seconds": 60}
    if kind == "obstore":
        return {"type": kind, "url": f"memory:///{folder.name}", "ttl_seconds": 60}
    return {"type": kind, "space": folder.name, "ttl_seconds": 60}


@pytest.fixture(params=["memory", "filesystem", "obstore", "redis", "s3"])
def store(request, tmp_path):
    """A store of each kind that can be listed."""
    if request.param == "redis":
        prefix = f"{uuid.uuid4()}:"
        options = {
            "type": "redis",
            "url": request.getfixturevalue("redis_url"),
            "key_prefix": prefix,
            "ttl_seconds": 60,
        }
    elif request.param == "s3":
        server, bucket = request.getfixturevalue("s3_server").endpoint_url, request.getfixturevalue("s3_bucket")
        options = {"type": "s3", "bucket": bucket, "endpoint_url": server, "ttl_seconds": 60}
    else:
        options = options_of(request.param, tmp_path)
    with claimcheck.from_dict({"strategy": "external", "stores": {"hot": options}}) as cc:
        yield cc.store("hot")


def claim(topic: str, *clusters: str) -> list[Claim]:
    return claims_of((topic, [topic], cluster) for cluster in clusters)


def take(store: Store, *claims: Claim) -> list[str]:
    return check_claims(store, claims, delete=True, claim=True)


def owner(store: Store, topic: str = "orders") -> str:
    """Return what a collection of some other cluster is told."""
    with pytest.raises(ConfigError) as caught:
        check_claims(store, claim(topic, "kafka:other"), delete=False, claim=False)
    return str(caught.value)


def test_a_topic_belongs_to_the_first_cluster_that_claims_it(store):
    ours, theirs = claim("orders", "kafka:A"), claim("orders", "local:B")

    assert check_claims(store, ours, delete=True, claim=False) == ["orders"]
    assert check_claims(store, ours, delete=False, claim=True) == ["orders"]  # a report records nothing
    assert check_claims(store, theirs, delete=False, claim=False) == ["orders"]
    assert take(store, *ours) == []
    assert check_claims(store, ours, delete=True, claim=False) == []
    for delete in (False, True):
        with pytest.raises(ConfigError, match="belong to kafka:A, and this collection reads the messages of local:B"):
            check_claims(store, theirs, delete=delete, claim=True)
    assert check_claims(store, claim("payments", "local:B"), delete=True, claim=True) == []
    assert "belong to kafka:A" in owner(store)
    assert "belong to local:B" in owner(store, "payments")


def test_the_record_is_no_payload_and_outlives_all_of_them(store, monkeypatch):
    monkeypatch.setattr(type(store), "_server_time", lambda self: None)
    take(store, *claim("orders", "kafka:A"))
    store.write(b"payload", destination="orders")
    (entry,) = store.scan()
    report = Sweep(dry_run=False, grace_seconds=0, clock=lambda: 1e10).run(store)
    assert (entry.size, report.scanned, report.deleted) == (7, 1, 1)
    assert "belong to kafka:A" in owner(store)


def test_of_several_that_claim_at_the_same_time_one_succeeds(store):
    count, won = 8, []
    barrier = threading.Barrier(count)

    def run(number: int) -> None:
        mine = claim("orders", f"kafka:{number}")
        barrier.wait()
        with contextlib.suppress(ConfigError):
            won.extend([number] if take(store, *mine) == [] else [])

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (winner,) = won
    assert f"belong to kafka:{winner}," in owner(store)


def test_clusters_that_are_collected_together_own_a_topic_together(store):
    take(store, *claim("orders", "kafka:A", "kafka:B"))
    assert take(store, *claim("orders", "kafka:A", "kafka:B", "kafka:C")) == []
    with pytest.raises(ConfigError, match="belong to kafka:A and kafka:B"):
        take(store, *claim("orders", "kafka:B"))


def test_a_damaged_record_stops_the_collection(tmp_path):
    with claimcheck.from_dict({"strategy": "external", "stores": {"hot": options_of("filesystem", tmp_path)}}) as cc:
        take(cc.store("hot"), *claim("orders", "kafka:A"))
        (tmp_path / "claims" / "gc-orders.gc-owner").write_bytes(b"{}".ljust(1024))
        with pytest.raises(StoreError, match="damaged: delete it"):
            take(cc.store("hot"), *claim("orders", "kafka:A"))


def test_small_segments_and_required_encryption_do_not_matter(redis_url):
    redis = {"type": "redis", "url": redis_url, "key_prefix": f"{uuid.uuid4()}:", "segment_bytes": 100}
    encryption = {"key_id": "k", "keys": {"k": "A" * 42 + "E="}}
    config = {"strategy": "external", "stores": {"hot": redis}, "encryption": encryption}
    with claimcheck.from_dict(config) as cc:
        assert take(cc.store("hot"), *claim("orders", "kafka:A")) == []
        assert take(cc.store("hot"), *claim("orders", "kafka:A")) == []
        assert "belong to kafka:A" in owner(cc.store("hot"))


def test_an_embedded_broker_keeps_its_name(tmp_path):
    names = []
    for path in ("a.sqlite", "a.sqlite", "b.sqlite"):
        with LocalBroker(tmp_path / path) as broker:
            broker.create_topic("orders")
            names += [local_cluster(broker.database), local_cluster(broker.database)]
    assert names[0].startswith("local:")
    assert len(set(names[:4])) == 1
    assert names[4] not in names[:4]


def test_a_pulsar_cluster_names_itself_if_it_is_not_the_only_one():
    from claimcheck.transports.pulsar._queries import AdminClient, AdminError

    class Admin(AdminClient):
        def __init__(self, answers):
            self.answers = answers

        def get(self, path):
            return self.answers.get(path)

    settings = {"brokers/configuration/runtime": {"clusterName": "west"}}
    assert Admin({"clusters": ["global", "east"], **settings}).cluster() == "pulsar:east"
    assert Admin({"clusters": ["east", "west"], **settings}).cluster() == "pulsar:west"
    with pytest.raises(AdminError, match="does not name its cluster"):
        Admin({"clusters": ["east", "west"]}).cluster()


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
