"""How long a garbage collection on Spark takes, and its peak memory: made payloads and pointers, in local mode.

    python tests/benchmarks/garbage.py                      # 2,000,000 listed payloads, 1,500,000 pointers
    python tests/benchmarks/garbage.py 100000
    python tests/benchmarks/garbage.py --files 50000        # files, which are deleted

Three of four payloads have a pointer in a topic of the embedded broker. The payloads of the first form are only listed:
their store has no medium. The orphans that are found must be exactly the others.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from claimcheck._store.listing import (  # noqa: E402
    KeyLifetime,
    StoreEntry,
    parse_name,
    with_lifetime,
)
from claimcheck._store.store import Store  # noqa: E402
from claimcheck._wire.envelope import encode_pointer  # noqa: E402
from claimcheck._wire.pointer import Pointer, encode  # noqa: E402
from claimcheck.transports.local import LocalBroker  # noqa: E402

DAY_MS = 86_400_000
NOW_MS = int(time.time() * 1000)
PARTITIONS = 8
PAYLOAD = b"x" * 100


def key_of(number: int, now_ms: int = NOW_MS) -> str:
    """The key of one made payload, written 2 to 32 days ago."""
    unique, created = uuid.UUID(int=number), now_ms - DAY_MS * (2 + number % 30)
    return with_lifetime(
        f"orders-{unique}", unique, created_ms=created, expires_ms=created + 90 * DAY_MS, fresh=True, max_bytes=255
    )


class MadeStore(Store):
    """A listing of payloads that exist nowhere."""

    def __init__(self, *, count: int, now_ms: int) -> None:
        self._count, self._now_ms = count, now_ms

    def _write(self, pointer: Any, source: Any) -> str | None:
        raise NotImplementedError

    def _read(self, pointer: Any) -> Any:
        raise NotImplementedError

    def _delete(self, pointer: Any) -> None:
        pass

    def _scan(self, after: str | None) -> Iterator[StoreEntry]:
        return self._entries(0, self._count)

    def _scan_partitions(self, count: int) -> list[str]:
        return [f"{self._count * i // count}:{self._count * (i + 1) // count}" for i in range(count)]

    def _scan_partition(self, partition: str) -> Iterator[StoreEntry]:
        return self._entries(*map(int, partition.split(":")))

    def _entries(self, start: int, stop: int) -> Iterator[StoreEntry]:
        for number in range(start, stop):
            key = key_of(number, self._now_ms)
            yield StoreEntry.of(key, parse_name(key) or KeyLifetime(), size=len(PAYLOAD), version="1")


def fill_topic(path: Path, keys: Iterator[str], store: str) -> int:
    """Append a pointer for each key; return their number."""
    rows, ends = [], [0] * PARTITIONS
    with LocalBroker(path) as broker:
        broker.create_topic("orders", partitions=PARTITIONS)
        with broker.database.write() as db:
            for number, key in enumerate(keys):
                value = encode_pointer(encode(Pointer(key=key, store=store, size=100, checksum="crc32:00000000")))
                partition = number % PARTITIONS
                rows.append(("orders", partition, ends[partition], time.time(), None, b"", value))
                ends[partition] += 1
                if len(rows) == 10_000:
                    insert(db, rows)
            insert(db, rows)
            db.executemany(
                "UPDATE partitions SET next_offset = ? WHERE topic = 'orders' AND partition = ?",
                [(end, partition) for partition, end in enumerate(ends)],
            )
    return sum(ends)


def insert(db: Any, rows: list[tuple[Any, ...]]) -> None:
    """Insert messages."""
    names = "topic, partition, offset, timestamp, key, headers, value"
    db.executemany(f"INSERT INTO messages ({names}) VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
    rows.clear()


def fill_folder(folder: Path, count: int) -> list[str]:
    """Create files without the store, in its layout; return their keys."""
    from claimcheck.stores.filesystem import _folder_for

    keys = []
    for number in range(count):
        name = key_of(number)
        key = f"{_folder_for(name, (parse_name(name) or KeyLifetime()).created_ms)}{name}"
        path = folder / key
        try:
            path.write_bytes(PAYLOAD)
        except FileNotFoundError:
            path.parent.mkdir(parents=True)
            path.write_bytes(PAYLOAD)
        keys.append(key)
    return keys


class Memory:
    """Samples the resident memory of this process and of all processes that it has started."""

    def __init__(self) -> None:
        self.peaks = {"driver": 0, "java": 0, "workers": 0, "all": 0}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(0.5):
            now = dict.fromkeys(self.peaks, 0)
            for process, size in tree().items():
                name = Path(f"/proc/{process}/comm").read_text().strip() if Path(f"/proc/{process}").exists() else ""
                kind = "driver" if process == os.getpid() else "java" if name == "java" else "workers"
                now[kind] += size
                now["all"] += size
            self.peaks = {name: max(self.peaks[name], now[name]) for name in now}


def tree() -> dict[int, int]:
    """The proportional set size of this process and its descendants: pages that forked workers share count once."""
    parents, sizes = {}, {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            parents[int(entry)] = int(Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    ours = {os.getpid()}
    while more := {child for child, parent in parents.items() if parent in ours} - ours:
        ours |= more
    for process in ours:
        try:
            rollup = Path(f"/proc/{process}/smaps_rollup").read_text()
            sizes[process] = int(rollup.partition("Pss:")[2].split()[0]) * 1024
        except (OSError, IndexError):
            continue
    return sizes


def session(folder: Path) -> Any:
    """A session with two cores and a small heap."""
    from claimcheck.spark import ensure_java

    ensure_java()
    from pyspark.sql import SparkSession

    options = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "2g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(folder / "spark"),
        "spark.sql.shuffle.partitions": "16",
        "spark.executorEnv.PYTHONPATH": os.pathsep.join([str(ROOT), str(Path(__file__).parent)]),
    }
    builder = SparkSession.builder.master("local[2]").appName("garbage")
    for name, value in options.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def main(listed: int, *, files: bool) -> None:
    """Fill a store and a topic, collect, and check the result."""
    from claimcheck.spark import collect_garbage
    from claimcheck.spark.sources import register

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(Path(__file__).parent)])
    folder = Path(tempfile.mkdtemp(prefix="claimcheck-bench-"))
    try:
        begin = time.perf_counter()
        if files:
            keys = fill_folder(folder / "claims", listed)
            store: dict[str, Any] = {"type": "filesystem", "path": str(folder / "claims"), "ttl_seconds": 90 * 86_400}
        else:
            keys = []
            store = {"type": "garbage:MadeStore", "count": listed, "now_ms": NOW_MS}
        sent = (number for number in range(listed) if number % 4 != 3)
        count = fill_topic(folder / "broker.sqlite", (keys[n] if files else key_of(n) for n in sent), "made")
        print(f"{listed:,} payloads and {count:,} pointers made in {time.perf_counter() - begin:.0f} s", flush=True)
        register(spark := session(folder))
        config = {"strategy": "external", "store": "made", "stores": {"made": store}}
        topics = [{"format": "claimcheck_local", "path": str(folder / "broker.sqlite"), "topic": "orders"}]
        begin = time.perf_counter()
        with Memory() as memory, collect_garbage(spark, config=config, topics=topics) as report:
            print(f"report: {time.perf_counter() - begin:.0f} s, {report.count:,} of {report.listed:,}", flush=True)
            number = "CAST(conv(substr(replace(key, '-', ''), -15), 16, 10) AS BIGINT)"
            orphans = report.orphans.selectExpr(f"{number} AS number")
            right = orphans.where("number % 4 = 3").distinct().count()
            report.summary().show(20, truncate=False)
            begin = time.perf_counter()
            deletion = report.delete(claim=True)
            print(f"deletion: {time.perf_counter() - begin:.0f} s, {deletion}")
        assert report.count == right == deletion.deleted == listed - count, (report.count, right, listed - count)
        print("peak memory, MiB:", {name: size >> 20 for name, size in memory.peaks.items()})
        spark.stop()
        if files:
            left = sum(1 for path in (folder / "claims").rglob("*") if path.is_file())
            assert left == count, left
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    numbers = [int(argument) for argument in sys.argv[1:] if argument.isdigit()]
    main(*(numbers or [2_000_000]), files="--files" in sys.argv)
