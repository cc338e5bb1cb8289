"""What all tests share: a bare checkout that imports, real servers, an environment in which no accident can happen."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeVar

import hypothesis
import pytest

import claimcheck
from tests import servers

ROOT = str(Path(__file__).resolve().parent.parent)
# At the very end, so that what is installed still wins: a process that a test spawns finds `tests.unit...` by its name.
sys.path.append(ROOT)

# In a checkout that is not installed, the stores still lie beside the package and not below it.
if importlib.util.find_spec("claimcheck.stores") is None:
    claimcheck.__path__.append(ROOT)

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


@pytest.fixture
def s3_bucket(s3_server: servers.S3Server) -> Iterator[str]:
    """Name of a fresh bucket on the real S3 server, removed with all that it holds."""
    import boto3

    bucket = boto3.resource("s3", endpoint_url=s3_server.endpoint_url).create_bucket(Bucket=f"test-{uuid.uuid4().hex}")
    yield bucket.name
    for upload in bucket.multipart_uploads.all():
        upload.abort()
    bucket.objects.all().delete()
    bucket.delete()


def _started(program: str, start: Callable[[], AbstractContextManager[Server]]) -> AbstractContextManager[Server]:
    if shutil.which(program):
        return start()
    # A laptop without the server may skip; where servers are promised, a skipped test would be a lie.
    reason = f"no {program} on PATH, and no CLAIMCHECK_TEST_* variable names a running server (see tests/servers.py)"
    if SERVERS_REQUIRED:
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)
