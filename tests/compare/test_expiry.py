"""What expires first: payloads or their messages."""

import contextlib
import threading
import time
from dataclasses import replace

import pytest

from claimcheck._operate.sweep import Sweep
from tests.benchmarks.compare import expiry
from tests.benchmarks.compare.broker import connect
from tests.benchmarks.compare.expiry import SHORT_SECONDS, Watch, judge, result
from tests.compare.rig import embedded, lab_on

LATER = SHORT_SECONDS + 1
END = SHORT_SECONDS + 7


def redis(url):
    return {"type": "redis", "url": url}


@pytest.mark.slow
def test_a_pointer_outlives_its_payload(tmp_path, fake_redis_url):
    with lab_on(embedded(tmp_path), tmp_path, store=redis(fake_redis_url)) as lab:
        found = expiry.run(lab)
        assert lab.topics == []
    assert found.verdict == "partly"  # nothing is known about the retention
    assert "pointer was still readable when its payload expired" in found.explanation
    assert "cannot be given a retention" in found.explanation
    assert set(found.measured) == {"external", "hybrid"}
    assert SHORT_SECONDS - 0.25 <= found.facts["payload_lost_seconds/external/short_lifetime"] < LATER + 1
    assert "messages_lost_seconds/external/short_lifetime" not in found.facts


@pytest.mark.slow
def test_a_store_that_deletes_nothing_by_itself_is_swept(tmp_path):
    with lab_on(embedded(tmp_path), tmp_path) as lab:
        found = expiry.run(lab)
    assert found.verdict == "partly"
    assert "kept the payload until it was swept" in found.explanation
    assert "by a sweep" in found.measured["external"]
    assert found.facts["payload_lost_seconds/external/short_lifetime"] >= SHORT_SECONDS
    assert found.facts["stored_without_message"] == 0


@pytest.mark.slow
def test_a_store_that_keeps_payloads_is_seen(tmp_path, monkeypatch):
    monkeypatch.setattr(expiry, "Sweep", lambda **options: Sweep(**options | {"grace_seconds": 3600}))
    with lab_on(embedded(tmp_path), tmp_path) as lab:
        found = expiry.run(lab)
    assert found.verdict == "not measured"
    assert "kept the payload beyond its lifetime" in found.explanation


class Clock:
    """Monotonic seconds, and those that a test adds."""

    def __init__(self):
        self.added = 0.0

    def __call__(self):
        return time.monotonic() + self.added


class DeletesWhileRead:
    """A broker whose retention deletes a topic while a consumer waits, for longer than two looks are apart."""

    has_retention, retention_source = True, "the test's"

    def __init__(self, broker, clock):
        self._broker, self._clock, self._deleted = broker, clock, set()

    def __getattr__(self, name):
        return getattr(self._broker, name)

    def create_topic(self, topic, settings):
        self._broker.create_topic(topic, replace(settings, retention_seconds=None))

    def readable_messages(self, topic):
        return 0 if topic in self._deleted else self._broker.readable_messages(topic)

    def consumer(self, mode, topic, cc, **options):
        consumer = self._broker.consumer(mode, topic, cc, **options)
        seek = consumer.seek

        def receive_nothing(timeout):
            self._clock.added += 3600
            self._deleted.add(topic)

        def seek_and_lose(partition, position):
            seek(partition, position)
            consumer.receive = receive_nothing

        consumer.seek = seek_and_lose
        return consumer


def test_what_is_lost_within_one_look_is_lost_together(tmp_path):
    clock = Clock()
    broker = DeletesWhileRead(embedded(tmp_path), clock)
    with lab_on(broker, tmp_path, clock=clock) as lab, contextlib.ExitStack() as stack:
        watcher = expiry._Watcher(lab, "native", "short retention", stack, threading.Event())
        watcher.join()
        watcher.observe()
    assert watcher.watch.payload_lost == watcher.watch.messages_lost


@pytest.mark.slow
def test_a_broker_that_loses_pointers_is_seen(tmp_path, fake_redis_url):
    class Forgetful:
        def __init__(self, broker):
            self._broker = broker

        def __getattr__(self, name):
            return getattr(self._broker, name)

        def readable_messages(self, topic):
            return 0

    with lab_on(Forgetful(embedded(tmp_path)), tmp_path, store=redis(fake_redis_url)) as lab:
        found = expiry.run(lab)
    assert found.verdict == "disagrees"


def watches(payload=LATER, pointer=None, chunks=LATER, chunked=LATER):
    return (
        Watch("external", "short lifetime", payload, pointer, END),
        Watch("chunking", "short retention", chunked, chunks, END),
    )


@pytest.mark.parametrize(
    ("observed", "verdict"),
    [
        (watches(), "agrees"),
        (watches(pointer=LATER - 0.5), "partly"),  # the pointer was lost first
        (watches(payload=0.5), "partly"),  # the payload was lost too early
        (watches(payload=None), "partly"),  # the store deletes nothing
        (watches(chunks=None), "partly"),  # a payload was lost while all of its chunks were there
        (watches(chunked=None), "partly"),  # a payload was read without its chunks
        (watches(pointer=LATER - 0.5, chunks=None), "disagrees"),
        (watches(payload=None, chunks=None, chunked=None), "not measured"),
        ((), "not measured"),
    ],
)
def test_verdicts(observed, verdict):
    assert judge(observed)[0] == verdict


def test_payloads_that_outlive_their_messages_are_counted():
    observed = (
        Watch("external", "short lifetime", LATER, None, END),  # expired
        Watch("hybrid", "short lifetime", None, None, END),  # there, with its message
        Watch("external", "short retention", LATER, LATER, END),
    )
    assert result(observed, retention="r", stored=2).facts["stored_without_message"] == 1
    assert "stored_without_message" not in result(observed, retention="r", stored=None).facts


def test_on_real_brokers(real_address, redis_url, tmp_path):
    with lab_on(connect(real_address), tmp_path, store=redis(redis_url)) as lab:
        found = expiry.run(lab)
    assert found.verdict == "agrees", found
    assert set(found.measured) == {"external", "chunking", "hybrid", "native"}
    lost_first = {(row[0], row[1]): row[-1] for row in found.rows}
    assert lost_first["external", "short lifetime"] == "payload"
    assert all(lost_first[mode, "short retention"] == "both" for mode in found.measured)
