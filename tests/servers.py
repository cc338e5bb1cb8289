"""Real servers for tests: Redis in all its shapes, an S3 gateway, Pulsar and Kafka, started natively on free ports.

The fixtures in conftest.py use it, and so does a person who wants to run something against a Redis and a gateway:

    python tests/servers.py make test

Only the standard library is imported, so any Python can run it before anything is installed. Each is a context manager
that gives what a client needs, and stops its server at the end; tests/real/ shows how.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

if __name__ == "__main__":  # a script finds its neighbours, but not the folder that holds them
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.real.authority import make_certificate
from tests.real.gateway import ACCESS_KEY, SECRET_KEY, S3Server, s3, s3_tls
from tests.real.kafka_broker import JARS as KAFKA_JARS
from tests.real.kafka_broker import KafkaBroker, kafka
from tests.real.process import Server, ServerError, Spot, wait_until
from tests.real.pulsar_broker import JARS, PulsarBroker, pulsar
from tests.real.pulsar_broker import MAX_MESSAGE_BYTES as PULSAR_MAX_MESSAGE_BYTES
from tests.real.pulsar_secure import SecurePulsar, secure_pulsar
from tests.real.redis_alone import RedisDoors, redis, redis_doors, redis_server, redis_url
from tests.real.redis_groups import RedisCluster, RedisSentinel, redis_cluster, redis_sentinel

SPARK_KAFKA_JARS = "CLAIMCHECK_TEST_SPARK_KAFKA_JARS"
"""Names the folder that holds the jars of Spark's Kafka source and sink; tests/real/kafka_spark.xml says which."""

__all__ = [
    "make_certificate",
    "ACCESS_KEY", "SECRET_KEY", "S3Server", "s3", "s3_tls",
    "KAFKA_JARS", "SPARK_KAFKA_JARS", "KafkaBroker", "kafka",
    "JARS", "PULSAR_MAX_MESSAGE_BYTES", "PulsarBroker", "pulsar",
    "SecurePulsar", "secure_pulsar",
    "Server", "ServerError", "Spot", "wait_until",
    "RedisDoors", "redis", "redis_doors", "redis_server", "redis_url",
    "RedisCluster", "RedisSentinel", "redis_cluster", "redis_sentinel",
]  # fmt: skip


def main(command: list[str]) -> int:
    """Run a command with the servers up and named in its environment; gives the command's exit status."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that a killed run still stops its servers
    with (
        redis() if _there("redis-server") else nullcontext() as url,
        s3() if _there("versitygw") else nullcontext() as gateway,
        pulsar() if JARS in os.environ else nullcontext() as broker,
        kafka() if KAFKA_JARS in os.environ else nullcontext() as kafka_broker,
    ):
        environment = {
            "CLAIMCHECK_TEST_KAFKA_BOOTSTRAP_SERVERS": kafka_broker.bootstrap_servers if kafka_broker else "",
            "CLAIMCHECK_TEST_PULSAR_URL": broker.service_url if broker else "",
            "CLAIMCHECK_TEST_PULSAR_ADMIN_URL": broker.admin_url if broker else "",
            "CLAIMCHECK_TEST_REDIS_URL": url or "",
            "CLAIMCHECK_TEST_S3_ENDPOINT": gateway.endpoint_url if gateway else "",
            "CLAIMCHECK_TEST_S3_ACCESS_KEY": gateway.access_key if gateway else ACCESS_KEY,
            "CLAIMCHECK_TEST_S3_SECRET_KEY": gateway.secret_key if gateway else SECRET_KEY,
        }
        process = subprocess.Popen(command, env={**os.environ, **environment})
        try:
            return process.wait()
        except BaseException:
            _stop(process)  # asks first: make and pytest clean up after themselves
            raise


def _there(program: str) -> bool:
    """Whether it can be started; what cannot is left out, and its tests say so."""
    if shutil.which(program):
        return True
    print(f"{program} is not on PATH and is not started", file=sys.stderr)
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
