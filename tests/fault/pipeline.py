"""A sender, a receiver and a Spark job, each a process of its own that may be killed, and what they write down.

    python -m tests.fault.pipeline ROLE SPECIFICATION

ROLE is ``send``, ``receive``, ``spark``, or ``both`` for a sender and a receiver in one process that never ends;
SPECIFICATION is a JSON file of a `Pipeline`.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import functools
import hashlib
import itertools
import json
import logging
import os
import random
import shutil
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import claimcheck
from claimcheck.errors import ClaimCheckError

SIZES = (200, 5_000, 60_000, 400_000, 2_500_000)
THRESHOLD_BYTES = 2_000
PATIENCE_SECONDS = 30  # of clients, for an answer of the broker


@dataclass(frozen=True)
class Pipeline:
    """What the processes of one run have to know; also as JSON.

    Attributes:
        broker: ``kafka`` or ``pulsar``.
        address: Bootstrap servers, or the service URL.
        journal: File in which everybody writes what happened.
        count: Payloads to send; numbers from 0.
        pause: Seconds between two sends.
        rapid: How many payloads come first without a pause, all of a size just above the threshold.
        listener: Of Pulsar, by which clients are led through a proxy.
        checkpoint: Folder for Spark.
        jars: For Spark, to read Kafka.
    """

    broker: str
    address: str
    topic: str
    config: dict[str, Any]
    journal: str
    count: int
    seed: int
    pause: float = 0.03
    rapid: int = 0
    listener: str = ""
    checkpoint: str = ""
    jars: str = field(default="", repr=False)

    def payload(self, number: int) -> bytes:
        """Return what is sent under a number, which it begins with; all but the smallest are stored."""
        rng = random.Random(f"{self.seed} {number}")
        size = THRESHOLD_BYTES if number < self.rapid else rng.choice(SIZES)
        return b"payload %d " % number + rng.randbytes(size)

    @functools.cached_property
    def cc(self) -> claimcheck.ClaimCheck:
        return claimcheck.from_dict(self.config)


class Journal:
    """Lines that several processes append to; what was written before a process is killed is kept."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, kind: str, *words: object) -> None:
        os.write(self._file, (" ".join(map(str, (time.time(), kind, *words))) + "\n").encode())

    def lines(self, *kinds: str) -> list[tuple[float, list[str]]]:
        """Return time and further words of the lines of some kinds."""
        split = (line.split() for line in self._path.read_text().splitlines())
        return [(float(when), words) for when, kind, *words in split if kind in kinds]

    def numbers(self, *kinds: str) -> list[int]:
        """Return the number in each line of some kinds."""
        return [int(words[0]) for _, words in self.lines(*kinds)]

    def close(self) -> None:
        os.close(self._file)


class Told(Protocol):
    """Who is told what became of a send."""

    def write(self, kind: str, number: int, *details: object) -> None: ...


def send(pipeline: Pipeline) -> None:
    """Send what no process has begun to send; one that was killed during a send does not know what came of it."""
    journal = Journal(pipeline.journal)
    sender = SENDERS[pipeline.broker](pipeline, journal)
    for number in range(max(journal.numbers("sending"), default=-1) + 1, pipeline.count):
        journal.write("sending", number)
        try:
            sender(number)
        except Exception as error:
            journal.write("unsent", number, type(error).__name__)
        time.sleep(pipeline.pause)
    sender(None)
    journal.write("end")


def _kafka_sender(pipeline: Pipeline, journal: Told) -> Callable[[int | None], None]:
    from confluent_kafka import Producer

    from claimcheck.transports.kafka import KafkaProducer

    options: dict[str, Any] = {
        "bootstrap.servers": pipeline.address, "enable.idempotence": True, "linger.ms": 5, "log_level": 0,
        "message.timeout.ms": PATIENCE_SECONDS * 1000,
    }  # fmt: skip
    producer = KafkaProducer(Producer(options), pipeline.cc)

    def told(number: int, error: Any, _: Any) -> None:
        journal.write("sent", number) if error is None else journal.write("unsent", number, error.name())

    def call(number: int | None) -> None:
        if number is None:
            producer.flush()
            producer.close()
            return
        callback = functools.partial(told, number)
        headers = {"number": str(number)}
        producer.produce(pipeline.topic, pipeline.payload(number), headers=headers, on_delivery=callback)
        producer.poll(0)

    return call


