"""Topics as a garbage collection reads them: every message that a reader could still receive, as a batch."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from claimcheck._operate.garbage import same_slug
from claimcheck._validation import did_you_mean, fail
from claimcheck._wire.pointer import slug
from claimcheck.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from claimcheck.spark.sources._pulsar_client import Connection
    from claimcheck.transports.kafka._queries import Cluster

ADMIN = "admin"
"""The key of settings for the client that looks at the groups of Kafka."""

Places = Mapping[tuple[str, int], int]
"""The position below which everything is consumed, by topic and partition."""

_LEDGER = 1 << 32
_SERVERS, _SECURITY = "kafka.bootstrap.servers", ("kafka.security.protocol", "kafka.sasl.", "kafka.ssl.")
_PLACE = "concat('topic ', topic, ', partition ', `partition`) AS place"  # see `_unread`
_SLUG_CHARACTERS = 64


class _Kind(NamedTuple):
    """How a source reads whole topics."""

    topic: str
    fixed: Mapping[str, str]
    others: tuple[str, ...]
    position: str = "`offset`"


_KINDS = {
    "kafka": _Kind(
        "subscribe",
        {
            "startingOffsets": "earliest",
            "endingOffsets": "latest",
            "failOnDataLoss": "true",
            "kafka.isolation.level": "read_uncommitted",  # messages of open transactions, too
        },
        (
            *("minPartitions", "maxRecordsPerPartition", "groupIdPrefix", "includeHeaders"),
            *("kafkaConsumer.pollTimeoutMs", "fetchOffset.numRetries", "fetchOffset.retryIntervalMs"),
        ),
    ),
    "claimcheck_local": _Kind("topic", {}, ("path",)),
    "claimcheck_pulsar": _Kind(
        "topic",
        {"startingPosition": "earliest", "failOnDataLoss": "true"},
        (
            *("serviceUrl", "adminUrl", "authTokenEnv", "tlsTrustCertsFilePath", "tlsAllowInsecureConnection"),
            *("tlsValidateHostname", "operationTimeoutSeconds", "ioThreads"),
            *("readTimeoutSeconds", "receiverQueueSize"),
        ),
        "ledger_id * 4294967296 + entry_id",
    ),
}


@dataclass(frozen=True, slots=True)
class WholeTopics:
    """Some topics of one broker."""

    form: str
    options: Mapping[str, str] = field(repr=False)
    names: tuple[str, ...]
    path: str
    admin: Mapping[str, Any] | None = field(default=None, repr=False)

    @classmethod
    def of(cls, given: Mapping[str, Any], *, path: str) -> WholeTopics:
        if not isinstance(given, Mapping):
            fail(path, found=f"a {type(given).__name__}", expected="a mapping of 'format' and the source's options")
        form = str(given.get("format")).replace("-", "_")
        kind = _KINDS.get(form)
        if kind is None:
            fail(f"{path}.format", found=repr(given.get("format")), expected=f"one of {', '.join(_KINDS)}")
        own = ("format", ADMIN) if form == "kafka" else ("format",)
        options = {name.lower(): _text(value) for name, value in given.items() if name not in own}  # as Spark does
        for name in given:
            if name not in own:
                _check_option(kind, name, options[name.lower()], path)
        names = [name.strip() for name in options.get(kind.topic, "").split(",")]
        if not all(names):
            fail(f"{path}.{kind.topic}", found=repr(options.get(kind.topic)), expected="the names of topics")
        others = {name: value for name, value in options.items() if name not in (kind.topic, *_lower(kind.fixed))}
        file = others.get("path")
        if form == "claimcheck_local" and (file is None or not os.path.isfile(file)):  # a broker would create it
            fail(f"{path}.path", found=repr(file), expected="the file of an embedded broker")
        if form == "claimcheck_pulsar":
            from claimcheck.transports.pulsar._queries import full_name

            if "adminurl" not in others:
                expected = "the address of the web service: without it, a misspelled topic would be created"
                fail(f"{path}.adminUrl", found="nothing", expected=expected)
            names = list(map(full_name, names))
        return cls(form, others, tuple(names), path, given.get(ADMIN) if form == "kafka" else None)

    def read(self, spark: SparkSession, consumed: Places) -> list[DataFrame]:
        """Return all messages up to where the topics end now, in the columns value, place and position."""
        kind = _KINDS[self.form]
        return [
            spark.read.format(self.form).options(**{**self.options, **kind.fixed, **chosen}).load()
            .selectExpr("value", _PLACE, f"{kind.position} AS position")
            .withColumn("value", _unread(consumed))
            for chosen in self._chosen()
        ]  # fmt: skip

    def consumed(self) -> Places:
        """Return the position of each partition below which every group has read everything, as the broker says now."""
        if self.form == "kafka":
            return kafka_places(self._cluster(), self.names)
        if self.form == "claimcheck_pulsar":
            return pulsar_places(self._connection(), self.names)
        return local_places(self.options["path"], self.names)

    def cluster(self) -> str:
        """Return the name of the broker's cluster, which no other one has."""
        if self.form == "kafka":
            return self._cluster().name()
        if self.form == "claimcheck_pulsar":
            from claimcheck.spark.sources._pulsar_client import web_service

            with web_service(self._connection()) as admin:
                return admin.cluster()
        from claimcheck.transports.local import LocalBroker
        from claimcheck.transports.local._database import local_cluster

        with LocalBroker(self.options["path"]) as broker:
            return local_cluster(broker.database)

    def prepare(self, spark: SparkSession, named: Iterable[WholeTopics]) -> None:
        """Register the source, and check the topics against the others of the broker."""
        if self.form == "kafka":  # similar topics are read, too
            return
        from claimcheck.spark.sources import register

        register(spark)
        ours = {name: (name,) for each in named if each.options == self.options for name in each.names}
        for other, name in same_slug(ours, {each: (each,) for each in self._all_topics()}).items():
            text = f"topics: the keys of payloads of {name!r} look like those of {other!r}: name this topic, too"
            raise ConfigError(text, path="topics", found=repr(name), expected=repr(other))

    def _chosen(self) -> Iterator[dict[str, str]]:
        """Yield the options that choose topics: these, and in Kafka all others whose payloads have similar keys."""
        kind = _KINDS[self.form]
        yield {kind.topic: ",".join(self.names)}
        if self.form == "kafka":
            these, similar = "|".join(map(_quoted, self.names)), "|".join(map(_similar, self.names))
            yield {"subscribePattern": f"(?!(?:{these})$)(?:{similar})"}

    def _all_topics(self) -> Sequence[str]:
        if self.form == "claimcheck_local":
            from claimcheck.transports.local import LocalBroker

            with LocalBroker(self.options["path"]) as broker:
                return broker.topics()
        from claimcheck.spark.sources._pulsar_client import web_service
        from claimcheck.spark.sources._pulsar_reader import split_name
        from claimcheck.transports.pulsar._queries import topic_path

        found = set[str]()
        with web_service(self._connection()) as admin:
            for namespace in {topic_path(name).rpartition("/")[0] for name in self.names}:
                found |= {*(admin.get(namespace) or ()), *(admin.get(f"{namespace}/partitioned") or ())}
        return sorted({split_name(name)[0] for name in found})

    def _cluster(self) -> Cluster:
        from claimcheck.transports.kafka._queries import Cluster

        path = f"{self.path}.{ADMIN}"
        return Cluster(admin_settings(self.admin, self.options, path=path), path=path)

    def _connection(self) -> Connection:
        from claimcheck.spark.sources._options import parse
        from claimcheck.spark.sources._pulsar_client import CONNECTION_OPTIONS, Connection

        given = {name: self.options[name.lower()] for name in CONNECTION_OPTIONS if name.lower() in self.options}
        return Connection.of(parse(given, CONNECTION_OPTIONS), timeout_seconds=60.0)


