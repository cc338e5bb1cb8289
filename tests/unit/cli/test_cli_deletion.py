"""``gc`` with the embedded broker, and ``sweep``: what they print and delete, and their exit codes."""

from __future__ import annotations

import itertools
import json
import os
import re
import time
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
from confluent_kafka import admin as vendor

import claimcheck
from claimcheck._operate.gc import Collection, KafkaTopics, LocalTopics, PulsarTopics
from claimcheck._store.contract import StoreContext
from claimcheck._wire.envelope import encode_pointer
from claimcheck.stores.filesystem import FilesystemStore
from claimcheck.transports._common.topics import is_dead_letter_topic, topics_not_read, topics_to_read
from claimcheck.transports.kafka._queries import KafkaTarget
from claimcheck.transports.local import LocalBroker
from claimcheck.transports.local._broker import local_cluster
from claimcheck.transports.pulsar._queries import PulsarTarget
from tests.local_rig import acknowledge
from tests.unit.cli.rig import claims, is_one_line, ok, put, run

CONFIG = """
store: disk
stores:
  disk: {type: filesystem, path: claims, create: true, ttl_seconds: 604800}
  side: {type: pulsar-topic, url: "pulsar://localhost:6650", topic: side}
"""
GC = ("gc", "--local", "broker.sqlite", "--topic", "orders")
NEWER = b"PRF_wdkafcli_header_\x09"


class Lab:
    """A broker and a store, with payloads that were written two days ago."""

    def __init__(self, here: Path) -> None:
        (here / "claimcheck.yaml").write_text(CONFIG)
        self.cc = claimcheck.load(here / "claimcheck.yaml")
        self.store = self.cc.store("disk")
        self.broker = LocalBroker(here / "broker.sqlite")
        self.broker.create_topic("orders", 2)

    def write(self, destination: str = "orders", *, days: float = 2) -> claimcheck.Pointer:
        self.store.context = StoreContext(name="disk", clock=lambda: time.time() - days * 86_400)
        return self.store.write(b"payload", destination=destination)

    def send(self, pointer: claimcheck.Pointer, topic: str = "orders") -> None:
        self.broker.append(topic, self.cc.seal(pointer), partition=0)

    @property
    def stored(self) -> set[str]:
        return {entry.key for entry in self.store.scan()}


@pytest.fixture
def lab(here):
    lab = Lab(here)
    yield lab
    lab.broker.close()


def test_it_counts_first_and_deletes_exactly_the_orphans_with_yes(lab):
    lab.broker.create_topic("orders.dlq")
    sent, dead, recent, other = lab.write(), lab.write(), lab.write(days=0.9), lab.write("payments")
    for days in (2, 20):
        lab.write(days=days)
    lab.send(sent)
    lab.send(dead, "orders.dlq")
    counted = ok(*GC).stdout.splitlines()
    still_there = lab.stored
    deleted = ok(*GC, "--yes", "--claim").stdout.splitlines()
    assert counted[1:6] == [
        "  read: orders (1), orders.dlq (1)",
        "  grace period: 1 day; younger payloads are kept",
        "disk: 2 of 6 entries are orphans, 14 bytes",
        "  nothing was deleted: use --yes --claim to delete them",
        "  claimed by no cluster: orders",
    ]
    assert [int(line.split()[0]) for line in counted[6:10]] == [2, 2, 1, 1]
    assert counted[10].startswith("store 'side': PulsarTopicStore cannot list its payloads")
    assert (len(still_there), deleted[4].startswith("  2 deleted in ")) == (6, True)
    assert lab.stored == {each.key for each in (sent, dead, recent, other)}


def test_json_has_the_counts_and_the_store_that_cannot_be_listed(lab):
    lab.send(lab.write())
    lab.broker.append("orders", encode_pointer(b"\x02damaged"))
    lab.write()
    report = json.loads(ok(*GC, "--json", "--yes", "--claim", "--grace", "1d").stdout)
    (disk,) = report["stores"]
    assert (report["ok"], report["messages"], report["pointers"], report["damaged"]) == (True, 2, 1, 1)
    assert (disk["deleted"], disk["expired_bytes"], disk["topics"], disk["finished"]) == (1, 7, {"orders": 1}, True)
    assert "PulsarTopicStore cannot list its payloads: the medium" in report["not_listed"]["side"]