def _pulsar_sender(pipeline: Pipeline, journal: Told) -> Callable[[int | None], None]:
    from claimcheck.transports.pulsar import PulsarProducer

    client = _pulsar_client(pipeline)
    native = client.create_producer(pipeline.topic, send_timeout_millis=PATIENCE_SECONDS * 1000)
    producer = PulsarProducer(native, pipeline.cc)

    def call(number: int | None) -> None:
        if number is None:
            producer.close()
            client.close()
            return
        producer.send(pipeline.payload(number), properties={"number": str(number)})
        journal.write("sent", number)

    return call


def _pulsar_client(pipeline: Pipeline) -> Any:
    import pulsar

    quiet = logging.getLogger("pulsar-client-in-faults")
    quiet.setLevel(logging.CRITICAL + 1)
    name = {"listener_name": pipeline.listener} if pipeline.listener else {}
    return pulsar.Client(pipeline.address, logger=quiet, operation_timeout_seconds=PATIENCE_SECONDS, **name)


def receive(pipeline: Pipeline) -> None:
    """Write down every payload, then acknowledge it, until SIGTERM."""
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopping.append(number))
    journal = Journal(pipeline.journal)
    next_message, acknowledge, close = RECEIVERS[pipeline.broker](pipeline)
    journal.write("receiving")
    while not stopping:
        message = next_message()
        if message is None:
            continue
        number, read = message
        while not stopping:
            try:
                journal.write("got", number, hashlib.sha256(read()).hexdigest())
            except ClaimCheckError as error:
                if error.retryable:
                    time.sleep(0.1)
                    continue
                journal.write("missing", number, type(error).__name__)
            acknowledge()
            break
    close()


Receiving = tuple[Callable[[], tuple[str, Callable[[], bytes]] | None], Callable[[], None], Callable[[], None]]


def _kafka_receiver(pipeline: Pipeline) -> Receiving:
    from confluent_kafka import Consumer, KafkaException

    from claimcheck.transports.kafka import KafkaConsumer

    options: dict[str, Any] = {
        "bootstrap.servers": pipeline.address, "group.id": pipeline.topic, "group.instance.id": "receiver",
        "session.timeout.ms": 20_000, "auto.offset.reset": "earliest", "enable.auto.commit": False,
        "enable.auto.offset.store": False, "log_level": 0, "reconnect.backoff.max.ms": 500,
    }  # fmt: skip
    consumer = KafkaConsumer(Consumer(options), pipeline.cc)
    consumer.subscribe([pipeline.topic])
    last: list[Any] = []

    def receive() -> tuple[str, Callable[[], bytes]] | None:
        message = consumer.poll(0.1)
        if message is None:
            return None
        if (error := message.error()) is not None:
            if error.fatal():
                raise KafkaException(error)
            return None
        last[:] = [message]
        return dict(message.headers() or [])["number"].decode(), message.value

    def acknowledge() -> None:
        """Not with a blocking commit, which has no timeout and may wait for minutes after an outage."""
        with contextlib.suppress(KafkaException):  # a later commit covers this message
            consumer.commit(message=last[0], asynchronous=True)

    return receive, acknowledge, consumer.close


def _pulsar_receiver(pipeline: Pipeline) -> Receiving:
    import pulsar

    from claimcheck.transports.pulsar import PulsarConsumer

    client = _pulsar_client(pipeline)
    native = client.subscribe(pipeline.topic, "readers", initial_position=pulsar.InitialPosition.Earliest)
    consumer = PulsarConsumer(native, pipeline.cc)
    last: list[Any] = []

    def receive() -> tuple[str, Callable[[], bytes]] | None:
        try:
            last[:] = [consumer.receive(timeout_millis=100)]
        except pulsar.PulsarException:
            return None
        return last[0].properties()["number"], last[0].data

    def acknowledge() -> None:
        with contextlib.suppress(pulsar.PulsarException):  # it comes again
            consumer.acknowledge(last[0])

    def close() -> None:
        consumer.close()
        client.close()

    return receive, acknowledge, close


