"""Spark drivers in processes of their own: to be killed, with other settings of Java, or with another environment.

    python drivers.py CONF

CONF is JSON, for Spark. Each line of standard input is a job as JSON: the name of one of `JOBS`, and its arguments. The
answer to each is one line of JSON. `Driver` starts such a process.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
USUAL = {
    "spark.master": "local[2]",
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.log.level": "OFF",
    "spark.sql.shuffle.partitions": "2",
    PROVIDER: ROCKSDB,
}
STOPPED = "stopped\n"


class Driver:
    """A process of this file, in a group of its own; used as a context, it ends with it."""

    def __init__(self, conf: Mapping[str, str], folder: Path, env: Mapping[str, str] | None = None) -> None:
        self.log = folder / "driver.log"
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, __file__, json.dumps(dict(conf))],
                env=dict(os.environ if env is None else env),
                cwd=folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )

    def begin(self, job: str, **given: Any) -> None:
        """Start a job; its answer is the next `line`."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"job": job, **given}) + "\n")
        self._process.stdin.flush()

    def line(self) -> str:
        """Wait for the next line of output."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(self.log.read_text(errors="replace")[-4000:])
        return line

    def run(self, job: str, **given: Any) -> Any:
        """Return the result of a job, or raise its error."""
        self.begin(job, **given)
        answer = json.loads(self.line())
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["result"]

    def die_in(self, batch: int, **given: Any) -> None:
        """Run the job `stream` until a batch is written but not committed, and kill everything."""
        self.begin("stream", stop_in=batch, **given)
        assert self.line() == STOPPED
        self.kill()

    def kill(self) -> None:
        """Kill it and all its processes at once, as a power cut does."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *exc: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(subprocess.TimeoutExpired, OSError):
            self._process.stdin.close()
            self._process.wait(60)
        self.kill()
        self._process.stdout.close()


# Rows and streams, which tests use in their own process, too -------------------------------------------------------


def plain(value: Any) -> Any:
    """Return a value as JSON has it; long binary values become digests."""
    if isinstance(value, Row):
        return {name: plain(each) for name, each in value.asDict().items()}
    if isinstance(value, list):
        return [plain(each) for each in value]
    if isinstance(value, (bytes, bytearray)):
        return hashlib.sha256(value).hexdigest() if len(value) > 50 else value.decode("latin-1")
    return value if value is None or isinstance(value, (int, str)) else str(value)


def rows_of(df: DataFrame) -> list[dict[str, Any]]:
    """Return all rows, in an order that does not depend on Spark."""
    return sorted(map(plain, df.collect()), key=str)


def write_batches(df: DataFrame, folder: Path, stop_in: int | None = None, kill: str = "all") -> None:
    """Run a stream to its end; each attempt of a batch appends a line to the batch's file in ``folder/out``.

    Args:
        df: The stream.
        folder: It also has the checkpoint.
        stop_in: The batch after whose output the process says that it has stopped, and waits to be killed.
        kill: With ``jvm`` the process kills the JVM under it instead, and its Python processes are left alone.
    """
    (folder / "out").mkdir(exist_ok=True)

    def keep(batch: DataFrame, number: int) -> None:
        with (folder / "out" / f"{number}.jsonl").open("a") as file:
            file.write(json.dumps(rows_of(batch)) + "\n")
        if number == stop_in:
            print(STOPPED, end="", flush=True)
            if kill == "jvm":
                bridge: Any = df.sparkSession._jvm
                os.kill(bridge.java.lang.ProcessHandle.current().pid(), signal.SIGKILL)
            else:
                time.sleep(600)

    query = df.writeStream.option("checkpointLocation", str(folder / "checkpoint")).foreachBatch(keep)
    query.trigger(availableNow=True).start().awaitTermination()


# Jobs --------------------------------------------------------------------------------------------------------------


def stream(
    spark: SparkSession,
    form: str,
    options: dict[str, str],
    folder: str,
    stop_in: int | None = None,
    kill: str = "all",
    schema: str | None = None,
    reassemble: dict[str, Any] | None = None,
) -> None:
    """Read a stream; ``reassemble`` is a configuration."""
    import claimcheck.spark

    if form.startswith("claimcheck"):
        from claimcheck.spark.sources import register

        register(spark)
    source = spark.readStream.format(form).options(**options)
    df = source.load() if schema is None else source.schema(schema).load()
    if reassemble is not None:
        df = df.transform(claimcheck.spark.reassemble("value", config=reassemble, expire_by="data"))
    write_batches(df, Path(folder), stop_in, kill)