def test_a_collection_of_another_cluster_deletes_nothing_and_is_told_whose_payloads_they_are(lab):
    other = ("gc", "--local", "other.sqlite", "--topic", "orders")
    with LocalBroker("other.sqlite") as broker:
        broker.create_topic("orders")
        broker.append("orders", lab.cc.seal(lab.write()))
    lab.write()
    assert "points at any payload" in run(*GC, "--yes", "--claim").stderr, "the wrong broker claims nothing"
    lab.send(lab.write())
    before = lab.stored
    for command in (GC, other):
        result = run(*command, "--yes")
        assert result.exit_code == 3
        assert "2 of 3 entries are orphans" in result.stdout
        assert "no cluster has claimed orders in store 'disk'" in result.stderr
        assert "repeat it with --claim" in result.stderr
    assert lab.stored == before
    ok(*GC, "--yes", "--claim")
    before = lab.stored
    for options in ([], ["--yes"], ["--yes", "--claim", "--force"]):
        result = run(*other, *options)
        assert result.exit_code == 3
        assert f"belong to {local_cluster(lab.broker.database)}, and this collection reads" in result.stderr
        assert "delete the record 'gc-orders.gc-owner'" in result.stderr
    assert lab.stored == before


def test_a_clock_that_is_ahead_of_the_stores_deletes_nothing(lab):
    lab.send(lab.write())
    recent = lab.write(days=0)
    ok(*GC, "--yes", "--claim")
    collection = Collection(dry_run=False, clock=lambda: time.time() + 2 * 86_400)
    (report,) = collection.run([lab.store], LocalTopics(lab.broker, ("orders",))).stores
    assert "clock is ahead of the store's: it is 2" in str(report.error)
    assert recent.key in lab.stored


@pytest.mark.parametrize("days", [2, 0.5])
def test_nothing_is_deleted_if_the_topics_point_at_no_payload_at_all(lab, days):
    orphan, foreign = lab.write(), lab.write(days=days)
    lab.store.rollback(foreign)  # the pointer of another broker's store
    lab.send(foreign)
    assert "is this their broker?" in ok(*GC).stdout
    result = run(*GC, "--yes")
    assert (result.exit_code, lab.stored) == (3, {orphan.key})
    assert "no message in orders points at any payload" in result.stderr
    lab.send(lab.write(days=days))
    ok(*GC, "--yes", "--claim")
    assert orphan.key not in lab.stored


def test_what_every_group_has_acknowledged_goes_only_if_that_is_wanted(lab):
    first, second = lab.write(), lab.write()
    lab.send(first)
    lab.send(second)
    for group, count in (("fast", 2), ("slow", 1)):
        acknowledge(lab.broker, lab.cc, group, count)
    ok(*GC, "--yes", "--claim")
    assert lab.stored == {first.key, second.key}
    ok(*GC, "--yes", "--consumed")
    assert lab.stored == {second.key}
    acknowledge(lab.broker, lab.cc, "slow", 1)
    ok(*GC, "--yes", "--consumed")  # no message is left to recognize the broker by; the claim does
    assert not lab.stored


def test_when_everything_was_read_before_a_claim_it_has_to_be_forced(lab):
    lab.send(pointer := lab.write())
    acknowledge(lab.broker, lab.cc, "g", 1)
    assert "no message in orders points at any payload" in run(*GC, "--yes", "--claim", "--consumed").stderr
    assert run(*GC, "--yes", "--consumed").exit_code == 3, "nothing was claimed"
    assert lab.stored == {pointer.key}
    ok(*GC, "--yes", "--claim", "--consumed", "--force")
    assert not lab.stored


@pytest.mark.parametrize(
    ("message", "text"),
    [(b"PRF_wdkafcli_header_\x02\x09", "pointer of version 9"), (NEWER, "unknown envelope type 9 (known are 0 to 4)")],
)
def test_a_message_of_a_newer_release_deletes_nothing(lab, message, text):
    lab.write()
    lab.broker.append("orders", message, partition=1)
    result = run(*GC, "--yes")
    assert (result.exit_code, len(lab.stored)) == (5, 1)
    assert f"orders, partition 1, offset 0: {text}" in result.stderr
    assert "Upgrade this installation" in result.stderr
    assert "?" not in result.stderr
    assert json.loads(run(*GC, "--yes", "--json").stdout)["ok"] is False


