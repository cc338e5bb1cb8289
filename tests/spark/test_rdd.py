"""``rdd.mapPartitions(resolver(...))``, with Spark where processes matter, otherwise without."""

from __future__ import annotations

import os
import pickle
import random
import shutil

import pytest
import yaml

import claimcheck
from claimcheck import from_dict
from claimcheck.errors import (
    ChunkError,
    ConfigError,
    EnvelopeError,
    PayloadNotFoundError,
    PayloadTypeError,
    PointerRejectedError,
    StoreError,
    StoreUnavailableError,
)
from claimcheck.spark import resolver
from claimcheck.stores import filesystem
from tests.spark.rig import remove_stored

CHUNKING = {"strategy": "chunking", "chunking": {"max_message_bytes": 1000}}


def payloads(count: int) -> list[bytes]:
    """Return payloads around the threshold, with an empty one and a look-alike."""
    rng = random.Random(7)
    some = [rng.randbytes(rng.choice([1, 500, 5_000, 200_000])) for _ in range(count - 2)]
    return [b"", *some, b"PRF_wdkafcli_header_\x02 but not really"]


# In Spark -------------------------------------------------------------------------------------------------------


def test_payloads_come_back_in_order_through_spark(sc, config, send):
    wanted = payloads(40)
    messages = [message for payload in wanted for message in send(payload)]

    got = sc.parallelize(messages, 3).mapPartitions(resolver(config)).collect()

    assert got == wanted
    assert all(type(payload) is bytes for payload in got)


def test_pairs_keep_what_stands_beside_the_message(sc, config, send):
    pairs = [(n, send(bytes([n]) * 3000)[0]) for n in range(10)]

    got = sc.parallelize(pairs, 2).mapPartitions(resolver(config, keyed=True)).mapValues(lambda p: (p[0], len(p)))

    assert got.collect() == [(n, (n, 3000)) for n in range(10)]


def test_the_placeholders_of_a_file_are_resolved_in_the_worker(sc, config, send, tmp_path):
    message = send(b"x" * 5000)[0]
    config["stores"]["disk"]["path"] = f"${{CLAIMS_OF_NOBODY:-{tmp_path / 'claims'}}}"
    path = tmp_path / "claimcheck.yaml"
    path.write_text(yaml.safe_dump(config))
    resolve = resolver(path)
    path.unlink()  # the file is read once, here

    assert sc.parallelize([message], 1).mapPartitions(resolve).collect() == [b"x" * 5000]
    assert b"CLAIMS_OF_NOBODY" in pickle.dumps(resolve)


def test_take_fetches_little_more_than_it_shows(sc, config, send):
    messages = [send(bytes(2000))[0] for _ in range(200)]
    fetched = sc.accumulator(0)

    def count(elements):
        for element in elements:
            fetched.add(1)
            yield element

    rdd = sc.parallelize(messages, 1).mapPartitions(count).mapPartitions(resolver(config))

    assert rdd.take(1) == [bytes(2000)]
    assert fetched.value <= 2


def test_one_worker_process_opens_a_configuration_once(sc, config, send):
    messages = [send(bytes([n]) * 2000)[0] for n in range(8)]
    resolve = resolver(config)

    def identity(elements):
        import os

        from claimcheck.spark import _worker as worker

        total = sum(len(payload) for payload in resolve(elements))
        yield os.getpid(), id(worker.claim_check(resolve.reading.config)), total

    seen = [each for _ in range(3) for each in sc.parallelize(messages, 4).mapPartitions(identity).collect()]

    assert sum(total for *_, total in seen) == 3 * 8 * 2000
    assert len({pid for pid, *_ in seen}) == len({(pid, place) for pid, place, _ in seen})


# The callable ---------------------------------------------------------------------------------------------------


def test_it_is_lazy(config, send):
    def source():
        yield send(b"first" * 1000)[0]
        raise AssertionError("read too early")

    results = resolver(config)(source())

    assert next(results) == b"first" * 1000
    results.close()


@pytest.mark.parametrize("make", [dict, claimcheck.from_dict, lambda raw: claimcheck.from_dict(raw).config])
def test_a_configuration_in_any_form(make, config, send):
    assert list(resolver(make(config))(iter(send(bytes(3000))))) == [bytes(3000)]


def test_null_stays_null(config):
    assert list(resolver(config)([None, b"x", None])) == [None, b"x", None]
    assert list(resolver(config, keyed=True)([("k", None)])) == [("k", None)]


def test_bytearrays_as_older_sparks_hand_them_out(config, send):
    got = list(resolver(config)([bytearray(b"plain"), bytearray(send(bytes(3000))[0])]))

    assert got == [b"plain", bytes(3000)]
    assert [type(payload) for payload in got] == [bytes, bytes]


