"""The Spark session, and the job that reads the topic, resolves every envelope and examines the payloads."""

from __future__ import annotations

import hashlib
import io
import os
import re
import signal
import struct
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from claimcheck._demo.send import PARTITIONS, TOPIC, DemoError, FileCounter
from claimcheck.spark import ensure_java, reassemble, resolve, resolver
from claimcheck.transports.local import LocalBroker

if TYPE_CHECKING:
    from pyspark import RDD
    from pyspark.sql import DataFrame, SparkSession

_FETCH = 16  # messages of up to 1 MiB at once


@dataclass(frozen=True, slots=True)
class ReadPayload:
    """What Spark read for one payload."""

    key: bytes
    size: int
    digest: str
    entries: int | None = None
    unpacked: int = 0


@dataclass(frozen=True, slots=True)
class ReadResult:
    """One pass over the whole topic."""

    name: str
    payloads: list[ReadPayload] = field(repr=False)
    seconds: float


@dataclass(frozen=True, slots=True)
class Topic:
    """Reads the topic in Spark's workers, with one Spark partition per partition of the topic."""

    broker: Path

    def __call__(self, partition: int) -> Iterator[tuple[bytes | None, bytes | None]]:
        """Yield the keys and values of one partition in order."""
        with LocalBroker(self.broker) as broker:
            offset, end = 0, broker.end_offset(TOPIC, partition)
            while offset < end:
                for message in broker.fetch(TOPIC, partition, offset, min(_FETCH, end - offset)):
                    yield message.key, message.value
                    offset = message.offset + 1

    def rdd(self, spark: SparkSession) -> RDD[tuple[bytes | None, bytes | None]]:
        """Return the topic as an RDD of keys and values."""
        return spark.sparkContext.parallelize(range(PARTITIONS), PARTITIONS).flatMap(self)


@dataclass(frozen=True, slots=True)
class _Look:
    """Examines one payload in the worker, so that only the small result leaves it."""

    counter: FileCounter

    def __call__(self, pair: tuple[bytes, bytes]) -> ReadPayload:
        key, payload = pair
        self.counter.add(len(payload))
        return ReadPayload(key, len(payload), hashlib.sha256(payload).hexdigest(), *_archive(payload))


def warm_up(spark: SparkSession) -> None:
    """Run a small query, because Spark's first one loads classes for many seconds."""
    small = spark.createDataFrame([(b"", b"x")], "key binary, value binary")
    _digests(small.transform(resolve("value", config={"strategy": "inline"})))


def read_as_rdd(
    spark: SparkSession,
    topic: Topic,
    config: dict[str, object],
    counter: FileCounter,
) -> ReadResult:
    """Resolve with ``rdd.mapPartitions(resolver(...))`` and examine the payloads in the workers."""
    begin = time.perf_counter()
    payloads = topic.rdd(spark).mapPartitions(resolver(config, keyed=True))
    return ReadResult("RDD", payloads.map(_Look(counter)).collect(), time.perf_counter() - begin)


def read_as_dataframe(spark: SparkSession, topic: Topic, config: dict[str, object], *, chunked: bool) -> ReadResult:
    """Resolve with ``df.transform(resolve(...))``, or join chunks; then use Spark's own functions."""
    begin = time.perf_counter()
    messages = spark.createDataFrame(topic.rdd(spark), "key binary, value binary")
    payloads = messages.transform((reassemble if chunked else resolve)("value", config=config))
    return ReadResult("DataFrame", _digests(payloads), time.perf_counter() - begin)


def _digests(payloads: DataFrame) -> list[ReadPayload]:
    rows = payloads.selectExpr("key", "length(payload) AS size", "sha2(payload, 256) AS digest").collect()
    return [ReadPayload(bytes(row.key), row.size, row.digest) for row in rows]


def _archive(payload: bytes) -> tuple[int | None, int]:
    """Return the entries and uncompressed bytes of a zip archive, such as a jar, without unpacking it."""
    try:
        with zipfile.ZipFile(io.BytesIO(payload)) as archive:
            infos = [info for info in archive.infolist() if not info.is_dir()]
    except (zipfile.BadZipFile, ValueError, NotImplementedError, OSError, struct.error):
        return None, 0
    return len(infos), sum(info.file_size for info in infos)


# The session ---------------------------------------------------------------------------------------------------

_SHOWN_LINES = 15
_ENDINGS = (signal.SIGINT, signal.SIGTERM)
_ERROR_LINE = re.compile(r"^(?:claimcheck\.[\w.]+|[A-Z]\w*Error): .+$", re.MULTILINE)


@contextmanager
def quiet_session(scratch: Path) -> Iterator[SparkSession]:
    """Start a Spark session on all cores that listens on the loopback only, and stop it at the end."""
    ensure_java()
    log = scratch / "spark.log"
    with ExitStack() as stack:
        # The JVM inherits the file: its own warnings ignore the log level.
        with _standard_error_to(log), _signals_later():
            session = _start(scratch, log)
            stack.callback(session.stop)
        try:
            yield session
        except Exception as error:
            raise _explained(error) from error


@contextmanager
def _signals_later() -> Iterator[None]:
    """Delay signals until the JVM has started: an interrupted start would leave a JVM that never ends."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread receives signals
        yield
        return
    received: list[int] = []
    known = {number: signal.signal(number, lambda number, _: received.append(number)) for number in _ENDINGS}
    try:
        yield
    finally:
        for each, handler in known.items():
            signal.signal(each, handler)
        for number in received:
            signal.raise_signal(number)


def _start(scratch: Path, log: Path) -> SparkSession:
    from pyspark.sql import SparkSession

    options = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.local.dir": str(scratch / "spark"),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
    }
    builder = SparkSession.builder.master("local[*]").appName("claimcheck demo")
    for name, value in options.items():
        builder = builder.config(name, value)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    try:
        session = builder.getOrCreate()
    except Exception as error:
        raise DemoError(f"Spark did not start ({type(error).__name__}); the end of its log:\n{_tail(log)}") from error
    session.sparkContext.setLogLevel("ERROR")
    return session


def _explained(error: Exception) -> Exception:
    """Reduce the error of a failed job to one line; Spark's own text has pages."""
    if not type(error).__module__.startswith(("py4j", "pyspark")):
        return error
    lines = _ERROR_LINE.findall(str(error))
    return DemoError(f"the Spark job failed: {lines[-1] if lines else str(error).splitlines()[0]}")


@contextmanager
def _standard_error_to(path: Path) -> Iterator[None]:
    sys.stderr.flush()
    saved = os.dup(2)
    with path.open("wb") as log:
        os.dup2(log.fileno(), 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(saved, 2)
        os.close(saved)


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-_SHOWN_LINES:])
