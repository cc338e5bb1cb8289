"""Fixtures and markers for all tests: real servers, the Spark session, and the kind of each test."""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import logging
import os
import shutil
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import hypothesis
import pytest

import claimcheck
from tests import servers
from tests.real.process import JAVA_OPTIONS, with_classes
from tests.real.spark_home import CLASSES, spark_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.register_assert_rewrite(
    "claimcheck.testing._store_kit",  # some tests import it before its kit does
    "tests.kit.transport_chunks",
    "tests.kit.transport_conformance",
    "tests.kit.transport_asyncio",
    "tests.kit.transport_harness",
    "tests.kit.transport_sending",
)
ROOT = Path(__file__).resolve().parent.parent
# Appended, so that an installed package still wins: child processes of a test can import `tests.unit...`.
sys.path.append(str(ROOT))

IN_CI = os.environ.get("CI", "").lower() == "true"
SERVERS_REQUIRED = IN_CI or os.environ.get("CLAIMCHECK_REQUIRE_SERVERS") == "1"

# In CI every run uses the same examples, so that a failure means a change. Deadlines mean nothing on a shared machine.
common: dict[str, Any] = {"deadline": None, "derandomize": SERVERS_REQUIRED, "print_blob": True}
hypothesis.settings.register_profile("full", **common)
hypothesis.settings.register_profile("fast", **common, max_examples=20)
hypothesis.settings.load_profile("full")  # `make test` passes --hypothesis-profile=fast

# The AWS credential chain ends here, so that no test can use a developer's account.
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

os.environ["PYSPARK_PYTHON"] = sys.executable  # Spark's default is the first python3 on PATH
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
# A folder of this environment, unless the caller names another Spark. Not in an environment that cannot be written.
with contextlib.suppress(OSError):
    if "SPARK_HOME" not in os.environ and (home := spark_home(Path(sys.prefix, ".spark"))):
        os.environ["SPARK_HOME"] = str(home)