def test_it_pickles_as_names_and_stays_small(config):
    resolve = pickle.loads(pickle.dumps(resolver(config)))

    assert resolve == resolver(config)
    assert len(pickle.dumps(resolve)) < 3000


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (b"PRF_wdkafcli_header_\x09", EnvelopeError),
        (b"PRF_wdkafcli_header_\x02\x02{", EnvelopeError),
        (
            b'PRF_wdkafcli_header_\x02\x02{"checksum":"crc32:0","key":"k","segments":1,"size":1,"store":"elsewhere"}',
            PointerRejectedError,
        ),
        (
            b'PRF_wdkafcli_header_\x02\x02{"checksum":"crc32:0","key":"../k","segments":1,"size":1,"store":"disk"}',
            PointerRejectedError,
        ),
    ],
)
def test_bad_messages_raise_their_own_error_or_are_skipped(config, message, error, caplog):
    with pytest.raises(error):
        list(resolver(config)([message]))

    assert list(resolver(config, on_error="skip")([b"a", message, b"b"])) == [b"a", b"b"]
    assert error.__name__ in caplog.text


def test_skipping_leaves_out_what_is_gone(config, send):
    messages = [b"small", *send(bytes(3000))]
    remove_stored(config)

    assert list(resolver(config, on_error="skip", keyed=True)(enumerate(messages))) == [(0, b"small")]
    with pytest.raises(PayloadNotFoundError):
        list(resolver(config)(messages))


def test_a_store_that_is_out_of_reach_is_never_skipped(config, send):
    messages = send(bytes(3000))
    shutil.rmtree(config["stores"]["disk"]["path"])

    with pytest.raises(StoreUnavailableError):
        list(resolver(config, on_error="skip")(messages))


def test_a_chunk_is_refused_and_the_way_out_is_named(config, send):
    with pytest.raises(ChunkError) as caught:
        list(resolver(config)(send(bytes(3000), **CHUNKING)))

    assert "claimcheck.spark.reassemble" in str(caught.value)


@pytest.mark.parametrize("element", ["text", 5, ("key", b"value")])
def test_elements_that_are_no_messages(config, element):
    with pytest.raises(PayloadTypeError):
        list(resolver(config)([element]))


@pytest.mark.parametrize("element", [b"xy", (1, 2, 3), None])
def test_elements_that_are_no_pairs(config, element):
    with pytest.raises((PayloadTypeError, TypeError, ValueError)):
        list(resolver(config, keyed=True)([element]))


# Options --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"on_error": "null"},
        {"max_inflight_bytes": 0},
    ],
)
def test_wrong_options_are_refused_on_the_driver(config, options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        resolver(config, **options)


def test_a_wrong_configuration_is_refused_on_the_driver(config, tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere\.yaml"):
        resolver(tmp_path / "nowhere.yaml")
    with pytest.raises(ConfigError, match="strategy"):
        resolver(config | {"strategy": "telepathy"})


@pytest.mark.parametrize("on_error", ["skip", "fail"])
def test_what_is_no_fault_of_a_message_fails_the_task(config, send, monkeypatch, on_error):
    messages = send(bytes(3000))
    elsewhere = {**config, "stores": {"disk": {**config["stores"]["disk"], "path": "${NOT_SET_ON_THIS_WORKER}"}}}
    monkeypatch.delenv("NOT_SET_ON_THIS_WORKER", raising=False)

    with pytest.raises(PointerRejectedError, match="NOT_SET_ON_THIS_WORKER"):
        list(resolver(elsewhere, on_error=on_error)([b"plain", *messages]))


def test_a_store_that_may_not_be_read_fails_the_task(config, send, monkeypatch):
    messages = send(bytes(3000))

    def refused(*args, **options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(filesystem, "open_without_links", lambda *_: None)
    monkeypatch.setattr(os, "open", refused)
    with pytest.raises(StoreError, match="Permission denied"):
        list(resolver(config, on_error="skip")(messages))


# A side topic of a real Pulsar -------------------------------------------------------------------------------------


def test_workers_read_the_side_topic(spark, pulsar_broker, pulsar_client, topic):
    pulsar_client.create_producer(topic).close()
    pulsar_broker.set_policy(topic, "retention", {"retentionTimeInMinutes": 60, "retentionSizeInMB": -1})
    side = {"type": "pulsar-topic", "url": pulsar_broker.service_url, "topic": topic, "segment_bytes": 50_000}
    raw = {"strategy": "external", "stores": {"side": side}}
    payloads = [bytes([i]) * 200_000 for i in range(6)]
    with from_dict(raw) as cc:
        messages = [cc.seal(cc.store("side").write(payload)) for payload in payloads]

    got = spark.sparkContext.parallelize(messages, 3).mapPartitions(resolver(raw)).map(bytes).collect()

    assert got == payloads
