"""Which cluster's garbage collection may delete the payloads of a topic."""

from __future__ import annotations

import contextlib
import threading
import uuid
from pathlib import Path

import pytest

import claimcheck
from claimcheck._operate.garbage import Claim, check_claims, claims_of
from claimcheck._operate.sweep import Sweep
from claimcheck._store.store import Store
from claimcheck.errors import ConfigError, StoreError
from claimcheck.transports.local import LocalBroker
from claimcheck.transports.local._broker import local_cluster


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
