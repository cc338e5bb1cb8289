"""Offloads, resolves and reassembles encrypted payloads; test_encryption_leaks.py runs ``encryption_child.py FOLDER``.

The folder has ``job.json`` with the configurations, and ``input``. Everything that Spark writes goes there, too.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import sha2

from claimcheck.spark import ensure_java, offload, reassemble, resolve

FOLDER = Path(sys.argv[1])
job = json.loads((FOLDER / "job.json").read_text())
ensure_java()
builder = SparkSession.builder.master("local[2]").appName("encryption-child")
options = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.eventLog.enabled": "true",
    "spark.eventLog.dir": (FOLDER / "events").as_uri(),
    "spark.eventLog.compress": "false",
    "spark.sql.parquet.compression.codec": "uncompressed",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
}
for name, value in options.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
spark.sparkContext.setLogLevel("INFO")


def digests(df: DataFrame, name: str) -> None:
    df.select("n", sha2("payload", 256).alias("digest")).write.mode("append").parquet(str(FOLDER / name))


def read(name: str) -> DataFrame:
    return spark.read.parquet(str(FOLDER / name))


for strategy in ("external", "chunking"):
    sent = read("input").transform(offload("payload", destination="orders", config=job[strategy], key="key"))
    sent.write.parquet(str(FOLDER / strategy))
    sent.explain("extended")

resolved = read("external").transform(resolve("value", config=job["external"]))
resolved.explain("extended")
digests(resolved, "resolved")
batch = read("chunking").transform(reassemble("value", config=job["external"]))
batch.explain("extended")
digests(batch, "reassembled")

files = spark.readStream.schema(read("chunking").schema).option("maxFilesPerTrigger", 1)
stream = files.parquet(str(FOLDER / "chunking"))
query = (
    stream.transform(reassemble("value", config=job["external"], expire_by="data"))
    .writeStream.foreachBatch(lambda df, _: digests(df, "streamed"))
    .option("checkpointLocation", str(FOLDER / "checkpoint"))
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()

try:
    read("external").transform(resolve("value", config=job["other_key"])).collect()
except Exception as error:
    print(error)
spark.stop()
