"""Count the words of documents of any size with Spark, from envelopes of a few hundred bytes.

    python examples/spark_job.py [FOLDER]

The first half plays the producer: it turns every text file of a folder into a message. The second half is the job: it
resolves the messages on the executors, as a DataFrame and as an RDD.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import claimcheck
from claimcheck.spark import ensure_java, resolve, resolver


def messages_of(folder: Path, cc: claimcheck.ClaimCheck) -> list[tuple[str, bytes]]:
    """Return the messages as a broker would carry them: a name, and a plain message or a pointer."""
    rows = []
    for path in sorted(folder.glob("*.py")):
        with path.open("rb") as file, cc.outbound(file, destination="documents", key=path.name) as out:
            rows += [(path.name, bytes(envelope.data)) for envelope in out.envelopes]
    return rows


def main(folder: Path) -> None:
    """Send, resolve as a DataFrame and as an RDD, compare."""
    ensure_java()
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F  # noqa: N812 - the usual name

    with tempfile.TemporaryDirectory() as work:
        stores = {"disk": {"type": "filesystem", "path": work}}
        cc = claimcheck.from_dict({"strategy": "external", "threshold_bytes": 1000, "stores": stores})
        rows = messages_of(folder, cc)

        spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")
        df = spark.createDataFrame(rows, "name string, value binary").transform(resolve("value", config=cc))
        words = F.size(F.split(F.decode("payload", "UTF-8"), r"\s+"))
        sizes = [F.length(name).alias(name) for name in ("value", "payload")]
        df.select("name", *sizes, words.alias("words")).show(truncate=40)

        payloads = spark.sparkContext.parallelize([value for _, value in rows], 2).mapPartitions(resolver(cc))
        total = payloads.map(len).sum()
        assert total == sum(path.stat().st_size for path in folder.glob("*.py"))
        print(f"{len(rows)} documents, {total:,} bytes, {sum(len(value) for _, value in rows):,} in messages")
        spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
