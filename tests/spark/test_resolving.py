"""`resolver` for RDDs, with Spark where processes matter; and the stages of `resolve` and `reassemble` without it."""

from __future__ import annotations

import os
import pickle
import shutil

import pytest
import yaml

import claimcheck
from claimcheck._wire.pointer import Pointer
from claimcheck.errors import (
    ChunkError,
    ConfigError,
    EnvelopeError,
    PayloadNotFoundError,
    PayloadTooLargeError,
    StoreError,
    StoreUnavailableError,
)
from claimcheck.spark import resolver
from claimcheck.spark._columns import MAX_COLUMN_BYTES
from claimcheck.spark._reading import Reading, ResolveStage, reject_oversized
from claimcheck.spark._reassemble import _ReassembleStage
from claimcheck.spark._reassemble_common import ColumnIndexes
from claimcheck.spark._worker import as_config
from claimcheck.stores import filesystem
from tests.spark.rig import remove_stored

# Stages -----------------------------------------------------------------------------------------------------------


def in_stage(verb, config, messages, kind):
    """Run the stage of a verb on two batches; return the column of payloads of each batch that comes out."""
    import pyarrow as pa

    options = {"concurrency": 1, "max_inflight_bytes": 1 << 20, "out_batch_bytes": 10_000}
    reading = Reading(config=as_config(config), **options)
    stages = {
        "resolve": ResolveStage(reading, 0, ("value",)),
        "reassemble": _ReassembleStage(reading, ColumnIndexes(0, ())),
    }
    columns = {"value": pa.array(messages, kind)}
    if verb == "reassemble":
        empty = {"uuid": pa.string(), "position": pa.int32(), "declared": pa.string()}
        columns |= {name: pa.nulls(len(messages), each) for name, each in empty.items()}
    batch = pa.RecordBatch.from_pydict(columns)
    name = "a0" if verb == "resolve" else "payload"
    return [each.column(each.schema.names.index(name)) for each in pickle.loads(pickle.dumps(stages[verb]))([batch])]


@pytest.mark.parametrize("verb", ["resolve", "reassemble"])
@pytest.mark.parametrize("kind", ["binary", "large_binary"])
def test_batches_are_cut_by_bytes_and_keep_their_type(config, send, verb, kind):
    sizes = [4000, 4000, 4000, 20_000, 10, 10, 4000]

    found = in_stage(verb, config, [send(bytes(size))[0] for size in sizes], kind)

    assert [[len(payload.as_py()) for payload in column] for column in found] == [
        [4000, 4000], [4000], [20_000], [10, 10, 4000]
    ]  # fmt: skip
    assert {str(column.type) for column in found} == {kind}


def test_a_payload_that_fits_no_column_is_refused_before_any_io():
    with pytest.raises(PayloadTooLargeError, match="map_payloads") as caught:
        reject_oversized(Pointer(key="k", store="disk", size=2 << 30))

    assert (caught.value.size, caught.value.limit) == (2 << 30, MAX_COLUMN_BYTES)


# In Spark -------------------------------------------------------------------------------------------------------


def test_pairs_keep_what_stands_beside_the_message_and_placeholders_are_resolved_in_the_worker(
    sc, config, send, tmp_path
):
    pairs = [(n, send(bytes([n]) * 3000)[0]) for n in range(10)]
    config["stores"]["disk"]["path"] = f"${{CLAIMS_OF_NOBODY:-{tmp_path / 'claims'}}}"
    path = tmp_path / "claimcheck.yaml"
    path.write_text(yaml.safe_dump(config))
    made = resolver(path, keyed=True)
    path.unlink()  # the file is read once, here

    got = sc.parallelize(pairs, 2).mapPartitions(made).mapValues(lambda payload: (payload[0], len(payload)))

    assert got.collect() == [(n, (n, 3000)) for n in range(10)]
    assert b"CLAIMS_OF_NOBODY" in pickle.dumps(made)
    assert len(pickle.dumps(made)) < 3000


# The callable ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [dict, claimcheck.from_dict, lambda raw: claimcheck.from_dict(raw).config])
def test_a_configuration_in_any_form(make, config, send):
    assert list(resolver(make(config))([*send(bytes(3000)), None])) == [bytes(3000), None]
    assert list(resolver(make(config), keyed=True)([("k", None)])) == [("k", None)]


def test_bytearrays_as_older_sparks_hand_them_out(config, send):
    got = list(resolver(config)([bytearray(b"plain"), bytearray(send(bytes(3000))[0])]))

    assert [(type(payload), payload) for payload in got] == [(bytes, b"plain"), (bytes, bytes(3000))]


def test_skipping_leaves_out_what_is_gone_or_damaged_but_never_a_store_out_of_reach(config, send, caplog):
    gone, damaged = send(bytes(3000)), b"PRF_wdkafcli_header_\x09"
    chunk = send(bytes(3000), strategy="chunking", chunking={"max_message_bytes": 1000})[0]
    remove_stored(config)

    skipping = resolver(config, on_error="skip", keyed=True)
    assert list(skipping(enumerate([b"small", *gone, damaged]))) == [(0, b"small")]
    assert "EnvelopeError" in caplog.text
    for message, error, words in (
        (gone[0], PayloadNotFoundError, None),
        (damaged, EnvelopeError, None),
        (chunk, ChunkError, "claimcheck.spark.reassemble"),
    ):
        with pytest.raises(error, match=words):
            list(resolver(config)([message]))
    shutil.rmtree(config["stores"]["disk"]["path"])
    with pytest.raises(StoreUnavailableError):
        list(skipping(enumerate(gone)))


def test_a_store_that_may_not_be_read_fails_the_task(config, send, monkeypatch):
    messages = send(bytes(3000))

    def refused(*args, **options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(filesystem, "open_without_links", lambda *_: None)
    monkeypatch.setattr(os, "open", refused)
    with pytest.raises(StoreError, match="Permission denied"):
        list(resolver(config, on_error="skip")(messages))


def test_a_wrong_configuration_or_option_is_refused_on_the_driver(config, tmp_path):
    for options in ({"on_error": "null"}, {"max_inflight_bytes": 0}):
        with pytest.raises(ConfigError, match=next(iter(options))):
            resolver(config, **options)
    with pytest.raises(ConfigError, match=r"nowhere\.yaml"):
        resolver(tmp_path / "nowhere.yaml")
    with pytest.raises(ConfigError, match="strategy"):
        resolver(config | {"strategy": "telepathy"})