def spark(pipeline: Pipeline) -> None:
    """Read the topic as a stream, and write down the rows of every batch, until SIGTERM."""
    from claimcheck.spark import ensure_java, resolve

    ensure_java()
    from pyspark.sql import DataFrame, SparkSession

    journal = Journal(pipeline.journal)
    builder = SparkSession.builder.master("local[1]").config("spark.jars", pipeline.jars)
    builder = builder.config("spark.ui.enabled", "false").config("spark.driver.host", "127.0.0.1")
    session = builder.config("spark.sql.shuffle.partitions", "1").getOrCreate()
    session.sparkContext.setLogLevel("OFF")

    def keep(df: DataFrame, batch: int) -> None:
        for row in df.selectExpr("headers", "sha2(payload, 256) AS digest", "error").collect():
            number = next(bytes(header.value).decode() for header in row.headers if header.key == "number")
            if row.error is None:
                journal.write("got", number, row.digest, batch)
            else:
                journal.write("missing", number, str(row.error).split(":")[0].replace(" ", "-"))

    offsets = Path(pipeline.checkpoint, "offsets")
    if offsets.exists() and not any(each.name.isdecimal() for each in offsets.iterdir()):
        shutil.rmtree(pipeline.checkpoint)  # what Spark asks for, if it was killed while it wrote the first offsets
    source = session.readStream.format("kafka").option("kafka.bootstrap.servers", pipeline.address)
    source = source.option("subscribe", pipeline.topic).option("startingOffsets", "earliest")
    rows = source.option("includeHeaders", "true").option("maxOffsetsPerTrigger", 5).load()
    resolved = rows.transform(resolve("value", config=pipeline.config, on_error="null"))
    query = resolved.writeStream.foreachBatch(keep).option("checkpointLocation", pipeline.checkpoint).start()
    journal.write("receiving")
    query.awaitTermination()


class Balance:
    """What was sent and not received yet, or the other way round; it stands in for the journal of a sender."""

    def __init__(self) -> None:
        self.counts = Counter[str]()
        self.open: dict[str, set[int]] = {"sent": set(), "got": set()}

    def write(self, kind: str, number: int, *_: object) -> None:
        self.counts[kind] += 1
        if kind in self.open:
            other = self.open["got" if kind == "sent" else "sent"]
            if number in other:
                other.remove(number)
            else:
                self.open[kind].add(number)


class _Mallinfo2(ctypes.Structure):
    """What glibc's malloc tells of itself; see mallinfo(3)."""

    _fields_ = (
        *((name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks")),
        *((name, ctypes.c_size_t) for name in ("uordblks", "fordblks", "keepcost")),
    )


def _allocated_bytes() -> int:
    """Return what malloc has handed out in all arenas and mappings; without what it keeps and what is fragmented."""
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = _Mallinfo2
    told = mallinfo2()
    return int(told.uordblks + told.hblkhd)


def both(pipeline: Pipeline) -> None:
    """Send and receive until SIGTERM; write down how many, and how many are on their way, about once a second."""
    journal, balance = Journal(pipeline.journal), Balance()
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    sender = SENDERS[pipeline.broker](pipeline, balance)
    next_message, acknowledge, close = RECEIVERS[pipeline.broker](pipeline)

    def send() -> None:
        for number in itertools.count():
            try:
                sender(number)
            except Exception:
                balance.write("unsent", number)
            if stopping.wait(0 if number < pipeline.rapid else pipeline.pause):
                break
        sender(None)

    thread = threading.Thread(target=send)
    thread.start()
    told = time.monotonic()
    while thread.is_alive() or balance.open["sent"]:
        if (message := next_message()) is not None:
            number, read = message
            kind = ""
            while not kind:
                try:
                    kind = "got" if read() == pipeline.payload(int(number)) else "wrong"
                except ClaimCheckError as error:
                    kind = "" if error.retryable else "wrong"
                    time.sleep(0.1)
            balance.write(kind, int(number))
            acknowledge()
        if time.monotonic() > told + 1:
            told = time.monotonic()
            balance.counts["blocks"], balance.counts["malloc"] = sys.getallocatedblocks(), _allocated_bytes()
            journal.write("counts", len(balance.open["sent"]), json.dumps(balance.counts).replace(" ", ""))
    journal.write("end", len(balance.open["sent"]), json.dumps(balance.counts).replace(" ", ""))
    close()


SENDERS = {"kafka": _kafka_sender, "pulsar": _pulsar_sender}
RECEIVERS = {"kafka": _kafka_receiver, "pulsar": _pulsar_receiver}
ROLES = {"send": send, "receive": receive, "both": both, "spark": spark}

if __name__ == "__main__":
    faulthandler.register(signal.SIGUSR1)  # where it waits, for a run that does not end
    ROLES[sys.argv[1]](Pipeline(**json.loads(Path(sys.argv[2]).read_text())))
