"""A topic on a broker of your choice, for the examples in this folder: embedded (the default), Pulsar or Kafka.

The embedded broker is a file and needs no server. Kafka uses Spark's own source and sink; Spark downloads their jars,
unless SPARK_KAFKA_JARS names a folder with them.
"""

from __future__ import annotations

import argparse
import os
import sys
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from claimcheck.spark import ensure_java, register
from claimcheck.transports.local import LocalBroker, LocalProducer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    import claimcheck

PARTITIONS = 3


@dataclass(frozen=True)
class Topic:
    """A topic, and how Spark and a producer reach it.

    Attributes:
        name: Name of the topic.
        source: Spark's name of the source, and of the sink for Kafka.
        reading: Options of the source.
        writing: Options of the sink, or where the other brokers are.
        limit: The source's option that limits the rows per trigger.
    """

    name: str
    source: str
    reading: dict[str, str]
    writing: dict[str, str]
    limit: str = "maxRowsPerTrigger"

    def read(self, spark: SparkSession) -> DataFrame:
        """Return all messages in the topic."""
        return spark.read.format(self.source).options(**self.reading).load()

    def stream(self, spark: SparkSession, query: str, rows: int) -> DataFrame:
        """Return a stream of messages with a limit per trigger; ``query`` names the subscription."""
        more = {self.limit: str(rows)} | ({"subscription": query} if self.source == "claimcheck_pulsar" else {})
        return spark.readStream.format(self.source).options(**self.reading, **more).load()

    def write(self, messages: DataFrame) -> None:
        """Write the messages that `offload` returned."""
        if self.source == "kafka":
            messages.write.format(self.source).options(**self.writing).mode("append").save()
            return
        if self.source == "claimcheck_pulsar":
            messages.foreachPartition(_sender(**self.writing))
            return
        with LocalBroker(self.writing["path"]) as broker:  # which Spark only reads
            for row in messages.toLocalIterator():
                broker.append(
                    self.name, row.value, key=row.key, headers=[(each.key, each.value) for each in row.headers or ()]
                )


def _sender(serviceUrl: str, topic: str) -> Callable[[Iterable[Any]], None]:  # noqa: N803 - the source's options
    """Return a function that sends the messages of a task to Pulsar."""

    def send(rows: Iterable[Any]) -> None:
        import pulsar

        client = pulsar.Client(serviceUrl, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        producer = client.create_producer(topic)
        for row in rows:
            properties = {each.key: each.value.decode() for each in row.headers or ()}
            producer.send(row.value, properties=properties, partition_key=row.key)
        client.close()

    return send


def arguments_of(text: str | None) -> argparse.ArgumentParser:
    """Return the argument parser of an example."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--pulsar", metavar="URL", help="a Pulsar, for example pulsar://localhost:6650")
    where.add_argument("--kafka", metavar="SERVERS", help="a Kafka, for example localhost:9092")
    return parser


def topic_of(arguments: argparse.Namespace, folder: Path, name: str = "") -> Topic:
    """Return the topic on the chosen broker; without a name it is a new one."""
    name = name or f"example-{uuid.uuid4().hex[:8]}"
    if arguments.pulsar:
        where = {"serviceUrl": arguments.pulsar, "topic": name}
        return Topic(name, "claimcheck_pulsar", where, where)
    if arguments.kafka:
        servers = {"kafka.bootstrap.servers": arguments.kafka}
        reading = {"subscribe": name, "startingOffsets": "earliest", "includeHeaders": "true"}
        return Topic(name, "kafka", servers | reading, servers | {"topic": name}, "maxOffsetsPerTrigger")
    where = {"path": str(folder / "broker.sqlite"), "topic": name}
    return Topic(name, "claimcheck_local", where, where)


def create(arguments: argparse.Namespace, topic: Topic) -> None:
    """Create the topic; Pulsar creates it at the first write."""
    if arguments.kafka:
        from confluent_kafka.admin import AdminClient, NewTopic

        admin = AdminClient({"bootstrap.servers": arguments.kafka})
        admin.create_topics([NewTopic(topic.name, PARTITIONS, 1)])[topic.name].result()
    elif not arguments.pulsar:
        with LocalBroker(topic.reading["path"]) as broker:
            broker.create_topic(topic.name, PARTITIONS)


def send(arguments: argparse.Namespace, topic: Topic, cc: claimcheck.ClaimCheck, files: Iterable[Path]) -> None:
    """Send files with an ordinary producer; their names are the keys."""
    if arguments.pulsar:
        import pulsar

        from claimcheck.transports.pulsar import PulsarProducer

        client = pulsar.Client(arguments.pulsar, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        producer: Any = PulsarProducer(client.create_producer(topic.name), cc)
        for file in files:
            producer.send(file.read_bytes(), partition_key=file.name)
        client.close()
    elif arguments.kafka:
        from confluent_kafka import Producer

        from claimcheck.transports.kafka import KafkaProducer

        with KafkaProducer(Producer({"bootstrap.servers": arguments.kafka}), cc) as producer:
            for file in files:
                producer.produce(topic.name, file.read_bytes(), file.name)
    else:
        with LocalBroker(topic.reading["path"]) as broker:
            producer = LocalProducer(broker, cc)
            for file in files:
                producer.send(topic.name, file.read_bytes(), key=file.name)


def session(arguments: argparse.Namespace) -> SparkSession:
    """Start Spark on this machine, with the Java of the extra `java` if there is no other."""
    ensure_java()
    from pyspark import __version__
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    if arguments.kafka and (jars := os.environ.get("SPARK_KAFKA_JARS")):
        builder = builder.config("spark.jars", ",".join(map(str, Path(jars).glob("*.jar"))))
    elif arguments.kafka:
        builder = builder.config("spark.jars.packages", f"org.apache.spark:spark-sql-kafka-0-10_2.13:{__version__}")
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    return spark


def config_of(store: Path) -> dict[str, Any]:
    """Return a configuration with a filesystem store and a small threshold, so that there is something to see."""
    stores = {"disk": {"type": "filesystem", "path": str(store), "create": True}}
    return {"strategy": "external", "threshold_bytes": 10_000, "stores": stores}


if __name__ == "__main__":
    sys.exit(__doc__)
