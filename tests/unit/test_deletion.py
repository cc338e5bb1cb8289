"""What a sweep deletes, which payloads can be garbage, and whose garbage they are.

tests/property runs sweeps and garbage collections beside everything else that happens to payloads.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

import claimcheck
from claimcheck._operate.garbage import Candidates, Claim, check_claims, claims_of, fingerprint, reference_of, same_slug
from claimcheck._operate.sweep import Sweep
from claimcheck._store.contract import StoreContext
from claimcheck._store.listing import KeyLifetime, StoreEntry, destination_of, parse_name, with_lifetime
from claimcheck._store.store import Store
from claimcheck._wire.envelope import encode_abort, encode_chunk, encode_literal, encode_pointer
from claimcheck._wire.pointer import PINNED, Pointer, encode, encode_signed, slug
from claimcheck.config import HEADER
from claimcheck.errors import (
    ConfigError,
    EnvelopeError,
    ScanNotSupportedError,
    StoreError,
    StoreUnavailableError,
    UnknownVersionError,
)
from claimcheck.hooks import Hooks, SweepEvent
from claimcheck.stores._files import PARTIAL_SUFFIX, folder_for
from claimcheck.stores.filesystem import FilesystemStore
from claimcheck.stores.memory import MemoryStore
from claimcheck.testing import FaultyStore
from claimcheck.transports.local import LocalBroker
from claimcheck.transports.local._broker import local_cluster
from claimcheck.transports.pulsar._queries import AdminClient, AdminError
from tests.clocks import Clock

UUID = "6ba7b810-9dad-11d1-80b4-00c04fd430c8"
OLD_KEY = f"orders-{UUID}"


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def memory(clock):
    store = MemoryStore(space=str(uuid.uuid4()), ttl_seconds=10)
    store.context = StoreContext(name="mine", clock=clock)
    return store


@pytest.fixture
def disk(tmp_path):
    return FilesystemStore(path=str(tmp_path), ttl_seconds=10)


@pytest.fixture(params=["memory", "filesystem", "obstore", "redis", "s3"])
def store(request, tmp_path):
    """A store of each kind that can be listed; its payloads live for a minute."""
    options: dict[str, object] = {"type": request.param, "ttl_seconds": 60}
    if request.param == "redis":
        options |= {"url": request.getfixturevalue("redis_url"), "key_prefix": f"{uuid.uuid4()}:"}
    elif request.param == "s3":
        server = request.getfixturevalue("s3_server")
        options |= {"bucket": request.getfixturevalue("s3_bucket"), "endpoint_url": server.endpoint_url}
    elif request.param == "filesystem":
        options |= {"path": str(tmp_path / "claims"), "create": True}
    else:
        options |= {"url": f"memory:///{tmp_path.name}"} if request.param == "obstore" else {"space": tmp_path.name}
    with claimcheck.from_dict({"strategy": "external", "stores": {"hot": options}}) as cc:
        yield cc.store("hot")


def sweep(store, clock, **options):
    return Sweep(**{"grace_seconds": 5, "dry_run": False, "clock": clock, "sleep": clock.sleep, **options}).run(store)


def age(path, seconds):
    now = path.lstat().st_mtime - seconds
    os.utime(path, (now, now), follow_symlinks=False)


def refuse(*_, **__):
    raise PermissionError(1, "Operation not permitted")


# Sweeps ------------------------------------------------------------------------------------------------------------


def test_the_rate_is_kept_and_an_entry_that_cannot_be_deleted_does_not_keep_the_others(memory, clock):
    for _ in range(10):
        memory.write(b"")
    clock.sleep(100)
    delete, calls, begin = memory._discard, [], clock()

    def discard(entries):
        for entry in entries:
            calls.append(entry)
            yield from [memory._failed(entry, PermissionError("no"))] if len(calls) == 2 else delete([entry])

    memory._discard = discard
    report = sweep(memory, clock, rate=2)
    assert (report.deleted, report.failed, clock() - begin) == (9, 1, 5)
    assert isinstance(report.errors[0], StoreError)
    assert "no" in str(report.errors[0])


def test_an_unreachable_store_ends_a_sweep(memory, clock):
    events, reports = [], []
    faulty = FaultyStore(store=memory)
    faulty.context = StoreContext(name="mine", clock=clock, hooks=Hooks((events.append,)))
    faulty.write(b"")
    clock.sleep(100)
    faulty.fail("rollback")
    with pytest.raises(StoreUnavailableError):
        Sweep(grace_seconds=5, dry_run=False, clock=clock).run(faulty, on_batch=reports.append)
    assert [(each.expired, each.finished) for each in reports] == [(1, False)]
    faulty.heal()
    assert sweep(faulty, clock).deleted == 1
    swept = [event for event in events if isinstance(event, SweepEvent)]
    assert [(each.store, each.expired, each.deleted) for each in swept] == [("mine", 1, 0), ("mine", 1, 1)]
    assert [type(each.error) for each in swept] == [StoreUnavailableError, type(None)]


def test_wrong_options_and_a_store_that_cannot_be_listed_are_refused():
    for options in ({"grace_seconds": -1}, {"grace_seconds": float("nan")}, {"rate": 0}):
        with pytest.raises(ConfigError, match=next(iter(options))):
            Sweep(**options)

    class Opaque(MemoryStore):
        _scan = Store._scan

    with pytest.raises(ScanNotSupportedError, match="Opaque cannot list"):
        Sweep().run(Opaque())


def test_a_clock_that_is_ahead_of_the_stores_deletes_nothing(store, monkeypatch):
    """All payloads seem to have expired."""
    store.write(b"payload")

    def run(ahead, **options):
        options = {"dry_run": False, "grace_seconds": 0, **options}
        return Sweep(clock=lambda: time.time() + ahead, **options).run(store)

    for ahead in (0, 30, -86_400):
        assert run(ahead).kept == {"alive": 1}
    assert run(2 * 86_400, dry_run=True).scanned == 1
    if store._server_time() is not None:
        with pytest.raises(StoreError, match="this machine's clock is ahead of the store's") as caught:
            run(2 * 86_400)
        here, there = map(datetime.fromisoformat, re.findall(r"(\S+) (?:here|there)", str(caught.value)))
        assert abs((here - there).total_seconds() - 2 * 86_400) < 60
    assert len(list(store.scan())) == 1
    monkeypatch.setattr(type(store), "_server_time", refuse)  # it does not tell its time
    assert run(100).deleted == 1


# Files -------------------------------------------------------------------------------------------------------------


def test_only_files_of_the_store_in_the_folder_of_their_key_are_listed(disk, tmp_path):
    pointer = disk.write(b"payload", destination="orders")
    folder, _, name = pointer.key.rpartition("/")
    shard = folder[-2:]
    wrong = "00" if shard != "00" else "01"
    for each in (
        "notes.txt", "ab/.hidden.partial", f"2026-01-01/{OLD_KEY}", f"lost+found/{OLD_KEY}", f"elsewhere/{OLD_KEY}",
        name, f"{wrong}/{name}", f"2026-01-01/{shard}/{name}", f"be/{OLD_KEY}", f"{{{name}}}",  # not bf
    ):  # fmt: skip
        (tmp_path / each).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / each).write_bytes(b"not a payload of this store")
        age(tmp_path / each, 10**6)
    (tmp_path / f".{name}.01234567{PARTIAL_SUFFIX}").write_bytes(b"not a leftover")
    (tmp_path / "cd").symlink_to(tmp_path / "elsewhere")
    (tmp_path / OLD_KEY).symlink_to(tmp_path / "notes.txt")
    assert [entry.key for entry in disk.scan()] == [pointer.key]
    with pytest.raises(claimcheck.PointerRejectedError):
        disk.delete([StoreEntry(key=name)])


@pytest.mark.parametrize("key", [OLD_KEY, f"ab/orders-60s_{UUID}", f"ab/orders-never_{UUID}"])
def test_payloads_of_earlier_releases_are_read_and_never_expire(disk, tmp_path, key):
    key = key.replace("ab/", folder_for(key, None))
    (tmp_path / key).parent.mkdir(exist_ok=True)
    (tmp_path / key).write_bytes(b"payload")
    age(tmp_path / key, 10**6)
    (entry,) = disk.scan()
    assert (entry.key, entry.has_lifetime) == (key, False)
    assert Sweep(dry_run=False, grace_seconds=5).run(disk).kept == {"unknown": 1}
    assert disk.read(Pointer(key=key, store="store", size=7)) == b"payload"


def test_a_folder_that_cannot_be_read_does_not_keep_the_others(disk, tmp_path, monkeypatch):
    pointers = [disk.write(b"payload") for _ in range(30)]
    entries, folders = list(disk.scan()), sorted({os.path.dirname(each.key) for each in pointers})
    opened, scandir = disk._directory, os.scandir
    kept = {each.key for each in pointers if os.path.dirname(each.key) in folders[:2]}
    with monkeypatch.context() as patch:
        patch.setattr(disk, "_directory", lambda folder: refuse() if folder in folders[:2] else opened(folder))
        outcomes = {each.entry.key: each.outcome for each in disk.delete(entries[:15])}
    assert outcomes == {each.key: "failed" if each.key in kept else "deleted" for each in entries[:15]}
    refused = [tmp_path / each for each in folders[:2]]
    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", lambda path: refuse() if path in refused else scandir(path))
        patch.setattr(disk, "_server_time", lambda: None)
        report = Sweep(dry_run=False, grace_seconds=0, clock=lambda: 10**10).run(disk)
        assert (report.failed, report.finished) == (2, True)
        assert "cannot be listed: Operation not permitted" in str(report.errors[0])
        with pytest.raises(StoreError, match=r"cannot be listed.*and 1 more"):
            list(disk.scan())
    assert {entry.key for entry in disk.scan()} == kept


def test_leftovers_and_empty_folders_go_after_the_grace(disk, tmp_path):
    kept = tmp_path / disk.write(b"payload").key
    partials = [kept.with_name(f".{kept.name}.0123456{i}{PARTIAL_SUFFIX}") for i in range(2)]
    for partial in partials:
        partial.write_bytes(b"half")
    age(partials[0], 4000)
    for each in ("2026-01-01/ab", "cd"):
        (tmp_path / each).mkdir(parents=True)
        age(tmp_path / each, 4000)
    report = Sweep(dry_run=False).run(disk)
    assert (report.leftovers, report.expired_bytes, report.deleted) == (3, 4, 3)
    assert report.kept == {"alive": 1, "recent": 1}
    left = [path for path in tmp_path.rglob("*") if path not in kept.parents]
    assert sorted(left) == sorted([kept, partials[1]])


# The lifetime in a key ---------------------------------------------------------------------------------------------

NOW = 1_700_000_000_500
LOOKALIKES = ["orders-20261122T113004Z-5s.x", "orders-5s_x", "a-20261122T113004Z-5s", "never", "a-never", "-", "x-5s"]
destinations = st.one_of(st.text(max_size=80), st.sampled_from(LOOKALIKES))
moments = st.integers(0, 200_000_000_000_000)


def marked(destination, *, created=NOW, expires=NOW + 60_000, key=f"{{}}-{UUID}", max_bytes=1024):
    name = key.format(slug(destination))
    return with_lifetime(name, uuid.UUID(UUID), created_ms=created, expires_ms=expires, max_bytes=max_bytes)


def test_forms():
    assert marked("orders") == f"orders-20231114T221320Z-60s.{UUID}"
    assert marked("orders", expires=None) == f"orders-20231114T221320Z-never.{UUID}"
    assert marked("orders", key=f"{{}}-{{{{{UUID}}}}}") == f"orders-20231114T221320Z-60s.{{{UUID}}}"
    assert marked("orders", max_bytes=60) == OLD_KEY, "a key that would be too long"
    assert marked("orders", created=10**18) == OLD_KEY, "a clock far beyond the year 9999"


@given(destination=destinations, created=moments, lifetime=st.none() | st.integers(0, 10**13))
def test_a_fresh_key_never_expires_before_its_pointer(destination, created, lifetime):
    expires = None if lifetime is None else created + lifetime
    known = parse_name(marked(destination, created=created, expires=expires))
    assert known.created_ms in range(created, created + 1000)
    if expires is None:
        assert known == KeyLifetime(known.created_ms, None)
    else:
        assert expires <= known.created_ms + known.lifetime_ms < expires + 2000


@given(destination=destinations, topic=destinations)
def test_no_destination_imitates_another_form_of_a_key(destination, topic):
    for name in (f"{slug(destination)}-{UUID}", f"{slug(destination)}-60s_{UUID}", f"{slug(destination)}-never_{UUID}"):
        assert parse_name(name) == KeyLifetime(), "the key of an earlier release has no lifetime"
        assert destination_of(name) == slug(destination)
    pinned = marked(PINNED + destination)
    assert pinned.startswith("~")
    assert parse_name(pinned).lifetime_ms == 60_000
    assert topic.startswith(PINNED) or destination_of(pinned) != slug(topic)


@pytest.mark.parametrize(
    "name",
    ["", "notes.txt", UUID, f"-{UUID}", f"a/b-{UUID}", f"orders{UUID}", f"orders-{UUID}-0", f"orders.{UUID}",
     f"orders-20261122T113004Z.{UUID}", f"orders-20261322T113004Z-5s.{UUID}", f"orders-5_{UUID}", f"-5s_{UUID}",
     f"orders-20261122T113004Z-5s.{UUID.upper()}", f"{'x' * 65}-{UUID}", f"or ders-{UUID}", f"orders-{{{UUID}",
     f"orders-\u0665s_{UUID}"],
)  # fmt: skip
def test_names_of_others(name):
    assert parse_name(name) is None


# Garbage -----------------------------------------------------------------------------------------------------------

POINTER = Pointer(key=OLD_KEY, store="hot", size=3, checksum="crc32:352441c2")


@pytest.mark.parametrize(
    ("message", "found"),
    [
        *(
            (encode_pointer(pointer), OLD_KEY)
            for pointer in (
                encode(POINTER),
                encode_signed(POINTER, key_id="of another configuration", secret=b"unknown here"),
                encode(Pointer(key=OLD_KEY, version=1)),
                encode(replace(POINTER, extra={"new": "x" * 9000})),  # longer than max_pointer_bytes
            )
        ),
        *((plain, None) for plain in (b"", b"plain", HEADER, encode_abort(UUID), HEADER + b"\x01damaged chunk")),
        *(
            (wrap(encode_pointer(encode(POINTER))), None)
            for wrap in (encode_literal, lambda x: encode_chunk(UUID, 0, 1, x))
        ),
        *(
            (encode_pointer(data), EnvelopeError)
            for data in (b"", b"\x01\x00\x00\x00\x00key", b"\x02{}", b"\x02not json")
        ),
        *((HEADER + data, UnknownVersionError) for data in (b"\x02\x03{}", b"\x05", b"\xffx")),
    ],
)
def test_a_message_refers_to_one_payload_or_none_or_is_damaged_or_of_a_newer_release(message, found):
    """Every pointer that some reader reads counts."""
    if not isinstance(found, type):
        assert reference_of(message) == found
        return
    with pytest.raises(EnvelopeError) as caught:
        reference_of(message)
    assert isinstance(caught.value, UnknownVersionError) is (found is UnknownVersionError)


def test_payloads_of_the_topic_are_candidates_after_the_grace(memory):
    """Written at 1000 s; it is 2000 s now."""
    memory.prefix, verdicts = "a-team/", {}
    for destination, grace in (("a/b", 998), ("a/b", 1000), ("long/a/b", 0), ("a-b", 0), ("a/b.dlq", 0), ("", 0)):
        pointer = memory.write(b"payload", destination=destination)
        (entry,) = memory.scan()
        candidates = Candidates.of({"a/b": ["a/b", "long/a/b"]}, now=2000, grace_seconds=grace)
        verdicts[destination, grace] = candidates.verdict(entry, prefix=memory.prefix)
        memory.rollback(pointer)
    assert [*verdicts.values()] == ["candidate", "recent", "candidate", "other", "other", "other"]


def test_what_is_not_known_is_kept():
    verdict = Candidates.of({"a/b": ["a/b"]}, now=2000, grace_seconds=0).verdict
    assert verdict(StoreEntry(kind="leftover", key=f"a_b-{UUID}", created_ms=0)) == "leftover"
    assert verdict(StoreEntry(key=f"a_b-{UUID}", created_ms=0)) == "unknown"  # of an earlier release
    assert verdict(StoreEntry(key=f"a_b-60s_{UUID}", has_lifetime=True, expires_ms=1)) == "unknown"  # no time


def test_a_payload_has_one_fingerprint_whatever_its_store_is_called():
    keys = [OLD_KEY, f"hot/orders-60s_{UUID}", f"claimcheck:orders-20261122T113004Z-60s.{{{UUID}}}"]
    assert {fingerprint(key) for key in keys} == {uuid.UUID(UUID).bytes}
    others = ["of-another-medium", f"orders-{UUID}x", UUID[:-1] + "7"]
    assert len({fingerprint(key) for key in [*keys, *others]}) == 1 + len(others)


def test_topics_whose_payloads_cannot_be_told_apart_are_found():
    known = {name: [name] for name in ("a/b", "a_b", "a-b", "x" * 65, "x" * 64 + "y")}
    assert same_slug({"a/b": ["a/b"]}, known) == {"a_b": "a/b"}
    assert same_slug({"a/b": ["a/b"], "a_b": ["a_b"]}, known) == {}
    assert same_slug({"x" * 65: ["x" * 65]}, known) == {"x" * 64 + "y": "x" * 65}


# Which cluster may delete the garbage of a topic -------------------------------------------------------------------


def claim(topic: str, *clusters: str) -> list[Claim]:
    return claims_of((topic, [topic], cluster) for cluster in clusters)


def take(store: Store, *claims: Claim) -> list[str]:
    return check_claims(store, claims, delete=True, claim=True)


def owner(store: Store, topic: str = "orders") -> str:
    """Return what a collection of some other cluster is told."""
    with pytest.raises(ConfigError) as caught:
        check_claims(store, claim(topic, "kafka:other"), delete=False, claim=False)
    return str(caught.value)


def test_a_topic_belongs_to_the_first_cluster_that_claims_it(store, monkeypatch):
    ours, theirs = claim("orders", "kafka:A"), claim("orders", "local:B")
    assert check_claims(store, ours, delete=True, claim=False) == ["orders"]
    assert check_claims(store, ours, delete=False, claim=True) == ["orders"]  # a report records nothing
    assert check_claims(store, theirs, delete=False, claim=False) == ["orders"]
    assert take(store, *ours) == []
    assert check_claims(store, ours, delete=True, claim=False) == []
    for delete in (False, True):
        with pytest.raises(ConfigError, match="belong to kafka:A, and this collection reads the messages of local:B"):
            check_claims(store, theirs, delete=delete, claim=True)
    assert take(store, *claim("payments", "local:B")) == []
    monkeypatch.setattr(type(store), "_server_time", lambda self: None)
    store.write(b"payload", destination="orders")
    (entry,) = store.scan()
    report = Sweep(dry_run=False, grace_seconds=0, clock=lambda: 1e10).run(store)
    assert (entry.size, report.scanned, report.deleted) == (7, 1, 1), "the record is no payload, and outlives all"
    assert "belong to kafka:A" in owner(store)
    assert "belong to local:B" in owner(store, "payments")


def test_clusters_that_are_collected_together_own_a_topic_together(store):
    take(store, *claim("orders", "kafka:A", "kafka:B"))
    assert take(store, *claim("orders", "kafka:A", "kafka:B", "kafka:C")) == []
    with pytest.raises(ConfigError, match="belong to kafka:A and kafka:B"):
        take(store, *claim("orders", "kafka:B"))


def test_of_several_that_claim_at_the_same_time_one_succeeds(store):
    barrier = threading.Barrier(8)

    def wins(number: int) -> bool:
        barrier.wait()
        with contextlib.suppress(ConfigError):
            return take(store, *claim("orders", f"kafka:{number}")) == []
        return False

    with ThreadPoolExecutor(8) as threads:
        won = [number for number, has_won in enumerate(threads.map(wins, range(8))) if has_won]
    (winner,) = won
    assert f"belong to kafka:{winner}," in owner(store)


def test_a_damaged_record_stops_the_collection(disk, tmp_path):
    take(disk, *claim("orders", "kafka:A"))
    (tmp_path / "gc-orders.gc-owner").write_bytes(b"{}".ljust(1024))
    with pytest.raises(StoreError, match="damaged: delete it"):
        take(disk, *claim("orders", "kafka:A"))


def test_small_segments_and_required_encryption_do_not_matter_to_a_claim(fake_redis_url):
    redis = {"type": "redis", "url": fake_redis_url, "segment_bytes": 100}
    encryption = {"key_id": "k", "keys": {"k": "A" * 42 + "E="}}
    with claimcheck.from_dict({"strategy": "external", "stores": {"hot": redis}, "encryption": encryption}) as cc:
        assert [take(cc.store("hot"), *claim("orders", "kafka:A")) for _ in range(2)] == [[], []]
        assert "belong to kafka:A" in owner(cc.store("hot"))


def test_each_embedded_broker_and_each_pulsar_cluster_has_its_own_name(tmp_path):
    names = []
    for path in ("a.sqlite", "a.sqlite", "b.sqlite"):
        with LocalBroker(tmp_path / path) as broker:
            broker.create_topic("orders")
            names.append(local_cluster(broker.database))
    assert names[0] == names[1] != names[2]
    admin = AdminClient("http://host")
    settings = {"brokers/configuration/runtime": {"clusterName": "west"}}
    for clusters, name in ((["global", "east"], "pulsar:east"), (["east", "west"], "pulsar:west")):
        admin.get = {"clusters": clusters, **settings}.get
        assert admin.cluster() == name
    admin.get = {"clusters": ["east", "west"]}.get
    with pytest.raises(AdminError, match="does not name its cluster"):
        admin.cluster()
