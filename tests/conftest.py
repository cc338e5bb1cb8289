"""What all tests share: a bare checkout that imports, real servers, an environment in which no accident can happen."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import shutil
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import hypothesis
import pytest

import claimcheck
from tests import servers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = str(Path(__file__).resolve().parent.parent)
# At the very end, so that what is installed still wins: a process that a test spawns finds `tests.unit...` by its name.
sys.path.append(ROOT)

IN_CI = os.environ.get("CI", "").lower() == "true"
SERVERS_REQUIRED = IN_CI or os.environ.get("CLAIMCHECK_REQUIRE_SERVERS") == "1"

# The same examples on every run of CI: a red build must mean a change, not luck. Times say nothing on a shared machine.
hypothesis.settings.register_profile("claimcheck", deadline=None, derandomize=SERVERS_REQUIRED, print_blob=True)
hypothesis.settings.load_profile("claimcheck")

# The SDK's own chain of credentials ends here: no test can ever reach the account of whoever runs it.
os.environ.update(
    AWS_ACCESS_KEY_ID=os.environ.get("CLAIMCHECK_TEST_S3_ACCESS_KEY", servers.ACCESS_KEY),
    AWS_SECRET_ACCESS_KEY=os.environ.get("CLAIMCHECK_TEST_S3_SECRET_KEY", servers.SECRET_KEY),
    AWS_DEFAULT_REGION="us-east-1",
    AWS_EC2_METADATA_DISABLED="true",
    AWS_CONFIG_FILE=os.devnull,
    AWS_SHARED_CREDENTIALS_FILE=os.devnull,
)
for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
    os.environ.pop(name, None)

os.environ["PYSPARK_PYTHON"] = sys.executable  # Spark's own choice is the first python3 on PATH
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")

Server = TypeVar("Server")


@pytest.fixture(scope="session")
def worker_env() -> dict[str, str]:
    """Environment in which other processes import the claimcheck that is tested here."""
    return {"PYTHONPATH": str(Path(claimcheck.__file__).parent.parent)}


@pytest.fixture(scope="session")
def spark(worker_env: dict[str, str]) -> Iterator[SparkSession]:
    """Two cores, no network but the loopback. It is never skipped: a Java comes by pip where there is none."""
    from claimcheck.spark import ensure_java

    ensure_java()
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").appName("claimcheck-tests")
    options = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
    }
    options |= {f"spark.executorEnv.{name}": value for name, value in worker_env.items()}
    for name, value in options.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")  # tasks that fail on purpose would fill pages
    yield session
    session.stop()


@pytest.fixture(scope="session")
def sc(spark: SparkSession) -> Any:
    """Its context."""
    return spark.sparkContext


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """URL of a real Redis. It may be shared with other processes and other people: use unique keys, never flush."""
    given = os.environ.get("CLAIMCHECK_TEST_REDIS_URL")
    with contextlib.nullcontext(given) if given else _started("redis-server", servers.redis) as url:
        yield url


@pytest.fixture(scope="session")
def s3_server() -> Iterator[servers.S3Server]:
    """A real S3 server; `AWS_*` in the environment already holds its credentials."""
    given = os.environ.get("CLAIMCHECK_TEST_S3_ENDPOINT")
    known = servers.S3Server(given or "", os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"])
    with contextlib.nullcontext(known) if given else _started("versitygw", servers.s3) as server:
        yield server


@pytest.fixture(scope="session")
def s3_tls() -> Iterator[tuple[int, Path]]:
    """The port of a real S3 server with TLS, and the certificate of its authority."""
    with _started("versitygw openssl", servers.s3_tls) as server:
        yield server


@pytest.fixture(scope="session")
def s3_back_door(s3_server: servers.S3Server) -> Any:
    """boto3's own view of the real S3 server."""
    import boto3

    return boto3.resource("s3", endpoint_url=s3_server.endpoint_url)


@pytest.fixture
def s3_bucket(s3_back_door: Any) -> Iterator[str]:
    """Name of a fresh bucket on the real S3 server, removed with all that it holds."""
    bucket = s3_back_door.create_bucket(Bucket=f"test-{uuid.uuid4().hex}")
    yield bucket.name
    for upload in bucket.multipart_uploads.all():
        upload.abort()
    bucket.objects.all().delete()
    bucket.delete()


# Redis in its other shapes. No variable names these: they are always our own, and so is all that is in them.


@pytest.fixture(scope="session")
def redis_doors() -> Iterator[servers.RedisDoors]:
    """A Redis behind passwords, with several ways in."""
    with _started("redis-server openssl", servers.redis_doors) as doors:
        yield doors


@pytest.fixture(scope="session")
def redis_tls_url(redis_doors: servers.RedisDoors) -> str:
    """Of an encrypted line to a server whose certificate is checked."""
    return redis_doors.tls_url


@pytest.fixture(scope="session")
def redis_unix_url(redis_doors: servers.RedisDoors) -> str:
    """Of a socket in the file system."""
    return redis_doors.unix_url


@pytest.fixture(scope="session")
def redis_acl_url(redis_doors: servers.RedisDoors) -> str:
    """For a user who may do no more than a store needs, in database 3."""
    return redis_doors.acl_url