def test_a_collection_can_go_on_without_older_messages_of_an_unknown_version(lab):
    def ago(seconds: float) -> str:
        return datetime.fromtimestamp(time.time() - seconds, UTC).isoformat(timespec="seconds")

    lab.send(lab.write())
    lab.broker.clock = lambda: time.time() - 3600
    lab.broker.append("orders", NEWER, partition=1)
    lost = lab.write()
    stopped = run(*GC, "--yes", "--claim", "--ignore-unknown-before", ago(3700))
    assert (stopped.exit_code, lost.key in lab.stored) == (5, True)
    sent = re.search(r"--ignore-unknown-before and a later time: it was sent at (\S+)", stopped.stderr)[1]
    assert 3590 < time.time() - datetime.fromisoformat(sent).timestamp() < 3660
    report = ok(*GC, "--yes", "--claim", "--ignore-unknown-before", ago(3000)).stdout
    assert "1 pointers, 1 of an unknown version ignored" in report
    assert lost.key not in lab.stored


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--kafka", "localhost:9092"], "name one broker"),
        (["--topic", "missing"], "there is no topic missing"),
        (["--claim"], "--claim needs --yes"),
        (["--store", "missing"], "missing"),
        (["--grace", "24"], "'24' is not a duration: use a number with s, m, h or d"),
        (["--ignore-unknown-before", "soon"], "'soon' is not a time"),
    ],
)
def test_usage(lab, arguments, text):
    result = run(*GC, *arguments)
    assert result.exit_code in (2, 3)
    assert text in result.stderr


def test_topics_with_copies_of_messages_are_read_and_similar_ones_are_named(lab):
    for name in ("dlq.orders", "orders-retry", "ORDERS.DLQ", "payments"):
        lab.broker.create_topic(name)
    lab.send(lab.write())
    hint = "  not read: ORDERS.DLQ, dlq.orders: name them with --topic if they have messages with these payloads"
    lines = ok(*GC).stdout.splitlines()
    assert (lines[1], lines[2]) == ("  read: orders (1), orders-retry (0)", hint)
    suffixes = [".dlq", "-DLT", "_dead-letter", ".dead_letters", ".deadletter", "-errors", "-retry", ".Retries"]
    for suffix, (group, number) in itertools.product(suffixes, [("", ""), ("-billing", "-0"), (".eu-1", ".5000")]):
        name = f"orders{group}{suffix}{number}"
        known = ["dlq.orders", "orders", "orders2", name, "orders-v2", "reorders.dlq"]
        assert topics_to_read(["orders"], known) == topics_to_read([name], known) == sorted(["orders", name])
        assert is_dead_letter_topic(name, "orders") == (not group and "retr" not in suffix.lower())
    place = "persistent://orders/default/"  # the namespace is not compared
    known = [f"{place}{name}" for name in ("orders", "my-orders", "payments")]
    assert topics_not_read(known[:1], known) == known[1:2]


def test_kafka_and_pulsar_read_all_partitions_of_the_topic_of_a_dead_letter_topic(monkeypatch):
    known = {name: SimpleNamespace(error=None, partitions=(0, 1)) for name in ("orders", "orders.dlq", "x")}
    admin = SimpleNamespace(list_topics=lambda timeout: SimpleNamespace(topics=known))
    monkeypatch.setattr(vendor, "AdminClient", lambda *_, logger: admin)
    kafka = KafkaTopics(KafkaTarget("localhost:9092", ("orders.dlq",)))
    assert kafka._partitions() == [(name, number) for name in ("orders", "orders.dlq") for number in (0, 1)]
    place = "persistent://public/default/"
    answers = {
        "persistent/public/default/partitioned": [f"{place}orders"],
        "persistent/public/default": [f"{place}{name}" for name in ("orders-partition-0", "orders-s-DLQ", "x")],
        "persistent/public/default/orders/partitions": {"partitions": 2},
    }
    monkeypatch.setattr(PulsarTarget, "admin", lambda _: answers)
    pulsar = PulsarTopics(PulsarTarget("pulsar://localhost", "http://localhost", ("orders-s-DLQ",)))
    names = ("orders-partition-0", "orders-partition-1", "orders-s-DLQ")
    assert pulsar._partitions() == [f"{place}{name}" for name in names]


def test_topics_whose_payloads_have_the_same_keys_have_to_be_named_together(lab):
    lab.write("a/b")
    lab.broker.create_topic("a/b")
    lab.broker.create_topic("a:b")
    assert "name both topics" in run(*GC, "--topic", "a/b").stderr
    assert "1 of 1 entries are orphans" in ok(*GC, "--topic", "a/b", "--topic", "a:b").stdout


# Sweeps ----------------------------------------------------------------------------------------------------------


