"""Real servers for tests: Redis, an S3 gateway, Pulsar, Kafka and RabbitMQ, started as processes on free ports.

The fixtures in conftest.py use the context managers of tests/real/. To run a command with every server that this
machine can start and the environment does not name yet::

    python tests/servers.py make test-all

This module needs the standard library only, so it runs before anything is installed.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

if __name__ == "__main__":  # a script has its own folder on the path only
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.real.kafka_broker import JARS as KAFKA_JARS
from tests.real.kafka_broker import KafkaBroker, kafka
from tests.real.object_stores import ACCESS_KEY, SECRET_KEY, S3Server, azure, s3, s3_tls
from tests.real.process import Server, make_certificate, wait_until
from tests.real.pulsar_broker import JARS as PULSAR_JARS
from tests.real.pulsar_broker import MAX_MESSAGE_BYTES as PULSAR_MAX_MESSAGE_BYTES
from tests.real.pulsar_broker import PulsarBroker, SecurePulsar, pulsar, secure_pulsar
from tests.real.rabbitmq_broker import rabbitmq
from tests.real.redis_servers import (
    RedisCluster,
    RedisEndpoints,
    redis,
    redis_cluster,
    redis_endpoints,
    redis_sentinel,
    redis_server,
    redis_url,
)

PREFIX = "CLAIMCHECK_TEST_"
"""Of the variables that name servers; the fixtures in conftest.py read them."""

SPARK_KAFKA_JARS = "CLAIMCHECK_TEST_SPARK_KAFKA_JARS"
"""Variable that names the folder with the jars listed in tests/real/kafka_spark.xml."""

__all__ = [
    "ACCESS_KEY", "SECRET_KEY", "S3Server", "azure", "s3", "s3_tls", "make_certificate",
    "KAFKA_JARS", "SPARK_KAFKA_JARS", "KafkaBroker", "kafka", "rabbitmq",
    "PULSAR_JARS", "PULSAR_MAX_MESSAGE_BYTES", "PulsarBroker", "SecurePulsar", "pulsar", "secure_pulsar",
    "RedisCluster", "RedisEndpoints", "redis", "redis_cluster", "redis_endpoints", "redis_sentinel", "redis_server",
    "redis_url", "Server", "wait_until",
]  # fmt: skip


def main(command: list[str]) -> int:
    """Start the servers, run a command with their addresses in its environment, and return its exit status."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # stops the servers of a killed run
    with ExitStack() as stack:
        process = subprocess.Popen(command, env={**os.environ, **_start(stack)})
        try:
            return process.wait()
        except BaseException:
            _stop(process)  # terminates first, so that make and pytest clean up
            raise


def _start(stack: ExitStack) -> dict[str, str]:
    """Start the servers that the environment does not name and this machine has; return their variables."""
    variables = {}
    if _is_missing("REDIS_URL") and _on_path("redis-server"):
        variables["REDIS_URL"] = stack.enter_context(redis())
    if _is_missing("S3_ENDPOINT") and _on_path("versitygw"):
        gateway = stack.enter_context(s3())
        variables["S3_ENDPOINT"] = gateway.endpoint_url
        variables |= {"S3_ACCESS_KEY": gateway.access_key, "S3_SECRET_KEY": gateway.secret_key}
    if _is_missing("PULSAR_URL") and PULSAR_JARS in os.environ:
        broker = stack.enter_context(pulsar())
        variables |= {"PULSAR_URL": broker.service_url, "PULSAR_ADMIN_URL": broker.admin_url}
    if _is_missing("KAFKA_BOOTSTRAP_SERVERS") and KAFKA_JARS in os.environ:
        variables["KAFKA_BOOTSTRAP_SERVERS"] = stack.enter_context(kafka()).bootstrap_servers
    return {f"{PREFIX}{name}": value for name, value in variables.items()}


def _is_missing(name: str) -> bool:
    return not os.environ.get(f"{PREFIX}{name}")


def _on_path(program: str) -> bool:
    """Return whether a program exists; the tests that need a missing one skip."""
    if shutil.which(program):
        return True
    print(f"{program} is not on PATH, so it is not started", file=sys.stderr)
    return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
