"""A driver that is killed; test_reassemble_stream.py runs ``reassemble_child.py PACKAGE JOB``.

The package comes as a zip, for the workers. The job is a JSON file: ``config``, ``schema``, ``input``, ``checkpoint``,
``output`` (folders), and ``die``, one of ``["before", batch]`` (all is computed, nothing is put out), ``["after",
batch]`` (put out, but Spark has not noted it), ``["within", batch, seconds]`` (so long after it began, perhaps in a
later one) and null.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import threading
from pathlib import Path

PACKAGE, JOB = sys.argv[1:]
sys.path.insert(0, PACKAGE)  # for this process and the workers, not for the planner

from pyspark.sql import SparkSession  # noqa: E402

from claimcheck.spark import ensure_java, reassemble  # noqa: E402

job = json.loads(Path(JOB).read_text())
ensure_java()
builder = SparkSession.builder.master("local[2]").appName("reassemble-child")
options = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
}
for name, value in options.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
spark.sparkContext.setLogLevel("ERROR")
spark.sparkContext.addPyFile(PACKAGE)


def die():
    jvm = spark._jvm.java.lang.ProcessHandle.current().pid()
    os.kill(jvm, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def die_here(point, batch):
    if job["die"] == [point, batch]:
        die()
    elif job["die"] and job["die"][:2] == [point, batch]:
        threading.Timer(job["die"][2], die).start()


def put_out(df, batch):
    """Write one file for each attempt at a batch."""
    die_here("within", batch)
    rows = [
        {
            "uuid": row.uuid,
            "offset": row.offset,
            "digest": None if row.payload is None else hashlib.sha256(row.payload).hexdigest(),
            "error": row.error and row.error.type,
        }
        for row in df.collect()
    ]
    die_here("before", batch)
    attempt = len(list(Path(job["output"]).glob(f"{batch}-*")))
    hidden = Path(job["output"], ".hidden")
    hidden.write_text(json.dumps(rows))
    hidden.rename(hidden.with_name(f"{batch}-{attempt}.json"))
    die_here("after", batch)


messages = spark.readStream.schema(job["schema"]).option("maxFilesPerTrigger", 1).parquet(job["input"])
config = {**job["config"], "chunking": {"expire_after_seconds": 3_600}}
payloads = messages.transform(reassemble("value", config=config, expire_by="data"))
query = (
    payloads.writeStream.foreachBatch(put_out)
    .option("checkpointLocation", job["checkpoint"])
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
