"""Send every file of a folder through a broker that refuses messages above 1 MiB, and read them back with Spark.

    make demo [DIR=folder]       or, after pip install -r examples/demo/requirements.txt from the top of the repository:
    python examples/demo/demo.py [FOLDER]

Without a folder it sends the jars of pyspark. It does so twice: as pointers to a store of files, and as chunks, which
need no store. The broker is one SQLite file. `send` is the producer, `read` is the Spark job; the rest is for people.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import os
import shutil
import sys
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from files import Folder, find
from session import explained, session
from terminal import Line, megabytes, table

import claimcheck
from claimcheck.spark import Metrics, map_payloads, progress, reassemble
from claimcheck.stores.base import Payload
from claimcheck.transports.local import LocalBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LIMIT = 1 << 20
TOPIC = "files"
PARTITIONS = 4
EXTERNAL, CHUNKING = "external", "chunking"


def configuration(strategy: str, work: Path) -> dict[str, Any]:
    """Return the configuration of producer and consumer. Chunks need no store."""
    if strategy == CHUNKING:
        return {"strategy": CHUNKING}
    return {"strategy": strategy, "stores": {"disk": {"type": "filesystem", "path": f"{work}/claims", "create": True}}}


# The producer ----------------------------------------------------------------------------------------------------


@dataclass
class Sent:
    """What the producer has sent: the digest of each file by its key, and the messages by their kind."""

    digests: dict[bytes, str]
    messages: Counter[str]
    size: int
    broker_bytes: int
    seconds: float


def send(config: Mapping[str, Any], broker_file: Path, folder: Folder, line: Line) -> Sent:
    """Send each file with a decorated function: large ones are offloaded, small ones are sent unchanged."""
    begin, size, digests, messages = time.monotonic(), 0, dict[bytes, str](), Counter[str]()
    with claimcheck.from_dict(config) as cc, LocalBroker(broker_file, max_message_bytes=LIMIT) as broker:
        broker.create_topic(TOPIC, PARTITIONS)

        @cc.offload(payload="value", destination="topic", key="key", headers="headers")
        def publish(topic: str, value: Payload, key: bytes, headers: dict[str, str] | None = None) -> object:
            messages[(headers or {}).get("claimcheck-type", "plain")] += 1
            return broker.append(topic, value, key=key, headers=headers)  # type: ignore[arg-type]  # never a file

        for name in folder.sizes:
            with (folder.root / name).open("rb") as file:  # streamed into the store, never whole in memory
                digest = hashlib.file_digest(file, "sha256").hexdigest()
                size += file.tell()
                file.seek(0)
                publish(TOPIC, file, os.fsencode(name))
            digests[os.fsencode(name)] = digest
            line.show(f"{len(digests)} of {len(folder.sizes)} files, {megabytes(size)}")
        return Sent(digests, messages, size, broker.stats(TOPIC).bytes, time.monotonic() - begin)


# The Spark job ---------------------------------------------------------------------------------------------------


@dataclass
class Read:
    """What Spark has read: key and digest of each payload, and the entries of those that are archives."""

    payloads: Counter[tuple[bytes, str]]
    entries: int | None
    seconds: float


def examine(payload: bytes) -> tuple[str, int]:
    """Run in a worker, for each payload: only this small result leaves it."""
    with io.BytesIO(payload) as file:
        entries = len(zipfile.ZipFile(file).namelist()) if zipfile.is_zipfile(file) else 0
    return hashlib.sha256(payload).hexdigest(), entries


def read(spark: SparkSession, config: Mapping[str, Any], broker_file: Path, line: Line) -> Read:
    """Read the topic as a DataFrame of messages, and get their payloads."""
    begin, metrics = time.monotonic(), Metrics(spark)
    messages = spark.read.format("claimcheck_local").options(path=str(broker_file), topic=TOPIC).load()
    if config["strategy"] == CHUNKING:  # one payload is in many rows
        payloads = messages.transform(reassemble("value", config=config, metrics=metrics))
        result = payloads.selectExpr("key", "sha2(payload, 256) AS digest")
    else:  # each row is a payload, which stays in the worker
        look = map_payloads(examine, "digest string, entries int", column="value", config=config, metrics=metrics)
        result = messages.transform(look).select("key", "digest", "entries")
    with progress(metrics, every_seconds=0.5, say=line.show):  # updated as tasks end
        rows = result.collect()
    entries = None if config["strategy"] == CHUNKING else sum(row.entries for row in rows)
    return Read(Counter((bytes(row.key), row.digest) for row in rows), entries, time.monotonic() - begin)


# The demo --------------------------------------------------------------------------------------------------------


def run(strategy: str, folder: Folder, work: Path, spark: Future[SparkSession]) -> tuple[Sent, Read]:
    """Send and read with one strategy; delete what was written."""
    work.mkdir()
    config, broker_file = configuration(strategy, work), work / "broker.sqlite"
    with Line(f"{strategy}: sending") as line:
        sent = send(config, broker_file, folder, line)
    if not spark.done():
        with Line("waiting for Spark") as line:
            line.wait(spark)
    started = spark.result()
    with Line(f"{strategy}: reading") as line:
        found = read(started, config, broker_file, line)
    shutil.rmtree(work)
    return sent, found


def report(results: Mapping[str, tuple[Sent, Read]]) -> bool:
    """Print the table and whatever did not come back unchanged; return whether there is nothing."""
    runs = list(results.values())
    rows = {
        "files": [f"{len(sent.digests):,}" for sent, _ in runs],
        "payload": [megabytes(sent.size) for sent, _ in runs],
        "through the broker": [megabytes(sent.broker_bytes) for sent, _ in runs],
        "  small messages": [f"{sent.messages['plain']:,}" for sent, _ in runs],
        "  pointers": [f"{sent.messages['pointer']:,}" for sent, _ in runs],
        "  chunks": [f"{sent.messages['chunk']:,}" for sent, _ in runs],
        "sent": [f"{megabytes(sent.size / sent.seconds)}/s" for sent, _ in runs],
        "read by Spark": [f"{megabytes(sent.size / found.seconds)}/s" for sent, found in runs],
        "entries in archives": ["" if found.entries is None else f"{found.entries:,}" for _, found in runs],
    }
    wrong = {
        name: list((Counter(sent.digests.items()) - found.payloads).elements())
        for name, (sent, found) in results.items()
    }
    extra = {
        name: list((found.payloads - Counter(sent.digests.items())).elements())
        for name, (sent, found) in results.items()
    }
    rows["lost or changed"] = [f"{len(wrong[name]) or len(extra[name]):,}" for name in results]
    print(table(list(results), rows))
    for name, keys in [*wrong.items(), *extra.items()]:
        for key, _ in keys[:10]:
            print(f"{name}: {os.fsdecode(key)!r} did not come back as it was sent")
    return not any([*wrong.values(), *extra.values()])


def main(root: Path | None) -> int:
    """Run the demo; return the exit status."""
    import pyspark

    folder = find(root or Path(pyspark.__path__[0], "jars"))
    print(f"{len(folder.sizes):,} files, {megabytes(folder.size)}, below {folder.root}")
    for name, reason in folder.skipped.items():
        print(f"skipped {name!r}: {reason}")
    print(f"The broker is one SQLite file that refuses messages above 1 MiB. Spark {pyspark.__version__} is starting.")
    with tempfile.TemporaryDirectory(prefix="claimcheck-demo-", ignore_cleanup_errors=True) as scratch:
        folder.check_space(Path(scratch))
        with session(Path(scratch)) as spark:
            strategies = (EXTERNAL, CHUNKING)
            results = {each: run(each, folder, Path(scratch, each), spark) for each in strategies}
    if not report(results):
        return 1
    print(f"Every one of the {len(folder.sizes):,} files came back unchanged, with both strategies.")
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", metavar="FOLDER", nargs="?", type=Path, help="send these files")
    try:
        sys.exit(main(parser.parse_args().folder))
    except KeyboardInterrupt:
        sys.exit("interrupted")
    except Exception as error:
        sys.exit(f"demo: {explained(error)}")
