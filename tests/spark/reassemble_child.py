"""A driver that is killed; test_reassemble_stream.py runs ``reassemble_child.py PACKAGE JOB``.

The package comes as a zip, for the workers. The job is a JSON file: ``config``, ``schema``, ``input``, ``checkpoint``,
``output`` (folders), and the ``last`` batch: it is put out, but dies before Spark has noted it.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

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


def put_out(df, batch):
    rows = [
        (row.uuid, row.payload and hashlib.sha256(row.payload).hexdigest(), row.error and row.error.type)
        for row in df.collect()
    ]
    Path(job["output"], f"{batch}.json").write_text(json.dumps(rows))
    if batch == job["last"]:
        bridge: Any = spark._jvm
        os.kill(bridge.java.lang.ProcessHandle.current().pid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


messages = spark.readStream.schema(job["schema"]).option("maxFilesPerTrigger", 1).parquet(job["input"])
payloads = messages.transform(reassemble("value", config=job["config"], expire_by="data"))
query = payloads.writeStream.foreachBatch(put_out).option("checkpointLocation", job["checkpoint"])
query.trigger(availableNow=True).start().awaitTermination()