# Most JVMs of the tests live for seconds: the second compiler and parallel collectors cost more than they save.
for name in ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS", JAVA_OPTIONS):
    os.environ.setdefault(name, "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
os.environ["SPARK_SUBMIT_OPTS"] += with_classes(Path(os.environ.get("SPARK_HOME", ""), CLASSES))

Server = TypeVar("Server")


# Markers -------------------------------------------------------------------------------------------------------

FOLDER_MARKS = {"spark": "spark", "fault": "fault", "packaging": "packaging", "benchmarks": "slow"}
FIXTURE_MARKS = {
    "redis_url": "redis",
    "redis_endpoints": "redis",
    "redis_cluster": "redis",
    "redis_sentinel": "redis",
    "redis_programs": "redis",
    "s3_server": "s3",
    "s3_tls": "s3",
    "s3_programs": "s3",
    "azure_emulator": "azure",
    "kafka_jars": "kafka",
    "pulsar_jars": "pulsar",
    "rabbitmq_url": "rabbitmq",
    "prometheus_programs": "prometheus",
    "spark": "spark",
    "spark_kafka_jars": "spark",
}
# Files that start Spark or a broker several times or wait for long, the longest first.
LONG_FILES = (
    "test_random_faults",
    "test_examples",
    "test_reassemble_stream",
    "test_reassemble_cases",
    "test_sources",
    "test_spark_kafka",
    "test_shipping",
    "test_killed_collections",
    "test_garbage_servers",
    "test_permissions",
    "test_kafka_schedules",
    "test_pulsar_schedules",
    "test_docs",
    "test_spark_pulsar_streams",
    "test_kafka_rebalance",
)
NOT_FAST = {*FOLDER_MARKS.values(), *FIXTURE_MARKS.values()}
MAX_OPEN_FILES_PER_MODULE = 60


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test by its folder and its fixtures, and run long files first.

    Two or three processes share the files. With the long ones first, no process waits for the others at the end.
    """
    for item in items:
        for mark in _kinds(item):
            item.add_marker(mark)
        marks = {mark.name for mark in item.iter_markers()}
        if "smoke" in marks or not marks & NOT_FAST:
            item.add_marker("fast")
    needs_spark = {item.path for item in items if item.get_closest_marker("spark")}
    items.sort(key=lambda item: _turn(item.path, item.path in needs_spark))


def _kinds(item: pytest.Item) -> set[str]:
    folder = item.path.relative_to(ROOT / "tests").parts[0] if item.path.is_relative_to(ROOT / "tests") else ""
    kinds = {FIXTURE_MARKS[name] for name in getattr(item, "fixturenames", ()) if name in FIXTURE_MARKS}
    return kinds | ({FOLDER_MARKS[folder]} if folder in FOLDER_MARKS else set())


def _turn(path: Path, needs_spark: bool) -> int:
    if path.stem in LONG_FILES:
        return LONG_FILES.index(path.stem)
    return len(LONG_FILES) + (0 if needs_spark else 1)


@pytest.fixture(scope="module", autouse=True)
def _no_leaked_files() -> Iterator[None]:
    """Fail if a module leaves many more files open than it found; `select` cannot use descriptors above 1,023."""
    before = _open_files()
    yield
    if _open_files() - before > MAX_OPEN_FILES_PER_MODULE:
        gc.collect()
        assert _open_files() - before <= MAX_OPEN_FILES_PER_MODULE, "this module leaks file descriptors"


def _open_files() -> int:
    folder = "/proc/self/fd"
    return len(os.listdir(folder)) if os.path.isdir(folder) else 0


# Starting servers ---------------------------------------------------------------------------------------------


def _started(programs: str, start: Callable[[], AbstractContextManager[Server]]) -> AbstractContextManager[Server]:
    _require(programs)
    return start()


def _require(programs: str) -> None:
    missing = [program for program in programs.split() if not shutil.which(program)]
    if missing:
        _missing(f"no {' and no '.join(missing)} on PATH (see tests/servers.py for the CLAIMCHECK_TEST_* variables)")


def _missing(reason: str) -> None:
    """Skip the test, or fail it where servers are required."""
    if SERVERS_REQUIRED:
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def _server(programs: str, start: Callable[[], AbstractContextManager[Server]]) -> Any:
    """Return a fixture: one server for the whole run."""

    @pytest.fixture(scope="session")
    def server() -> Iterator[Server]:
        with _started(programs, start) as started:
            yield started

    return server


def _programs(names: str) -> Any:
    """Return a fixture: skips or fails a test that starts its own server where the programs are missing."""

    @pytest.fixture(scope="session")
    def programs() -> None:
        _require(names)

    return programs


# Spark ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def worker_env() -> dict[str, str]:
    """Environment in which child processes import the claimcheck under test."""
    return {"PYTHONPATH": str(Path(claimcheck.__file__).parent.parent)}


@pytest.fixture(scope="session")
def spark(worker_env: dict[str, str]) -> Iterator[SparkSession]:
    """A session with two cores on the loopback interface. Never skipped: pip installs a Java where there is none."""
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
    session.sparkContext.setLogLevel("OFF")  # tests that make tasks fail would fill pages
    yield session
    session.stop()


@pytest.fixture(scope="session")
def sc(spark: SparkSession) -> Any:
    """The Spark context."""
    return spark.sparkContext


# Redis ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """URL of a real Redis. Others may use it at the same time: use unique keys, never flush."""
    given = os.environ.get("CLAIMCHECK_TEST_REDIS_URL")
    with contextlib.nullcontext(given) if given else _started("redis-server", servers.redis) as url:
        yield url


@pytest.fixture(scope="module")
def fake_redis_url() -> Iterator[str]:
    """URL of a simulated Redis in this process, for one module."""
    import fakeredis

    server = fakeredis.TcpFakeServer(("127.0.0.1", 0))
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield f"redis://127.0.0.1:{server.server_address[1]}/0"
    server.shutdown()
    server.server_close()
    thread.join()


# No environment variable names the variants below: the tests always start their own.
redis_endpoints = _server("redis-server openssl", servers.redis_endpoints)  # passwords, a TLS port, a unix socket
redis_cluster = _server("redis-server redis-cli", servers.redis_cluster)  # three masters; no test moves its slots
redis_sentinel = _server("redis-server", servers.redis_sentinel)  # a replica, too; any test may switch their roles


def _endpoint(attribute: str) -> Any:
    """Return a fixture: the URL of one endpoint."""

    @pytest.fixture(scope="session")
    def url(redis_endpoints: servers.RedisEndpoints) -> str:
        return str(getattr(redis_endpoints, attribute))

    return url


redis_tls_url = _endpoint("tls_url")  # clients verify the certificate
redis_unix_url = _endpoint("unix_url")
redis_acl_url = _endpoint("acl_url")  # a user with no more rights than a store needs, in database 3


redis_programs = _programs("redis-server redis-cli")


@pytest.fixture
def own_redis(redis_programs: None) -> Iterator[servers.Server]:
    """A Redis for one test, which may kill it."""
    with servers.redis_server() as server:
        yield server


# S3 ------------------------------------------------------------------------------------------------------------

s3_tls = _server("versitygw openssl", servers.s3_tls)  # its port, and the certificate of its authority
azure_emulator = _server("azurite-blob", servers.azure)  # its address, and the environment of its clients


@pytest.fixture(scope="session")
def s3_server() -> Iterator[servers.S3Server]:
    """A real S3 server; the `AWS_*` variables hold its credentials."""
    given = os.environ.get("CLAIMCHECK_TEST_S3_ENDPOINT")
    known = servers.S3Server(given or "", os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"])
    with contextlib.nullcontext(known) if given else _started("versitygw", servers.s3) as server:
        yield server


s3_programs = _programs("versitygw")


@pytest.fixture(scope="session")
def s3_resource(s3_server: servers.S3Server) -> Any:
    """A boto3 resource on the real S3 server, to look at it without the store."""
    import boto3
    from botocore.config import Config

    as_stored = Config(response_checksum_validation="when_required")  # bytes that differ from their checksum, too
    return boto3.resource("s3", endpoint_url=s3_server.endpoint_url, config=as_stored)


@pytest.fixture
def s3_bucket(s3_resource: Any) -> Iterator[str]:
    """Name of a new bucket on the real S3 server, deleted with its contents after the test."""
    bucket = s3_resource.create_bucket(Bucket=f"test-{uuid.uuid4().hex}")
    yield bucket.name
    for upload in bucket.multipart_uploads.all():
        upload.abort()
    bucket.objects.all().delete()
    bucket.delete()


@pytest.fixture(scope="module")
def moto_url() -> Iterator[str]:
    """Address of a simulated S3 server in this process, which has what the real one lacks."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


# Pulsar --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def pulsar_broker(pulsar_jars: None) -> Iterator[servers.PulsarBroker]:
    """A real broker with a low size limit. Others may use it at the same time: use unique topics, never kill it."""
    given, admin = (os.environ.get(f"CLAIMCHECK_TEST_PULSAR_{name}URL", "") for name in ("", "ADMIN_"))
    known = servers.PulsarBroker(given, admin)
    with contextlib.nullcontext(known) if given else _started("java", servers.pulsar) as broker:
        yield broker


@pytest.fixture(scope="session")
def pulsar_jars() -> None:
    """Skips or fails where no broker is named and none can be started."""
    if servers.PULSAR_JARS not in os.environ and not os.environ.get("CLAIMCHECK_TEST_PULSAR_URL"):
        reason = f"neither CLAIMCHECK_TEST_PULSAR_URL nor {servers.PULSAR_JARS} is set (see tests/real/pulsar.xml)"
        _missing(f"no Pulsar: {reason}")


@pytest.fixture(scope="session")
def own_pulsar_jars(pulsar_jars: None) -> None:
    """Skips where a broker is named, and no other can be started."""
    _need_own(servers.PULSAR_JARS)


def _need_own(jars: str) -> None:
    if jars not in os.environ:
        pytest.skip("no jars to start a broker of one's own")


@pytest.fixture(scope="module")
def secure_pulsar(own_pulsar_jars: None) -> Iterator[Any]:
    """A broker of the module's own, with tokens and TLS."""
    with servers.secure_pulsar() as broker:
        yield broker


@pytest.fixture(scope="session")
def pulsar_client(pulsar_broker: servers.PulsarBroker) -> Iterator[Any]:
    """One client for all tests; it writes to the log, not to standard output."""
    import pulsar

    logger = logging.getLogger("pulsar-client")
    logger.setLevel(logging.CRITICAL)
    client = pulsar.Client(pulsar_broker.service_url, logger=logger, operation_timeout_seconds=30)
    yield client
    client.close()


# Kafka ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def kafka_broker(kafka_jars: None) -> Iterator[servers.KafkaBroker]:
    """A real broker with default limits. Others may use it at the same time: use unique topics and groups."""
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
def own_kafka_jars(kafka_jars: None) -> None:
    """Skips where a broker is named, and no other can be started."""
    _need_own(servers.KAFKA_JARS)


@pytest.fixture(scope="session")
def spark_kafka_jars() -> str:
    """The jars of Spark's Kafka source and sink, as the value of ``spark.jars``."""
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
    """Skips or fails where a dependency of Spark Connect's client is missing."""
    missing = [name for name in ("grpc", "grpc_status", "zstandard") if importlib.util.find_spec(name) is None]
    if missing:
        _missing(f"no {' and no '.join(missing)}: pip install 'pyspark[connect]'")


# RabbitMQ ------------------------------------------------------------------------------------------------------

rabbitmq_url = _server("rabbitmq-server epmd", servers.rabbitmq)


# Prometheus ----------------------------------------------------------------------------------------------------


prometheus_programs = _programs("prometheus promtool")


@pytest.fixture
def topic() -> str:
    """A unique topic name."""
    return f"test-{uuid.uuid4().hex}"
