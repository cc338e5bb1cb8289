"""A forged message is one bad row, whatever it names; a problem of the whole job fails the task."""

import base64
import json
import random
import sys

import pyarrow as pa
import pytest

import claimcheck
from claimcheck.config import HEADER
from claimcheck.errors import ConfigError, MissingDependencyError, PointerRejectedError, StoreUnavailableError
from claimcheck.spark import map_payloads, reassemble, resolve, resolver
from claimcheck.spark._reading import Reading, ResolveStage
from claimcheck.spark._worker import as_config

FACTS = {"size": 1, "segments": 1, "checksum": "crc32:00000000"}


def forged(raw="", **facts):
    text = raw or json.dumps(FACTS | facts, separators=(",", ":"), ensure_ascii=False)
    return HEADER + b"\x02\x02" + text.encode()


FORGED = {
    "a key of 300 characters": forged(key="a" * 300, store="disk"),
    "a key of 300 bytes": forged(key="\u6f22" * 100, store="disk"),
    "a folder": forged(key="lost+found", store="disk"),
    "a key with an empty part": forged(key="a//b", store="objects"),
    "a key with a long part": forged(key=f"a/{'b' * 256}", store="objects"),
    "another variable that is not set": forged(key="claimcheck:k", store="cold"),
    "a driver that is not installed": forged(key="k", store="tape"),
    "a store that does not exist": forged(key="k", store="nowhere"),
    "a number that JSON does not have": forged(
        '{"key":"k","store":"disk","size":1,"segments":1,"checksum":"crc32:00000000","x":1e400,"mac":"00","key_id":"k"}'
    ),
    "deep": forged('{"key":"k","store":"disk","size":1,"segments":1,"x":' + "[" * 988 + "]" * 988 + "}"),
    "a type that does not exist": HEADER + b"\x09\x01x",
}


class TapeStore(claimcheck.Store):
    """A store whose driver is not installed."""

    def _write(self, pointer, source):
        raise NotImplementedError

    def _read(self, pointer):
        raise MissingDependencyError("no driver", package="tape", extra="tape")

    def _delete(self, pointer):
        raise NotImplementedError


@pytest.fixture
def config(tmp_path):
    (tmp_path / "claims" / "lost+found").mkdir(parents=True)
    return {
        "strategy": "external",
        "store": "disk",
        "stores": {
            "disk": {"type": "filesystem", "path": str(tmp_path / "claims")},
            "objects": {"type": "obstore", "url": "memory:///claims"},
            "cold": {"type": "redis", "url": "redis://:${CLAIMCHECK_TEST_NOT_SET}@localhost"},
            "tape": {"type": f"{__name__}:TapeStore"},
            "away": {"type": "filesystem", "path": str(tmp_path / "not mounted")},
        },
    }


@pytest.fixture
def good(config):
    with claimcheck.from_dict(config) as cc:
        return cc.seal(cc.store("disk").write(b"good"))


def run(config, messages):
    """Run the stage of ``resolve(on_error="null")`` in this process."""
    reading = Reading(
        config=as_config(config), concurrency=1, max_inflight_bytes=1 << 20, out_batch_bytes=1 << 20, on_error="null"
    )
    batch = pa.RecordBatch.from_arrays([pa.array(messages, pa.binary())], names=["value"])
    rows = [out.to_pydict() for out in ResolveStage(reading, 0, ("value",))([batch])]
    return [pair for found in rows for pair in zip(found["a0"], found["a1"], strict=True)]


@pytest.mark.parametrize("message", FORGED.values(), ids=FORGED)
def test_a_forged_message_is_one_bad_row(config, good, message):
    before, bad, after = run(config, [good, message, b"plain"])

    assert (before, after) == ((b"good", None), (b"plain", None))
    assert bad[0] is None
    assert bad[1]["type"] in ("PointerRejectedError", "EnvelopeError", "UnknownVersionError")


ENCRYPTED = {"key_id": "k1", "keys": {"k1": base64.b64encode(b"1" * 32).decode()}, "require": False}


def test_keys_that_this_worker_lacks_fail_it_at_its_start_whatever_the_messages_need(config):
    signing = {"keys": {"s1": "a secret of 16 bytes", "s2": "${CLAIMCHECK_TEST_NOT_SET}"}, "require": False}
    keys = ENCRYPTED["keys"] | {"k2": "${CLAIMCHECK_TEST_NOT_SET}", "k3": "${CLAIMCHECK_TEST_3:-short}"}

    with pytest.raises(ConfigError) as caught:
        run(config | {"signing": signing, "encryption": ENCRYPTED | {"keys": keys}}, [b"plain"])

    names = ["signing.keys.s2", "encryption.keys.k2", "encryption.keys.k3"]
    assert [problem.path for problem in caught.value.problems] == names


def test_a_package_that_the_configuration_needs_fails_the_worker_at_its_start(config, monkeypatch):
    monkeypatch.setitem(sys.modules, "zstandard", None)

    with pytest.raises(MissingDependencyError, match="zstandard"):
        run(config | {"compression": {"codec": "zstd"}}, [b"plain"])


class Refusing:
    """Keys of which a service lets this process use only the first one."""

    def __init__(self, *, keys):
        pass

    def wrap(self, data_key, *, key_id, context):
        return data_key

    def unwrap(self, wrapped, *, key_id, context):
        if key_id != "k1":
            raise ConfigError(f"not allowed to use {key_id}")
        return wrapped

    def describe(self):
        return {}