def _unread(consumed: Places) -> Column:
    """Return the value of a message, or null if it is below the position of its partition."""
    from pyspark.sql import functions as F  # noqa: N812 - as everywhere

    pairs = [(f"topic {topic}, partition {number}", at) for (topic, number), at in consumed.items() if at > 0]
    if not pairs:
        return F.col("value")
    floors = F.create_map(*(F.lit(each) for pair in pairs for each in pair))
    return F.when(F.coalesce(F.col("position") < floors[F.col("place")], F.lit(False)), None).otherwise(F.col("value"))


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _check_option(kind: _Kind, name: str, value: str, path: str) -> None:
    """Refuse an option that might leave messages out."""
    lower, fixed, known = name.lower(), _lower(kind.fixed), _lower(dict.fromkeys(kind.others, ""))
    if lower in fixed and value.lower() != fixed[lower]:
        fail(f"{path}.{name}", found=repr(value), expected=f"{fixed[lower]!r}: all messages are read")
    is_kafkas = kind is _KINDS["kafka"] and lower.startswith("kafka.")
    if lower not in (kind.topic, *fixed, *known) and not is_kafkas:
        expected = f"one of {', '.join((kind.topic, *kind.others))}{did_you_mean(name, kind.others)}"
        fail(f"{path}.{name}", found="an option that it does not take", expected=f"{expected}: all messages are read")


