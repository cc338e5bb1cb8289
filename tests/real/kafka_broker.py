"""A single Kafka node: broker and controller in one process, started from its jars."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

from tests.real.process import Location, Server, accepts_connections, java, make_certificate, running, wait_until

JARS = "CLAIMCHECK_TEST_KAFKA_JARS"
"""Variable that names the folder with the jars listed in tests/real/kafka.xml."""

_READY_WITHIN_SECONDS = 60.0
_GROUPS = 8  # enough to find every partition of the topic for offsets
_CLUSTER_ID = "Y2xhaW1jaGVjay10ZXN0cw"  # any 16 bytes in base64
_CONFIGURATION = """\
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=127.0.0.1:{spare}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{spare}
advertised.listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{spare}
inter.broker.listener.name=PLAINTEXT
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={folder}/data
num.partitions=1
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
group.consumer.min.session.timeout.ms=1000
group.consumer.session.timeout.ms=3000
group.consumer.min.heartbeat.interval.ms=200
group.consumer.heartbeat.interval.ms=500
group.share.min.heartbeat.interval.ms=200
group.share.heartbeat.interval.ms=500
log.retention.check.interval.ms=1000
broker.session.timeout.ms=1500
broker.heartbeat.interval.ms=300
"""
_RAISED = """\
message.max.bytes={most}
replica.fetch.max.bytes={most}
socket.request.max.bytes={request}
"""
_SECURE = """\
listeners=SASL_SSL://127.0.0.1:{port},CONTROLLER://127.0.0.1:{spare}
advertised.listeners=SASL_SSL://127.0.0.1:{port},CONTROLLER://127.0.0.1:{spare}
inter.broker.listener.name=SASL_SSL
listener.security.protocol.map=CONTROLLER:PLAINTEXT,SASL_SSL:SASL_SSL
sasl.enabled.mechanisms=PLAIN,OAUTHBEARER
sasl.mechanism.inter.broker.protocol=PLAIN
listener.name.sasl_ssl.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \
  username="operator" password="{password}" user_operator="{password}";
listener.name.sasl_ssl.oauthbearer.sasl.jaas.config=\
  org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:operator;User:ANONYMOUS
ssl.keystore.type=PEM
ssl.keystore.location={folder}/server.pem
ssl.truststore.type=PEM
ssl.truststore.location={folder}/ca.crt
"""


@dataclass(frozen=True)
class KafkaBroker:
    """Address of a broker.

    Attributes:
        bootstrap_servers: For clients.
        server: The process, if the tests started it. A test may kill and restart it; its data survives.
    """

    bootstrap_servers: str
    server: Server | None = None


@contextlib.contextmanager
def kafka(
    *,
    max_message_bytes: int | None = None,
    heap: str = "512m",
    password: str | None = None,
    proxy_port: int | None = None,
) -> Iterator[KafkaBroker]:
    """Run a broker, which is ready when it accepts connections, and without a password when groups can use it.

    Args:
        max_message_bytes: Size limit of a record. Default: the broker's own, 1,048,588.
        heap: Value of ``java -Xmx``. Each record being written also takes its size outside of the heap.
        password: Of the user ``operator``, who may do everything; with SASL PLAIN and TLS. OAuth tokens of all others,
            who need ACLs, need no signature. The authority is in ``ca.crt`` in the server's folder. Default: neither
            passwords nor TLS.
        proxy_port: Where clients reach it. When this returns, it may not yet be ready for groups.
    """

    def command(location: Location) -> list[str]:
        configuration = location.folder / "kafka.properties"
        text = _CONFIGURATION.format(port=location.port, spare=location.extra_port, folder=location.folder)
        if max_message_bytes is not None:
            text += _RAISED.format(most=max_message_bytes, request=max_message_bytes + (1 << 20))
        if password is not None:
            make_certificate(location.folder)
            pem = [(location.folder / name).read_text() for name in ("server.key", "server.crt")]
            (location.folder / "server.pem").write_text("".join(pem))
            text += _SECURE.format(
                port=location.port, spare=location.extra_port, folder=location.folder, password=password
            )
        if proxy_port is not None:
            text += f"advertised.listeners=PLAINTEXT://127.0.0.1:{proxy_port},CONTROLLER://127.0.0.1:{location.extra_port}\n"
        configuration.write_text(text)
        tool = _java("kafka.tools.StorageTool", "format", "--standalone", "--ignore-formatted")
        tool += ["--cluster-id", _CLUSTER_ID, "--config", str(configuration)]
        subprocess.run(tool, check=True, stdout=subprocess.DEVNULL)
        return _java("kafka.Kafka", str(configuration), heap=heap)

    with running(command, accepts_connections, ready_within=_READY_WITHIN_SECONDS) as server:
        broker = KafkaBroker(f"127.0.0.1:{server.port}", server)
        if password is None and proxy_port is None:
            wait_until(lambda: _has_coordinators(broker), "the broker returns committed offsets", _READY_WITHIN_SECONDS)
        yield broker


def _has_coordinators(broker: KafkaBroker) -> bool:
    """Whether committed offsets can be read: the broker creates the topic for them at the first request."""
    import confluent_kafka

    for number in range(_GROUPS):
        options = {"bootstrap.servers": broker.bootstrap_servers, "group.id": f"ready-{number}", "log_level": 0}
        consumer = confluent_kafka.Consumer(options)
        try:
            consumer.committed([confluent_kafka.TopicPartition("ready", 0)], timeout=5)
        except confluent_kafka.KafkaException:
            return False
        finally:
            consumer.close()
    return True


def _java(*arguments: str, heap: str = "512m") -> list[str]:
    return [*java(os.environ[JARS]), f"-Xmx{heap}", *arguments]
