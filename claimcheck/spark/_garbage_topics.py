"""What the messages of topics and tables point at, and which payloads are left when these are taken away.

`claimcheck._operate.gc` proves that two passes over the topics are enough, if the second one reads
everything that was appended after the first one began. Here each pass reads everything, so that is the case if the last
message of each partition in the first pass is still there in the second one: brokers delete from the beginning.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, NamedTuple

from claimcheck._operate.garbage import fingerprint, reference_of, same_slug
from claimcheck._validation import fail
from claimcheck.errors import ConfigError, EnvelopeError, TransportError, UnknownVersionError
from claimcheck.spark._columns import find_column, map_rows, with_index_names
from claimcheck.spark._reading import views

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

Spans = Mapping[str, tuple[int, int]]
"""The first and the last position that was read, by partition; by table 0 and the most pointers of a batch."""

_ADMIN = "admin"  # the key of settings for the client that asks Kafka
_DAMAGED = ""
_FOUND = "id binary, problem string, place string, first bigint, last bigint"
_SECURITY = ("kafka.security.protocol", "kafka.sasl.", "kafka.ssl.")
_PLACE = "concat('topic ', topic, ', partition ', `partition`) AS place"


class _Kind(NamedTuple):
    """How a source reads whole topics: which option names them, which are fixed, and which others it may take."""

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
        ("kafka.", "minPartitions"),
    ),
    "claimcheck_local": _Kind("topic", {}, ("path",)),
    "claimcheck_pulsar": _Kind(
        "topic",
        {"startingOffsets": "earliest", "failOnDataLoss": "true"},
        ("serviceUrl", "adminUrl", "authTokenEnv", "tls", "readTimeoutSeconds", "receiverQueueSize"),
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
    admin: object = field(default=None, repr=False)

    @classmethod
    def of(cls, given: Mapping[str, Any], *, path: str) -> WholeTopics:
        if not isinstance(given, Mapping):
            fail(path, found=f"a {type(given).__name__}", expected="a mapping of 'format' and the source's options")
        form = str(given.get("format")).replace("-", "_")
        if form not in _KINDS:
            fail(f"{path}.format", found=repr(given.get("format")), expected=f"one of {', '.join(_KINDS)}")
        kind, own = _KINDS[form], ("format", _ADMIN) if form == "kafka" else ("format",)
        options = {name.lower(): str(value) for name, value in given.items() if name not in own}  # as Spark does
        names = [name.strip() for name in options.pop(kind.topic, "").split(",")]
        if not all(names):
            fail(f"{path}.{kind.topic}", found="none", expected="the names of topics")
        fixed, others = [name.lower() for name in kind.fixed], tuple(name.lower() for name in kind.others)
        for name in options:
            if name in fixed or not name.startswith(others):
                expected = f"options of the connection ({', '.join(kind.others)}): all messages are read"
                fail(f"{path}.{name}", found="an option that it does not take", expected=expected)
        if form == "claimcheck_local" and not os.path.isfile(options.get("path", "")):  # a broker would create it
            fail(f"{path}.path", found=repr(options.get("path")), expected="the file of an embedded broker")
        if form == "claimcheck_pulsar":
            from claimcheck.transports.pulsar._queries import full_name

            if "adminurl" not in options:
                expected = "the address of the web service: without it, a misspelled topic would be created"
                fail(f"{path}.adminUrl", found="nothing", expected=expected)
            names = list(map(full_name, names))
        return cls(form, options, tuple(names), path, given.get(_ADMIN))

    def read(self, spark: SparkSession) -> DataFrame:
        """Return all messages up to where the topics end now, in the columns value, place and position."""
        kind = _KINDS[self.form]
        options = {**self.options, **kind.fixed, kind.topic: ",".join(self.names)}
        rows = spark.read.format(self.form).options(**options).load()
        return rows.selectExpr("value", _PLACE, f"{kind.position} AS position")

    def cluster(self) -> str:
        with self._broker() as broker:
            return broker.cluster()

    def check(self, named: Iterable[WholeTopics]) -> None:
        ours = {name: (name,) for each in named if each.options == self.options for name in each.names}
        with self._broker() as broker:
            known = {each: (each,) for each in broker.topics()}
        for other, name in same_slug(ours, known).items():
            text = f"topics: the keys of payloads of {name!r} look like those of {other!r}: name this topic, too"
            raise ConfigError(text, path="topics", found=repr(name), expected=repr(other))

    @contextmanager
    def _broker(self) -> Iterator[_Broker]:
        if self.form == "kafka":
            yield _kafka(self)
        elif self.form == "claimcheck_pulsar":
            with _pulsar(self) as broker:
                yield broker
        else:
            from claimcheck.transports.local._broker import LocalBroker, local_cluster

            with LocalBroker(self.options["path"]) as local:
                yield _Broker(lambda: local_cluster(local.database), local.topics)


class _Broker(NamedTuple):
    """What the driver asks a broker: its cluster, and its other topics."""

    cluster: Callable[[], str]
    topics: Callable[[], Iterable[str]]


def _kafka(whole: WholeTopics) -> _Broker:
    from claimcheck.transports.kafka._queries import Cluster

    path, given = f"{whole.path}.{_ADMIN}", whole.admin
    if given is not None and not isinstance(given, Mapping):
        fail(path, found=f"a {type(given).__name__}", expected="a mapping of settings of librdkafka")
    secure = next((name for name in whole.options if name.startswith(_SECURITY)), None)
    if given is None and secure is not None:  # those of Spark's client, which Java runs
        fail(path, found="nothing", expected=f"settings of librdkafka that replace {secure!r} and the like")
    servers = whole.options.get("kafka.bootstrap.servers", "")
    cluster = Cluster({"bootstrap.servers": servers, **(given or {})}, path=path)
    return _Broker(cluster.name, cluster.topics)


@contextmanager
def _pulsar(whole: WholeTopics) -> Iterator[_Broker]:
    from claimcheck.spark.sources._options import parse
    from claimcheck.spark.sources._pulsar_client import CONNECTION_OPTIONS, Connection, web_service
    from claimcheck.transports.pulsar._queries import topics_of

    given = {name: whole.options[name.lower()] for name in CONNECTION_OPTIONS if name.lower() in whole.options}
    with web_service(Connection.of(parse(given, CONNECTION_OPTIONS))) as admin:
        namespaces = ["/".join(name.split("/")[2:4]) for name in whole.names]
        yield _Broker(admin.cluster, lambda: topics_of(admin, namespaces))


# What the messages point at -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class References:
    spark: SparkSession
    topics: tuple[WholeTopics, ...]
    keep: tuple[Any, ...]
    header: bytes = field(repr=False)

    def tables(self) -> list[DataFrame]:
        return [_messages(self.spark, each, path=f"keep[{number}]") for number, each in enumerate(self.keep)]

    @contextmanager
    def take_away(self, rows: DataFrame) -> Iterator[Pass]:
        """Read everything once, and provide the rows that nothing points at."""
        with self._read() as found:
            references, damaged = _totals(found)
            spans = _spans(found)
            # Unlike rows that are persisted, these stay what they are when a table changes or a cache is cleared.
            left = rows.join(found.where("id IS NOT NULL").select("id"), "id", "left_anti").localCheckpoint()
        tables = [f"keep[{number}]" for number in range(len(self.keep))]
        unused = ["topics"] * (not references) + [each for each in tables if not spans.get(each, (0, 0))[1]]
        try:
            yield Pass(left, left.count(), spans, references, damaged, unused)
        finally:
            release(left)

    @contextmanager
    def without_referenced(self, rows: DataFrame, *, after: Spans) -> Iterator[Pass]:
        """Provide the rows that no message points at now, nor will; ``after`` is what a pass before has read."""
        with self.take_away(rows) as first:
            if _lost(after, first.spans) is None:
                yield first
                return
            with self.take_away(first.left) as second:
                if (lost := _lost(first.spans, second.spans)) is not None:
                    text = f"{lost}: messages were deleted while they were read, so nothing else was. Try again later"
                    raise TransportError(text, destination=lost)
                yield second

    @contextmanager
    def _read(self) -> Iterator[DataFrame]:
        from pyspark.sql import functions as F  # noqa: N812 - as everywhere

        parts = [each.read(self.spark) for each in self.topics]
        for number, df in enumerate(self.tables()):
            place = [F.lit(f"keep[{number}]").alias("place"), F.lit(None).cast("bigint").alias("position")]
            parts.append(df.toDF("value").select("value", *place))
        stage = partial(_found, self.header)
        found = reduce(lambda a, b: a.union(b), (map_rows(df, stage, _FOUND) for df in parts)).persist()
        try:
            yield found
        finally:
            found.unpersist()  # before the next pass, which would find these rows otherwise


def _messages(spark: SparkSession, given: Any, *, path: str) -> Any:
    """Return the messages that a table has now: a DataFrame has those that were there when it was defined."""
    table, column = given if isinstance(given, (tuple, list)) and len(given) == 2 else (given, "value")
    is_new, df = False, table
    if isinstance(table, str):
        if not spark.catalog.tableExists(table):
            fail(path, found=repr(table), expected="the name of a table of the catalog")
        spark.sql(f"REFRESH TABLE {table}")
        is_new, df = spark.catalog.getTable(table).tableType not in ("VIEW", "TEMPORARY"), spark.table(table)
    if not hasattr(df, "mapInArrow") or df.isStreaming:
        fail(path, found=f"a {type(df).__name__}", expected="a table's name, a DataFrame, or a pair (table, column)")
    df = with_index_names(df).select(f"c{find_column(df, path, column)}")
    if (execution := _execution(df.select("*"))) is None:  # Spark Connect
        if not is_new:  # it may show an old snapshot of an Iceberg table
            fail(path, found="a DataFrame or a view", expected="the name of a table, as this is Spark Connect")
        return df
    plan = execution.withCachedData()
    plan.refresh()
    leaves = plan.collectLeaves()
    for leaf in map(leaves.apply, range(leaves.size())):
        kind = leaf.getClass().getSimpleName()
        if kind in ("InMemoryRelation", "LogicalRDD", "LocalRelation"):
            fail(path, found="a DataFrame of fixed rows", expected="one without cache (call unpersist()) or checkpoint")
        if kind == "DataSourceV2Relation" and leaf.table().getClass().getName().startswith("org.apache.iceberg."):
            leaf.table().table().refresh()  # its newest snapshot
    return df


class Pass(NamedTuple):
    left: DataFrame
    size: int
    spans: Spans
    references: int
    damaged: int
    unused: list[str]  # tables without a pointer, and the topics if there is no pointer at all


def release(rows: Any) -> None:
    """Free the rows of a local checkpoint, except with Spark Connect, which shows no RDDs."""
    if (execution := _execution(rows)) is not None:
        execution.analyzed().rdd().unpersist(False)


def _execution(df: Any) -> Any:
    return df._jdf.queryExecution() if hasattr(df, "_jdf") else None  # of Java, which Spark Connect hides


def _lost(before: Spans, now: Spans) -> str | None:
    """Return a partition of which messages may have been deleted unread between two passes."""
    for place, (_, last) in before.items():
        if place not in now or now[place][0] > last:
            return place
    return None


def _totals(found: DataFrame) -> tuple[int, int]:
    from pyspark.sql import functions as F  # noqa: N812

    damaged = F.count_if(F.col("problem") == _DAMAGED)
    totals = found.agg(F.count("id"), damaged, F.max("problem")).collect()[0]
    if totals[2]:
        raise UnknownVersionError(f"nothing was deleted, because a message may point at anything: {totals[2]}")
    return totals[0], totals[1]


def _spans(found: DataFrame) -> Spans:
    rows = found.where("place IS NOT NULL").groupBy("place").agg({"first": "min", "last": "max"})
    return {place: (first, last) for place, first, last in rows.select("place", "min(first)", "max(last)").collect()}


def _found(header: bytes, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[Any, ...]]:
    """Yield the id of each pointer, or why a message cannot be understood; and what was read of each place."""
    for batch in batches:
        found = list(_references(header, batch))
        yield from ((*each, None, None, None) for each in found)
        yield from ((None, None, *span) for span in _spans_of(batch, sum(key is not None for key, _ in found)))


def _references(header: bytes, batch: pa.RecordBatch) -> Iterator[tuple[bytes | None, str | None]]:
    for number, message in enumerate(views(batch.column(0))):
        try:
            key = None if message is None else reference_of(message, header=header)
        except UnknownVersionError as error:
            place, position = (batch.column(index)[number].as_py() for index in (1, 2))
            yield None, f"{place}{'' if position is None else f', position {position}'}: {error}"
        except EnvelopeError:
            yield None, _DAMAGED
        else:
            if key is not None:
                yield fingerprint(key), None


def _spans_of(batch: pa.RecordBatch, pointers: int) -> Iterator[tuple[str, int, int]]:
    """Yield each place in a batch, with its first and last position; for a table, which has none, see `Spans`."""
    import pyarrow as pa

    table = pa.Table.from_arrays([batch.column(1), batch.column(2)], names=["place", "position"])
    spans = table.group_by("place").aggregate([("position", "min"), ("position", "max")])
    for row in spans.to_pylist():
        is_table = row["position_min"] is None
        yield row["place"], *((0, pointers) if is_table else (row["position_min"], row["position_max"]))
