"""The peak memory of a worker beyond its base, in a fresh process that does a worker's work without Spark."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

MIB = 1 << 20
INFLIGHT, OUT_BATCH = 64, 16  # MiB, the defaults

CHILD = """
import json, sys
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import IntegerType, StructField, StructType
from claimcheck.spark._resolve import _MapStage
from claimcheck.spark._reading import ResolveStage
from claimcheck.spark._reading import Reading
from claimcheck.spark._worker import as_config

def memory(name):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) << 10

def run(count):
    column = pa.array([message] * count, pa.binary())
    batches = iter([pa.RecordBatch.from_arrays([column], names=["value"])])
    with open("/dev/null", "wb") as sink:
        writer = None
        for batch in stage(batches):  # Spark, too, refers to a batch until it has the next one
            writer = writer or pa.RecordBatchStreamWriter(sink, batch.schema)
            writer.write_batch(batch)

TaskContext._getOrCreate()  # only workers have one
given = json.loads(sys.argv[1])
reading = Reading(
    config=as_config(given["config"]), concurrency=16, max_inflight_bytes=64 << 20, out_batch_bytes=16 << 20
)
schema = StructType([StructField("size", IntegerType())])
stages = {
    "resolve": ResolveStage(reading, 0, ("value",)),
    "map_payloads": _MapStage(reading, 0, ("value",), schema, len, False, False),
}
stage = stages[given["way"]]
message = bytes.fromhex(given["small"])
run(4)  # what is imported and opened once is part of no payload
before, message = memory("VmRSS"), bytes.fromhex(given["large"])
run(given["count"])
print(memory("VmHWM") - before)
"""


@pytest.mark.parametrize(
    ("way", "mib", "payloads"),
    [
        ("map_payloads", 8, INFLIGHT),  # memory that threads have freed and kept would come on top
        ("map_payloads", 96, 96),  # one at a time: not the last one as well
        ("resolve", 8, INFLIGHT + 2 * OUT_BATCH),
        ("resolve", 96, 2 * 96),  # Spark's last batch, and the next payload, which is not copied into its batch
    ],
)
def test_the_peak_is_what_is_in_flight_and_what_leaves(config, send, way, mib, payloads):
    (small,), (large,) = send(b"x" * 2000), send(b"x" * mib * MIB)
    given = {
        "config": config,
        "way": way,
        "count": 5 if mib > INFLIGHT else 30,
        "small": small.hex(),
        "large": large.hex(),
    }
    done = subprocess.run([sys.executable, "-c", CHILD, json.dumps(given)], stdout=subprocess.PIPE, check=True)
    assert int(done.stdout) < (1.1 * payloads + 8) * MIB
