"""Turn a stream of archives into a table of their contents. The job is killed in the middle and resumes.

    python examples/spark/archives.py [FOLDER] [--pulsar URL | --kafka SERVERS]

FOLDER has zip archives: jars, wheels, office files. By default they are the jars of Spark itself. Each archive is
opened as a file inside a Python worker, which reads only the directory of large archives from the store. An interrupted
micro-batch runs again, with the same messages and the same output.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import pyarrow.parquet as parquet
from brokers import arguments_of, config_of, create, send, session, topic_of

import claimcheck
from claimcheck.spark import map_payloads

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROWS_AT_A_TIME = 6


def entries(archive: BinaryIO) -> dict[str, Any]:
    """Read the directory of an archive without unpacking it."""
    with zipfile.ZipFile(archive) as opened:
        infos = [info for info in opened.infolist() if not info.is_dir()]
    return {"entries": len(infos), "unpacked": sum(info.file_size for info in infos)}


def consume(arguments: argparse.Namespace, work: Path) -> None:
    """Process everything in the topic."""
    spark = session(arguments)
    topic = topic_of(arguments, work, arguments.consume)
    # 1 MiB ahead: larger archives are opened in the store and read where the zip module seeks
    look = map_payloads(
        entries, "entries long, unpacked long",
        column="value", config=config_of(work / "claims"), as_file=True, max_inflight_bytes=1 << 20,
    )  # fmt: skip
    archives = topic.stream(spark, "archives", ROWS_AT_A_TIME).selectExpr("CAST(key AS STRING) AS name", "value")

    def keep(batch: DataFrame, number: int) -> None:
        batch.drop("value").write.mode("overwrite").parquet(str(work / "found" / f"batch={number}"))

    query = (
        archives.transform(look)
        .writeStream.foreachBatch(keep)
        .option("checkpointLocation", str(work / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


def main(arguments: argparse.Namespace, work: Path) -> None:
    """Send, run the job, kill it, resume it, compare."""
    candidates = [path for path in sorted(arguments.folder.iterdir()) if zipfile.is_zipfile(path)]
    files = sorted(candidates, key=lambda path: path.stat().st_size)[-arguments.most :]
    topic = topic_of(arguments, work)
    create(arguments, topic)
    with claimcheck.from_dict(config_of(work / "claims")) as cc:
        send(arguments, topic, cc, files)

    job = start(topic.name, work)
    while not list(work.glob("found/batch=*/_SUCCESS")) and job.poll() is None:
        time.sleep(0.05)
    os.killpg(job.pid, signal.SIGKILL)
    job.wait()
    done = len(list(work.glob("found/batch=*/_SUCCESS")))
    print(f"killed after {done} micro-batches")
    assert start(topic.name, work).wait() == 0

    rows = parquet.read_table(work / "found").to_pylist()
    rows.sort(key=itemgetter("unpacked"), reverse=True)
    for row in rows[:5]:
        print(f"{row['entries']:>6,} entries, {row['unpacked']:>12,} bytes unpacked  {row['name']}")
    found = {(row["name"], row["entries"]) for row in rows}
    assert found == {(path.name, count(path)) for path in files}
    assert len(rows) == len(files)
    print(f"{len(rows)} archives of {sum(path.stat().st_size for path in files):,} bytes, each exactly once")


def count(path: Path) -> int:
    """Compute the expected result."""
    with path.open("rb") as file:
        return int(entries(file)["entries"])


def start(topic: str, work: Path) -> subprocess.Popen[bytes]:
    """Start the job in its own process, which can be killed."""
    command = [sys.executable, *sys.argv, "--consume", topic, "--work", str(work)]
    return subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL)


def jars() -> Path:
    """Return the folder of Spark's jars."""
    import pyspark

    return Path(pyspark.__file__).parent / "jars"


if __name__ == "__main__":
    parser = arguments_of(__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=jars())
    parser.add_argument("--most", type=int, default=18, help="archives, the largest first (18)")
    parser.add_argument("--consume", help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.consume:
        consume(given, given.work)
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(given, Path(folder))
