"""Turn a topic with documents of any size into a table of statistics: words, lines, the longest word.

    python examples/spark/text_statistics.py [FOLDER] [--pulsar URL | --kafka SERVERS]

The first half plays the producers. The second half is the job: Python workers fetch and process each document, and only
the results reach Spark and Parquet.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from brokers import arguments_of, config_of, create, send, session, topic_of

import claimcheck
from claimcheck.spark import Metrics, map_payloads, progress, repartition_by_payload


def statistics(document: bytes) -> dict[str, Any]:
    """Return the statistics of one document, which should be UTF-8 text."""
    words = document.decode("utf-8").split()
    return {
        "bytes": len(document),
        "lines": document.count(b"\n"),
        "words": len(words),
        "longest_word": max(words, key=len, default="")[:40],
    }


def main(arguments: argparse.Namespace, work: Path) -> None:
    """Send, process, show."""
    files = [path for path in sorted(arguments.folder.rglob("*")) if path.suffix in (".py", ".md", ".txt")]
    topic, config = topic_of(arguments, work), config_of(work / "claims")
    create(arguments, topic)
    with claimcheck.from_dict(config) as cc:
        send(arguments, topic, cc, files)

    spark = session(arguments)
    metrics = Metrics(spark)
    found = (
        topic.read(spark)
        .selectExpr("CAST(key AS STRING) AS name", "value")
        .transform(repartition_by_payload("value", config=config, target_bytes=1 << 20))
        .transform(
            map_payloads(
                statistics,
                "bytes long, lines long, words long, longest_word string",
                column="value",
                config=config,
                on_error="null",  # documents that are not text stay in the table, with an error
                metrics=metrics,
            )
        )
    )
    table = str(work / "statistics.parquet")
    with progress(metrics):
        found.drop("value").write.parquet(table)

    result = spark.read.parquet(table)
    result.orderBy("words", ascending=False).show(10, truncate=30)
    total = result.selectExpr("count(*)", "sum(bytes)", "sum(words)", "count(error)").first()
    assert total is not None
    assert total[0] == len(files)
    print(f"{total[0]} documents, {total[1]:,} bytes, {total[2]:,} words, {total[3]} that are not text")
    print(f"{metrics.store_bytes.get('disk', 0):,} bytes came from the store, the rest from the messages")
    spark.stop()


if __name__ == "__main__":
    parser = arguments_of(__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=Path(claimcheck.__file__).parent)
    with tempfile.TemporaryDirectory() as folder:
        main(parser.parse_args(), Path(folder))