REFUSING = {"provider": f"{__name__}:Refusing", "key_id": "k1", "keys": {"k1": "1", "k2": "2"}, "require": False}


def test_a_key_id_that_was_changed_is_one_bad_row(config, good, tmp_path):
    """In the store, and in a message."""
    ours, other = b'"key_id":"k1"', b'"key_id":"k2"'
    config = config | {"encryption": REFUSING | {"inline": True}}
    with claimcheck.from_dict(config) as cc, cc.outbound(b"small", destination="orders") as out:
        (envelope,) = out.envelopes
        out.sent(0)
        victim, encrypted = (cc.store("disk").write(payload * 1000) for payload in (b"victim", b"good"))
        messages = [cc.seal(encrypted), cc.seal(victim), envelope.data.replace(ours, other), envelope.data, good]
    path = tmp_path / "claims" / victim.key
    path.write_bytes(path.read_bytes().replace(ours, other))

    before, *bad, after, last = run(config, messages)

    assert (before, after, last) == ((b"good" * 1000, None), (b"small", None), (b"good", None))
    for payload, error in bad:
        assert (payload, error["type"], "'k2'" in error["message"]) == (None, "IntegrityError", True)


@pytest.mark.parametrize("package", ["zstandard", "xxhash"])
def test_a_package_that_only_one_message_needs_is_one_bad_row(config, good, package, monkeypatch):
    pytest.importorskip(package)
    needs = {"zstandard": {"compression": {"min_bytes": 1}}, "xxhash": {"checksum": "xxh3-128"}}
    with claimcheck.from_dict(config | needs[package]) as cc:
        message = cc.seal(cc.store("disk").write(bytes(5000)))
    monkeypatch.setitem(sys.modules, package, None)

    bad, after = run(config, [message, good])

    assert bad[1]["type"] in ("IntegrityError", "PointerRejectedError")
    assert package in bad[1]["message"]
    assert after == (b"good", None)


@pytest.mark.smoke
def test_every_verb_reads_the_same_of_any_mix_of_messages(spark, config):
    """Payloads of any size, plain and null ones, forged ones, and one that is gone: each row is what it is alone."""
    rng, sizes = random.Random(5), [0, 1, 999, 1500, *[300_000] * 3]
    config = config | {"stores": {name: entry for name, entry in config["stores"].items() if name != "tape"}}
    with claimcheck.from_dict(config) as cc:
        store = cc.store("disk")
        stored = [rng.randbytes(size) for size in sizes]
        mixed = [(cc.seal(store.write(payload)), payload, None) for payload in stored]
        gone = store.write(b"gone")
        store.rollback(gone)
        mixed.append((cc.seal(gone), None, "PayloadNotFoundError"))
    mixed += [(message, None, "") for message in FORGED.values()]
    mixed += [(b"plain", b"plain", None), (b"", b"", None), *[(None, None, None)] * 3]
    rng.shuffle(mixed)
    rows = [(n, message and bytearray(message)) for n, (message, _, _) in enumerate(mixed)]
    df = spark.createDataFrame(spark.sparkContext.parallelize(rows, 7), "n int, value binary")
    expected = [payload for _, payload, _ in mixed]

    def check(frame, column, expected):
        found = frame.collect()
        assert [row.n for row in found] == list(range(len(mixed)))
        assert [row[column] for row in found] == expected
        assert [row.value for row in found] == [message for message, _, _ in mixed]
        for row, (_, _, error) in zip(found, mixed, strict=True):
            assert (row.error is None) == (error is None)
            assert not error or row.error.type == error

    resolved = df.transform(resolve("value", config=config, on_error="null"))
    assert resolved.columns == ["n", "value", "payload", "error"]
    check(resolved, "payload", expected)
    for as_file in (True, False):
        read = (lambda file: len(file.read())) if as_file else len
        lengths = map_payloads(read, "bytes int", column="value", config=config, on_error="null", as_file=as_file)
        check(df.transform(lengths), "bytes", [None if each is None else len(each) for each in expected])

    whole = df.transform(reassemble("value", config=config)).sort("n")
    check(whole, "payload", expected)

    rdd = spark.sparkContext.parallelize([message for message, _, _ in mixed], 3)
    kept = rdd.mapPartitions(resolver(config, on_error="skip")).collect()
    assert kept == [payload for _, payload, error in mixed if error is None]


@pytest.mark.parametrize("needed", [{"store": "cold"}, {"reads_from": ["disk", "cold"]}], ids=["store", "reads_from"])
def test_a_store_that_the_job_needs_fails_the_task(config, good, needed):
    with pytest.raises(PointerRejectedError, match="CLAIMCHECK_TEST_NOT_SET"):
        run(config | needed, [good, FORGED["another variable that is not set"]])


def test_a_store_that_readers_may_not_follow_is_never_opened(config, good):
    _, bad = run(config | {"reads_from": ["disk"]}, [good, FORGED["another variable that is not set"]])

    assert bad[1]["type"] == "PointerRejectedError"
    assert "CLAIMCHECK_TEST_NOT_SET" not in bad[1]["message"]


def test_a_store_that_is_down_fails_the_task(config, good):
    with pytest.raises(StoreUnavailableError):
        run(config, [good, forged(key="k", store="away")])
