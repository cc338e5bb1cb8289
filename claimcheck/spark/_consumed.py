"""How far every group or subscription has read some topics, as the driver asks their broker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from claimcheck._validation import fail

if TYPE_CHECKING:
    from claimcheck.spark.sources._pulsar.connection import Connection

ADMIN = "admin"
"""The key of settings for the client that looks at the groups of Kafka."""

Places = Mapping[tuple[str, int], int]
"""The position below which everything is consumed, by topic and partition."""

_LEDGER = 1 << 32
_SERVERS, _SECURITY = "kafka.bootstrap.servers", ("kafka.security.protocol", "kafka.sasl.", "kafka.ssl.")


def admin_settings(given: object, options: Mapping[str, str], *, path: str) -> dict[str, Any]:
    """Return the settings of the client that looks at groups: it is another one than Spark's, which Java runs."""
    if given is not None and not isinstance(given, Mapping):
        fail(path, found=f"a {type(given).__name__}", expected="a mapping of settings of librdkafka")
    lower = {name.lower(): value for name, value in options.items()}
    secure = next((name for name in lower if name.startswith(_SECURITY)), None)
    if given is None and secure is not None:
        expected = f"settings of librdkafka that replace {secure!r} and the like, to look at the groups"
        fail(path, found="nothing", expected=expected)
    return {"bootstrap.servers": lower.get(_SERVERS, ""), **(given or {})}


def kafka_cluster(settings: Mapping[str, Any], *, path: str) -> str:
    """Return the name of a Kafka cluster; raises as `kafka_places`."""
    from claimcheck.transports.kafka._queries import Cluster

    return Cluster(settings, path=path).name()


def kafka_places(settings: Mapping[str, Any], topics: tuple[str, ...], *, path: str) -> Places:
    """Return what every group of Kafka has read; see `claimcheck.transports.kafka._queries.consumed_offsets`."""
    from claimcheck.transports.kafka._queries import Cluster, consumed_offsets

    cluster = Cluster(settings, path=path)
    known = cluster.topics()
    places = [(name, number) for name in topics if name in known for number in known[name].partitions]
    return consumed_offsets(cluster.admin, places)


def pulsar_places(connection: Connection, topics: tuple[str, ...]) -> Places:
    """Return what every durable subscription has acknowledged."""
    from claimcheck.spark.sources._pulsar.client import consumed_positions
    from claimcheck.spark.sources._pulsar.reader import split_name

    found = consumed_positions(connection, topics)
    return {split_name(name): ledger * _LEDGER + entry + 1 for name, (ledger, entry) in found.items()}


def local_places(path: str, topics: tuple[str, ...]) -> Places:
    """Return what every group of an embedded broker has acknowledged."""
    from claimcheck.transports.local import LocalBroker

    with LocalBroker(path) as broker:
        places = [(topic, number) for topic in topics for number in range(broker.partitions(topic))]
        return {place: broker.consumed_offset(*place) for place in places}