def expire(here: Path, count: int) -> None:
    """Write payloads whose lifetime ended a minute ago."""
    (here / "claimcheck.yaml").write_text(CONFIG)
    store = FilesystemStore(path=str(here / "claims"), create=True, ttl_seconds=1)
    store.context = StoreContext(name="disk", clock=lambda: time.time() - 61)
    for _ in range(count):
        store.write(b"payload", destination="orders")


def test_it_counts_first_and_deletes_what_has_expired_with_yes(here):
    expire(here, 2)
    alive = put(b"alive")
    counted = ok("sweep", "--grace", "0")
    before = len(claims(here))
    facts = json.loads(ok("sweep", "--yes", "--grace", "0s", "--json").stdout)
    assert counted.stdout.splitlines()[:3] == [
        "disk: 2 of 3 entries expired, 0 leftovers, 14 bytes",
        "  nothing was deleted: use --yes to delete them",
        "  1 kept: not expired, or within the grace period",
    ]
    assert "'side': PulsarTopicStore cannot list" in counted.stdout
    assert (before, facts["ok"], list(facts["not_listed"])) == (3, True, ["side"])
    (disk,) = facts["stores"]
    assert (disk["store"], disk["deleted"], disk["kept"], disk["finished"]) == ("disk", 2, {"alive": 1}, True)
    assert ok("get", "-", stdin=alive).stdout_bytes == b"alive"
    assert len(claims(here)) == 1


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--store", "side"], 1, "cannot list its payloads"),
        (["--store", "disk", "--store", "none"], 3, "no store is called 'none'"),
        (["--store", "missing"], 6, "does not exist on this machine"),
        (["--grace", "soon"], 2, "not a duration"),
        (["--rate", "9999999"], 2, "Invalid value for '--rate'"),
        (["--grace", "99999999999999d"], 3, "grace_seconds"),
    ],
)
def test_wrong_arguments_delete_nothing(here, arguments, code, text):
    expire(here, 1)
    with (here / "claimcheck.yaml").open("a") as file:
        file.write("  missing: {type: filesystem, path: missing}\n")
    result = run("sweep", "--yes", "--grace", "0", *arguments)
    assert (result.exit_code, text in result.stderr) == (code, True), result.stderr
    assert code == 2 or is_one_line(result)
    assert len(claims(here)) == 1


def test_an_entry_that_cannot_be_deleted_is_an_exit_code(here, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    expire(here, 1)
    monkeypatch.setattr(os, "unlink", refuse)
    result = run("sweep", "--yes", "--grace", "0")
    assert (result.exit_code, "1 failed: store 'disk': delete of" in result.stdout) == (1, True)


def test_a_store_that_is_down_does_not_stop_the_others(here):
    expire(here, 2)
    down = 'stores:\n  down: {type: redis, url: "redis://127.0.0.1:1"}'
    (here / "claimcheck.yaml").write_text(CONFIG.replace("stores:", down))
    result = run("sweep", "--grace", "0")
    facts = run("sweep", "--yes", "--grace", "0", "--json")
    assert (result.exit_code, facts.exit_code, is_one_line(facts)) == (6, 6, True)
    assert result.stdout.startswith("down: not swept: store 'down':")
    report = json.loads(facts.stdout)
    down, disk = report["stores"]
    assert (report["ok"], down["finished"], "store 'down'" in down["error"]) == (False, False, True)
    assert (disk["deleted"], disk["finished"], disk["error"], claims(here)) == (2, True, None, [])


@pytest.mark.parametrize(
    ("error", "code", "text", "as_json"),
    [(TimeoutError("no answer"), 6, "no answer", False), (KeyboardInterrupt(), 1, "interrupted", True)],
)
def test_a_sweep_that_ends_early_prints_its_report(here, monkeypatch, error, code, text, as_json):
    expire(here, 3)
    scan = FilesystemStore._scan

    def fail(store):
        yield from itertools.islice(scan(store), 2)
        raise error

    monkeypatch.setattr(FilesystemStore, "_scan", fail)
    result = run("sweep", "--yes", "--grace", "0", "--rate", "2", *["--json"] * as_json)
    assert (result.exit_code, result.stderr.strip() == "Aborted!") == (code, as_json)
    if as_json:
        facts = json.loads(result.stdout)
        disk = facts["stores"][0]
        assert (facts["ok"], disk["deleted"], text in disk["error"]) == (False, 2, True)
    else:
        assert all(words in result.stdout for words in ("at least 2 deleted", "  not finished: ", text))
    assert len(claims(here)) == 1
