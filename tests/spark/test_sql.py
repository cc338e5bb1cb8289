"""The function `claimcheck_resolve` in SQL, and columns that are fields of structs."""

from __future__ import annotations

import pytest

from claimcheck.errors import ConfigError
from claimcheck.spark import map_payloads, register, repartition_by_payload, resolve
from tests.spark.rig import failure, remove_stored
from tests.spark.test_signing import MAP, PAYLOADS, SIGNING, envelopes, frame, rows

MIB = 1 << 20


def test_sql_resolves_a_column_and_fetches_each_payload_once(spark, config, send):
    messages = [(n, send(bytes([n]) * (n * MIB))[0]) for n in range(9)]
    spark.createDataFrame([*messages, (9, b"plain"), (10, None)], "n int, value binary").createOrReplaceTempView("sent")

    register(spark, config)
    register(spark, config)
    found = spark.sql("SELECT n, length(p) AS size, sha2(p, 256) AS sum FROM (SELECT n, claimcheck_resolve(value) AS p "
                      "FROM sent) WHERE coalesce(length(p), 0) >= 0 ORDER BY n")  # fmt: skip

    assert [row["size"] for row in found.collect()] == [n * MIB for n in range(9)] + [5, None]
    assert found._jdf.queryExecution().optimizedPlan().toString().count("claimcheck_resolve(value") == 1
    remove_stored(config)
    again = spark.sql("SELECT claimcheck_resolve(value) FROM sent")
    assert "PayloadNotFoundError" in failure(again.collect)
    four = spark.sql("SELECT claimcheck_resolve(value, null, '', '') FROM sent")
    assert "PayloadTypeError: claimcheck_resolve takes value" in failure(four.collect)


def test_sql_checks_signatures_with_the_topic_and_the_headers_of_kafka_or_pulsar(spark, config):
    config |= {"signing": SIGNING | {"require": True}}
    literal, _ = envelopes(config, PAYLOADS[0][:10] + b"", threshold_bytes=1000)
    pointer, _ = envelopes(config, PAYLOADS[1])
    frame(spark, rows(literal), rows(pointer)).createOrReplaceTempView("signed")
    register(spark, config)

    for headers in ("headers", MAP):
        sizes = spark.sql(f"SELECT length(claimcheck_resolve(value, {headers}, topic)) AS size FROM signed").collect()
        assert [row["size"] for row in sizes] == [10, 5000]
    for wrong in ("5", "value, 5", "value, topic"):
        query = spark.sql(f"SELECT claimcheck_resolve({wrong}) FROM signed")
        assert "PayloadTypeError: claimcheck_resolve takes value" in failure(query.collect)
    for arguments in ("value", "value, headers", "value, headers, 'salaries'"):
        words = "PointerRejectedError"
        assert words in failure(
            spark.sql(f"SELECT claimcheck_resolve({arguments}) FROM signed WHERE length(value) > 50").collect
        )


def test_a_field_of_a_struct_is_a_column(spark, config, send):
    values = [send(bytes(4000))[0], b"plain", None]
    flat = spark.createDataFrame(list(enumerate(values)), "n int, value binary").coalesce(1)
    nested = flat.selectExpr("n", "if(n = 1, null, struct(n, struct(value AS `V`) AS b)) AS a", "value AS `a.b.w`")

    found = nested.transform(resolve("A.b.v", config=config))
    named = nested.transform(resolve("a.b.w", config=config))

    assert found.columns == ["n", "a", "a.b.w", "payload"]
    assert [row.payload and len(row.payload) for row in found.collect()] == [4000, None, None]
    assert [row.payload and len(row.payload) for row in named.collect()] == [4000, 5, None]
    sized = nested.transform(repartition_by_payload("a.b.v", config=config)).transform(
        map_payloads(len, "size int", column="a.b.v", config=config)
    )
    assert sorted((row.n, row["size"]) for row in sized.collect()) == [(0, 4000), (1, None), (2, None)]
    for column, words in (
        ("a.c.v", r"found 'a\.c\.v', expected exactly one field of its column \(n, b\)"),
        ("a.n", "of type int, expected a column of type binary"),
        ("n.a", r"exactly one field of its column \(none\)"),
        ("c.v", "exactly one column of the DataFrame"),
    ):
        with pytest.raises(ConfigError, match=words):
            nested.transform(resolve(column, config=config))
