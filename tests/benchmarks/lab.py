"""What a run measures with: servers, clients and stores, each there from its first use to the run's end."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock
from urllib.parse import urlsplit

import claimcheck
from claimcheck.transports.kafka._queries import KafkaTarget
from claimcheck.transports.pulsar._queries import PulsarTarget
from tests import servers
from tests.benchmarks.brokers import Broker, connect
from tests.benchmarks.children import helper
from tests.benchmarks.rounds import MIB, Effort
from tests.parts import divided

T = TypeVar("T")
HERE = Path(__file__).resolve().parent
BUCKET = "bench"
REGION = "us-east-1"
# Redis gives memory that it has freed back to the system, and touching new memory is most of the price of a large
# write. With these settings of its allocator it keeps the memory and uses it again.
RECYCLING = "dirty_decay_ms:60000,muzzy_decay_ms:-1"
KAFKA_MAX_MESSAGE_BYTES = 128 * MIB
THRESHOLD = 1000  # bytes; everything that is measured is larger, or tells
# The SDK's own chain of credentials ends here: no run can ever reach the account of whoever runs it.
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": servers.ACCESS_KEY,
    "AWS_SECRET_ACCESS_KEY": servers.SECRET_KEY,
    "AWS_DEFAULT_REGION": REGION,
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
}


class Lab:
    """Opens what a step asks for; a context manager that closes all of it."""

    def __init__(self, effort: Effort) -> None:
        self.effort = effort
        self._stack = contextlib.ExitStack()
        self._step = contextlib.ExitStack()
        self._lines: dict[tuple[str, float, float], str] = {}
        self._brokers: dict[str, Broker] = {}

    def __enter__(self) -> Lab:
        self._stack.enter_context(mock.patch.dict(os.environ, CREDENTIALS))
        for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
            os.environ.pop(name, None)
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Run one step, with all that it opens or stores only for itself."""
        with contextlib.ExitStack() as self._step:
            yield

    def stored(self, store: claimcheck.Store, payload: bytes) -> claimcheck.Pointer:
        """Put a payload there for as long as the step lasts."""
        pointer = store.write(payload)
        self._step.callback(store.rollback, pointer)
        return pointer

    def enter(self, manager: contextlib.AbstractContextManager[T]) -> T:
        """Open something for as long as the step lasts."""
        return self._step.enter_context(manager)

    def at_end(self, work: Callable[[], object]) -> None:
        """Do something at the end of the step."""
        self._step.callback(work)

    def _closed(self, thing: Any) -> Any:
        """Close something at the end of the run."""
        return self._stack.enter_context(contextlib.closing(thing))

    @cached_property
    def folder(self) -> Path:
        """An empty one, for everything that this run leaves on a disk."""
        return Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="claimcheck-bench-")))

    # Servers -----------------------------------------------------------------------------------------------------

    @cached_property
    def redis(self) -> str:
        """URL of a Redis that keeps the memory that it has freed; see `RECYCLING`."""
        with mock.patch.dict(os.environ, {"MALLOC_CONF": RECYCLING, "JE_MALLOC_CONF": RECYCLING}):
            needed("redis-server")
            return self._stack.enter_context(servers.redis())

    @cached_property
    def redis_client(self) -> Any:
        import redis

        return self._closed(redis.Redis.from_url(self.redis))

    def forget(self, result: object = None) -> None:
        """Delete what is in the Redis: nobody wants it, and the server would keep it for its lifetime."""
        self.redis_client.flushall()

    @cached_property
    def s3(self) -> str:
        """URL of the S3 server that keeps nothing."""
        return f"http://127.0.0.1:{self._stack.enter_context(helper(sys.executable, HERE / 'far_end.py', 's3'))}"

    @cached_property
    def near_s3(self) -> str:
        """URL of an S3 server that keeps what it gets."""
        import boto3

        needed("versitygw")
        near = self._stack.enter_context(servers.s3(keep_alive=True)).endpoint_url
        boto3.client("s3", endpoint_url=near).create_bucket(Bucket=BUCKET)
        return near

    @cached_property
    def cloud_s3(self) -> str:
        """URL of the same one at the end of a line like a cloud's."""
        return self.afar(self.near_s3, 16, 90)

    def afar(self, url: str, milliseconds: float, megabytes: float = float("inf")) -> str:
        """Return a URL of the same server at the end of a line with that round trip and rate; see far_end.py."""
        line, parts = (url, milliseconds, megabytes), urlsplit(url)
        if line not in self._lines:
            command = (sys.executable, HERE / "far_end.py", "line", "127.0.0.1", str(parts.port))
            port = self._stack.enter_context(helper(*command, str(milliseconds), str(megabytes)))
            self._lines[line] = parts._replace(netloc=f"127.0.0.1:{port}").geturl()
        return self._lines[line]

    @cached_property
    def spark(self) -> Any:
        """A session with two cores."""
        from tests.benchmarks.spark_rows import session

        spark = session()
        self._stack.callback(spark.stop)
        return spark

    @cached_property
    def pulsar(self) -> servers.PulsarBroker:
        """A Pulsar with its usual limit of 5 MiB."""
        needed("java", servers.PULSAR_JARS, "tests/real/pulsar.xml")
        return self._stack.enter_context(servers.pulsar(5 * MIB))

    @cached_property
    def pulsar_client(self) -> Any:
        import pulsar

        logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        return self._closed(pulsar.Client(self.pulsar.service_url, logger=logger))

    @cached_property
    def kafka(self) -> str:
        """Where clients find a Kafka that takes records of any size that is measured, whole."""
        needed("java", servers.KAFKA_JARS, "tests/real/kafka.xml")
        broker = servers.kafka(max_message_bytes=KAFKA_MAX_MESSAGE_BYTES, heap="3g")
        return self._stack.enter_context(broker).bootstrap_servers

    def broker(self, kind: str) -> Broker:
        """Connect to one of these as `make compare` does."""
        if kind not in self._brokers:
            target = KafkaTarget(self.kafka, ()) if kind == "kafka" else None
            self._brokers[kind] = self._closed(
                connect(target or PulsarTarget(self.pulsar.service_url, self.pulsar.admin_url, ()))
            )
        return self._brokers[kind]

    # Peers -------------------------------------------------------------------------------------------------------

    def boto3(self, url: str | None = None) -> Any:
        """Make an S3 client with all defaults, as people use it."""
        import boto3

        return self._closed(boto3.client("s3", endpoint_url=url or self.s3))

    def bare_obstore(self, url: str) -> Any:
        """Open the bucket of an S3 server with obstore alone."""
        from obstore.store import S3Store

        config: Any = {"endpoint": url, "virtual_hosted_style_request": False}
        return S3Store(BUCKET, config=config, client_options={"allow_http": True})

    # Ours --------------------------------------------------------------------------------------------------------

    def cc(self, **store: Any) -> claimcheck.ClaimCheck:
        """Open a configuration with one store, ``hot``."""
        raw = {"strategy": "external", "threshold_bytes": THRESHOLD, "stores": {"hot": store}}
        return self._stack.enter_context(claimcheck.from_dict(raw))

    def store(self, **options: Any) -> claimcheck.Store:
        return self.cc(**options).store("hot")

    def redis_store(self) -> claimcheck.Store:
        return self.store(type="redis", url=self.redis)

    def s3_store(self, **more: Any) -> claimcheck.Store:
        """Open a store at the S3 server that keeps nothing; see `tests.parts.divided`."""
        return divided(self.store, type="s3", bucket=BUCKET, endpoint_url=self.s3, region_name=REGION, **more)

    def s3_store_at(self, url: str) -> claimcheck.Store:
        return self.store(type="s3", bucket=BUCKET, endpoint_url=url, region_name=REGION)

    def obstore_at(self, url: str) -> claimcheck.Store:
        return self.store(type="obstore", url=f"s3://{BUCKET}/claims", endpoint_url=url, region_name=REGION)


def needed(program: str, jars: str = "", see: str = "") -> str:
    """Find a program, and what it runs."""
    path = shutil.which(program)
    if path is None:
        raise RuntimeError(f"there is no {program} on PATH")
    if jars and jars not in os.environ:
        raise RuntimeError(f"{jars} names no jars of a server; see {see}")
    return path