def kafka(spark: SparkSession, options: dict[str, str], config: dict[str, Any], into: str = "") -> list[dict[str, Any]]:
    """Return all rows of a topic, or copy its payloads into another topic and return the rows of that one."""
    from claimcheck.spark import offload, resolve

    df = spark.read.format("kafka").options(**options).load()
    df = df.transform(resolve("value", config=config, on_error="null"))
    if not into:
        return rows_of(df)
    source = df.select("payload", "key", "headers")
    made = offload("payload", destination=into, config=config, key="key", headers="headers")
    sink = source.transform(made).write.format("kafka").options(**options)
    sink.option("topic", into).save()
    return kafka(spark, options | {"subscribe": into}, config)


def garbage(spark: SparkSession, topics: list[dict[str, str]], config: dict[str, Any]) -> dict[str, Any]:
    """Collect the garbage of topics."""
    from claimcheck.spark import collect_garbage

    with collect_garbage(spark, config=config, topics=topics) as report:
        return {"pointers": report.pointers, **asdict(report.delete(claim=True))}


def resolved(
    spark: SparkSession, messages: list[str], bad: list[str], config: dict[str, Any]
) -> dict[str, list[dict[str, Any]] | list[str]]:
    """Resolve an RDD and a DataFrame; return what came of it, where workers have claimcheck from, and errors."""
    from claimcheck.spark import resolve, resolver

    def look(payload: bytes) -> dict[str, Any]:
        import claimcheck

        digest = hashlib.sha256(payload).hexdigest()
        return {"digest": digest, "file": claimcheck.__file__, "pid": os.getpid()}

    def as_rdd(found: Sequence[str]) -> Any:
        made = resolver(config, destination="orders")
        return spark.sparkContext.parallelize(list(map(bytes.fromhex, found)), 2).mapPartitions(made)

    def as_frame(found: Sequence[str]) -> DataFrame:
        df = spark.createDataFrame([(bytes.fromhex(each),) for each in found], "value binary").repartition(2)
        return df.transform(resolve("value", config=config, destination="orders"))

    rdd = as_rdd(messages).map(look).collect()  # first: a task of a job that has failed may still hold an executor
    digests = as_frame(messages).selectExpr("sha2(payload, 256) AS digest")
    errors = [_error(as_it(bad[n : n + 1]).collect) for n in range(len(bad)) for as_it in (as_rdd, as_frame)]
    return {"rdd": rdd, "frame": rows_of(digests), "errors": errors}


def _error(act: Callable[[], Any]) -> str:
    try:
        act()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def connect_port(spark: SparkSession) -> int:
    """Return the port of the Spark Connect server in this session."""
    bridge: Any = spark._jvm
    service = getattr(bridge, "org.apache.spark.sql.connect.service.SparkConnectService$")
    port: int = getattr(service, "MODULE$").localPort()
    return port


def ship(spark: SparkSession, path: str) -> None:
    """Add an archive as an artifact of this session of Spark Connect."""
    spark.addArtifacts(path, pyfile=True)


def feature(spark: SparkSession, name: str, folder: str) -> None:
    """Try a feature of shipping_smoke.py."""
    sys.path.append(str(Path(__file__).resolve().parents[2]))  # at the end: claimcheck is that of the environment
    from tests.spark import shipping_smoke

    shipping_smoke.FEATURES[name](shipping_smoke.Lab(spark, Path(folder)))


_JOBS = (stream, kafka, garbage, resolved, connect_port, ship, feature)
JOBS: dict[str, Callable[..., Any]] = {each.__name__: each for each in _JOBS}


def session(conf: dict[str, str]) -> SparkSession:
    """Create the session; with ``spark.remote`` it is one of Spark Connect, which needs no Java."""
    if "spark.remote" in conf:
        return SparkSession.builder.remote(conf["spark.remote"]).getOrCreate()
    sys.path[:0] = filter(None, conf.get("spark.submit.pyFiles", "").split(","))  # as spark-submit does
    from claimcheck.spark import ensure_java

    ensure_java()
    if conf.get("spark.master", "").startswith("local-cluster"):
        os.environ.pop("PYTHONPATH", None)  # executors inherit it, and must have only what is shipped to them
    builder = SparkSession.builder
    for name, value in (USUAL | conf).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def main(conf: str) -> None:
    spark = session(json.loads(conf))
    for line in sys.stdin:
        given = json.loads(line)
        try:
            answer = {"result": JOBS[given.pop("job")](spark, **given)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