@pytest.fixture(scope="session")
def redis_cluster() -> Iterator[servers.RedisCluster]:
    """Three masters. Use unique keys; whoever moves slots asks for a cluster of his own."""
    with _started("redis-server redis-cli", servers.redis_cluster) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def redis_cluster_url(redis_cluster: servers.RedisCluster) -> str:
    """Of all three, as a store takes it."""
    return redis_cluster.url


@pytest.fixture(scope="session")
def redis_sentinel() -> Iterator[servers.RedisSentinel]:
    """A master and its replica, which any test may let change places."""
    with _started("redis-server", servers.redis_sentinel) as sentinel:
        yield sentinel


@pytest.fixture(scope="session")
def redis_programs() -> None:
    """For tests that start a Redis of their own, to fill it up, to kill it, or to move its slots."""
    _require("redis-server redis-cli")


@pytest.fixture
def own_redis(redis_programs: None) -> Iterator[servers.Server]:
    """A plain one, for one test."""
    with servers.redis_server() as server:
        yield server


# Pulsar: one broker for all, since it takes seconds to start; whoever kills one asks for one of his own.


@pytest.fixture(scope="session")
def pulsar_broker(pulsar_jars: None) -> Iterator[servers.PulsarBroker]:
    """A real broker with a small limit. It may be shared: use topics of your own."""
    given, admin = (os.environ.get(f"CLAIMCHECK_TEST_PULSAR_{name}URL", "") for name in ("", "ADMIN_"))
    known = servers.PulsarBroker(given, admin)
    with contextlib.nullcontext(known) if given else _started("java", servers.pulsar) as broker:
        yield broker


@pytest.fixture(scope="session")
def pulsar_jars() -> None:
    """Skips or fails where no broker is named and none can be started."""
    if servers.JARS not in os.environ and not os.environ.get("CLAIMCHECK_TEST_PULSAR_URL"):
        _missing(f"no Pulsar: neither CLAIMCHECK_TEST_PULSAR_URL nor {servers.JARS} is set (see tests/real/pulsar.xml)")


@pytest.fixture(scope="session")
def pulsar_client(pulsar_broker: servers.PulsarBroker) -> Iterator[Any]:
    """One client for all tests; it says in the log what it would print."""
    import pulsar

    logger = logging.getLogger("pulsar-client")
    logger.setLevel(logging.CRITICAL)
    client = pulsar.Client(pulsar_broker.service_url, logger=logger, operation_timeout_seconds=30)
    yield client
    client.close()


# Kafka: one broker for all, too.


@pytest.fixture(scope="session")
def kafka_broker(kafka_jars: None) -> Iterator[servers.KafkaBroker]:
    """A real broker with its defaults. It may be shared: use topics and groups of your own."""
    given = os.environ.get("CLAIMCHECK_TEST_KAFKA_BOOTSTRAP_SERVERS", "")
    known = servers.KafkaBroker(given)
    with contextlib.nullcontext(known) if given else _started("java", servers.kafka) as broker:
        yield broker


@pytest.fixture(scope="session")
def kafka_jars() -> None:
    """Skips or fails where no broker is named and none can be started."""
    name = "CLAIMCHECK_TEST_KAFKA_BOOTSTRAP_SERVERS"
    if servers.KAFKA_JARS not in os.environ and not os.environ.get(name):
        _missing(f"no Kafka: neither {name} nor {servers.KAFKA_JARS} is set (see tests/real/kafka.xml)")


@pytest.fixture(scope="session")
def spark_kafka_jars() -> str:
    """The jars of Spark's Kafka source and sink, as ``spark.jars`` takes them: before its Java starts."""
    import pyspark

    folder = os.environ.get(servers.SPARK_KAFKA_JARS)
    if not folder:
        _missing(f"no Kafka for Spark: {servers.SPARK_KAFKA_JARS} is not set (see tests/real/kafka_spark.xml)")
    jars = sorted(map(str, Path(str(folder)).glob("*.jar")))
    wanted = f"spark-sql-kafka-0-10_2.13-{pyspark.__version__.rpartition('.')[0]}."
    if not any(wanted in jar for jar in jars):
        pytest.fail(f"no {wanted}*.jar in {folder} for pyspark {pyspark.__version__}: see tests/real/kafka_spark.xml")
    return ",".join(jars)


@pytest.fixture(scope="session")
def spark_connect() -> None:
    """Skips or fails where pyspark has not what its client for Spark Connect needs."""
    missing = [name for name in ("grpc", "grpc_status", "zstandard") if importlib.util.find_spec(name) is None]
    if missing:
        _missing(f"no {' and no '.join(missing)}: pip install 'pyspark[connect]'")


@pytest.fixture
def topic() -> str:
    """A name that nobody else has."""
    return f"test-{uuid.uuid4().hex}"


def _started(programs: str, start: Callable[[], AbstractContextManager[Server]]) -> AbstractContextManager[Server]:
    _require(programs)
    return start()


def _require(programs: str) -> None:
    missing = [program for program in programs.split() if not shutil.which(program)]
    if not missing:
        return
    _missing(f"no {' and no '.join(missing)} on PATH (which servers CLAIMCHECK_TEST_* may name: see tests/servers.py)")


def _missing(reason: str) -> None:
    """A laptop without the server may skip; where servers are promised, a skipped test would be a lie."""
    if SERVERS_REQUIRED:
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)
