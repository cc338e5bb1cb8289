"""``df.transform(repartition_by_payload(...))`` balances partitions by payload bytes."""

from __future__ import annotations

import pytest

import claimcheck
from claimcheck._wire.pointer import Pointer
from claimcheck.errors import ConfigError
from claimcheck.spark import repartition_by_payload
from tests.spark.rig import frame


def pointing(config, sizes):
    """Return messages with pointers that declare these sizes, without payloads."""
    cc = claimcheck.from_dict(config)
    return [
        cc.seal(Pointer(key=f"orders-{n}", store="disk", size=size, checksum="crc32:0")) for n, size in enumerate(sizes)
    ]


def partitions_of(df):
    """Return the rows of each partition."""
    from pyspark.sql import functions as F  # noqa: N812

    found = {}
    for row in df.select("n", F.spark_partition_id().alias("at")).collect():
        found.setdefault(row["at"], []).append(row["n"])
    return found


@pytest.mark.parametrize("partitions", [1, 3])
def test_partitions_have_about_as_many_payload_bytes(spark, config, partitions):
    sizes = [100, 900, 50, 50, 4000, *[10] * 200, 700, 1000]
    df = frame(spark, pointing(config, sizes), partitions)

    spread = df.transform(repartition_by_payload("value", config=config, target_bytes=1000))
    found = partitions_of(spread)

    assert sorted(n for rows in found.values() for n in rows) == list(range(len(sizes)))
    assert spread.columns == ["n", "value"]
    for rows in found.values():
        assert sum(sizes[n] for n in rows) <= 1000 or len(rows) == 1
    assert len(found) >= 5
    assert max(len(rows) for rows in found.values()) < 150


def test_a_thousand_pointers_of_many_gigabytes(spark, config):
    df = frame(spark, pointing(config, [1 << 30] * 300))

    found = partitions_of(df.transform(repartition_by_payload("value", config=config, target_bytes=4 << 30)))

    assert {len(rows) for rows in found.values()} == {4}
    assert len(found) == 75


def test_plain_messages_nulls_and_damage_count_as_what_they_are(spark, config):
    messages = [
        b"x" * 800,
        None,
        b"PRF_wdkafcli_header_\x02\x02{",
        b"y" * 800,
        b"PRF_wdkafcli_header_\x02\x01\0\0\0\x01k",
    ]
    df = frame(spark, messages)

    found = partitions_of(df.transform(repartition_by_payload("value", config=config, target_bytes=700)))

    assert sorted(n for rows in found.values() for n in rows) == [0, 1, 2, 3, 4]
    assert not any({0, 3} <= set(rows) for rows in found.values())


def test_sizes_that_nobody_would_follow_count_for_nothing(spark, config):
    """Pointers are untrusted: one that declares 2**62 bytes must not create endless partitions."""
    df = frame(spark, pointing(config, [1 << 62, 10, 10]), 2)

    spread = df.transform(repartition_by_payload("value", config=config, target_bytes=100_000))

    assert spread.rdd.getNumPartitions() == 1
    assert spread.count() == 3


def test_there_are_never_more_partitions_than_rows(spark, config):
    df = frame(spark, pointing(config, [1 << 30] * 6), 2)

    spread = df.transform(repartition_by_payload("value", config=config, target_bytes=1))

    assert spread.rdd.getNumPartitions() == 6
    assert {len(rows) for rows in partitions_of(spread).values()} == {1}


def test_what_partitions_have_left_over_is_put_together(spark, config):
    df = frame(spark, pointing(config, [10] * 40), 8)

    assert len(partitions_of(df.transform(repartition_by_payload("value", config=config, target_bytes=250)))) == 2


def test_no_rows_are_no_error(spark, config):
    assert frame(spark, []).transform(repartition_by_payload("value", config=config)).count() == 0


def test_mistakes_are_told_on_the_driver(spark, config, tmp_path):
    stream = spark.readStream.schema("value binary").parquet(str(tmp_path))

    with pytest.raises(ConfigError, match="a stream"):
        stream.transform(repartition_by_payload("value", config=config))
    with pytest.raises(ConfigError, match="of type int"):
        frame(spark, []).transform(repartition_by_payload("n", config=config))
    with pytest.raises(ConfigError, match="target_bytes"):
        repartition_by_payload("value", config=config, target_bytes=0)
