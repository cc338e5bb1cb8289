"""Send a DataFrame with large rows through a topic, and read it back unchanged.

    python examples/spark/round_trip.py [--rows 60] [--pulsar URL | --kafka SERVERS]

The executors write the payloads to the store; the topic carries envelopes of a few hundred bytes.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from pathlib import Path

from brokers import arguments_of, config_of, create, session, topic_of

from claimcheck.spark import offload, resolve


def main(arguments: argparse.Namespace, work: Path) -> None:
    """Write, read, compare."""
    spark = session(arguments)
    sizes = random.Random(7).choices([0, 100, 9_000, 200_000, 3_000_000], k=arguments.rows)
    rows = [(f"row-{number:04}", random.Random(number).randbytes(size)) for number, size in enumerate(sizes)]
    df = spark.createDataFrame(spark.sparkContext.parallelize(rows, 4), "key string, payload binary")

    topic, config = topic_of(arguments, work), config_of(work / "claims")
    create(arguments, topic)
    messages = df.transform(offload("payload", destination=topic.name, config=config, key="key"))
    topic.write(messages.select("key", "value", "headers"))

    read = topic.read(spark).selectExpr("CAST(key AS STRING) AS key", "value")
    back = read.transform(resolve("value", config=config))
    digests = "key", "length(payload) AS bytes", "sha2(payload, 256) AS digest"
    sent, received = df.selectExpr(*digests), back.selectExpr(*digests)
    assert sent.exceptAll(received).isEmpty()
    assert received.exceptAll(sent).isEmpty()
    total, largest = read.selectExpr("sum(length(value))", "max(length(value))").first() or (0, 0)
    print(
        f"{len(rows)} rows of {sum(sizes):,} bytes went as {total:,} bytes, the largest message {largest:,}; all equal"
    )
    spark.stop()


if __name__ == "__main__":
    parser = arguments_of(__doc__)
    parser.add_argument("--rows", type=int, default=60)
    with tempfile.TemporaryDirectory() as folder:
        main(parser.parse_args(), Path(folder))