def _lower(options: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in options.items()}


def _similar(name: str) -> str:
    """Return a pattern for the topics of Kafka that have the same slug."""
    part = slug(name)
    return rf"\.*{_quoted(part)}" + (".*" if len(part) == _SLUG_CHARACTERS else r"\.*")


def _quoted(name: str) -> str:
    return name.replace(".", r"\.")  # the other characters of names mean themselves


# How far groups have read, as the driver asks their broker ------------------------------------------------------


def admin_settings(given: object, options: Mapping[str, str], *, path: str) -> dict[str, Any]:
    """Return the settings of the client that looks at groups: it is another one than Spark's, which Java runs."""
    if given is not None and not isinstance(given, Mapping):
        fail(path, found=f"a {type(given).__name__}", expected="a mapping of settings of librdkafka")
    secure = next((name for name in options if name.startswith(_SECURITY)), None)
    if given is None and secure is not None:
        expected = f"settings of librdkafka that replace {secure!r} and the like, to look at the groups"
        fail(path, found="nothing", expected=expected)
    return {"bootstrap.servers": options.get(_SERVERS, ""), **(given or {})}


def kafka_places(cluster: Cluster, topics: tuple[str, ...]) -> Places:
    """Return what every group of Kafka has read; see `claimcheck.transports.kafka._queries.consumed_offsets`."""
    from claimcheck.transports.kafka._queries import consumed_offsets

    known = cluster.topics()
    places = [(name, number) for name in topics if name in known for number in known[name].partitions]
    return consumed_offsets(cluster.admin, places)


def pulsar_places(connection: Connection, topics: tuple[str, ...]) -> Places:
    """Return what every durable subscription has acknowledged."""
    from claimcheck.spark.sources._pulsar_client import web_service
    from claimcheck.spark.sources._pulsar_reader import split_name
    from claimcheck.transports.pulsar._queries import consumed_position, partitions_of

    with web_service(connection) as admin:
        names = [name for topic in topics for name in partitions_of(admin, topic)]
        found = {name: consumed_position(admin, name) for name in names}
    return {split_name(name): ledger * _LEDGER + entry + 1 for name, (ledger, entry) in found.items()}


def local_places(path: str, topics: tuple[str, ...]) -> Places:
    """Return what every group of an embedded broker has acknowledged."""
    from claimcheck.transports.local import LocalBroker

    with LocalBroker(path) as broker:
        places = [(topic, number) for topic in topics for number in range(broker.partitions(topic))]
        return {place: broker.consumed_offset(*place) for place in places}
