"""``client``: a function of the caller makes the client of a store, with credentials that no file or variable has."""

from __future__ import annotations

import io
import subprocess
from typing import Any

import boto3
import obstore.store
import pytest
import redis

from claimcheck._registry import build_store
from claimcheck.config import StoreConfig
from claimcheck.errors import ConfigError, StoreError
from tests import servers
from tests.parts import divide

USER = "app"


def opened(kind: str, function: str, **options: Any) -> Any:
    """Open a store with one of the functions below."""
    return build_store(StoreConfig(kind, options | {"client": f"{__name__}:{function}"}), path="stores.hot")


# Redis ---------------------------------------------------------------------------------------------------------------


class Rotation(redis.CredentialProvider):
    """A user whose password changes: the last two are valid, and every change ends all connections."""

    def __init__(self, port: int) -> None:
        self.port, self.passwords, self.asked = port, list[str](), 0
        self._admin = redis.Redis(port=port)
        self.change()

    def get_credentials(self) -> tuple[str, str]:
        self.asked += 1
        return USER, self.passwords[-1]

    def change(self) -> None:
        self.passwords.append(f"password-{len(self.passwords)}")
        rules = ["reset", "on", "~*", "+@all", *(f">{each}" for each in self.passwords[-2:])]
        self._admin.execute_command("ACL", "SETUSER", USER, *rules)
        self._admin.client_kill_filter(user=USER, skipme=True)


class RotatingSource(io.BytesIO):
    """A payload whose every read changes the password."""

    def readinto(self, buffer: Any) -> int:
        rotation.change()
        return super().readinto(buffer)

    def read(self, size: int | None = -1) -> bytes:
        rotation.change()
        return super().read(size)


rotation: Rotation


@pytest.fixture
def redis_with_a_user(redis_programs):
    global rotation
    with servers.redis_server() as server:
        rotation = Rotation(server.port)
        yield f"redis://127.0.0.1:{server.port}"


def rotating_arguments() -> dict[str, Any]:
    return {"credential_provider": rotation}


def rotating_client() -> redis.Redis:
    return redis.Redis(port=rotation.port, credential_provider=rotation)


def client_of_text() -> redis.Redis:
    return redis.Redis(port=rotation.port, decode_responses=True)


def nothing() -> None:
    pass


@pytest.mark.parametrize("function", ["rotating_arguments", "rotating_client"])
def test_passwords_of_redis_change_while_payloads_flow(redis_with_a_user, function):
    payload = bytes(range(256)) * 400
    with opened("redis", function, url=redis_with_a_user, segment_bytes=10_000) as store:
        for _ in range(5):
            pointer = store.write(RotatingSource(payload))
            rotation.change()
            with store.open(pointer) as reader:
                pieces = []
                while piece := reader.read(30_000):
                    pieces.append(piece)
                    rotation.change()
            assert b"".join(pieces) == payload
            small = store.write(b"small")
            rotation.change()
            assert store.read(small) == b"small"
    assert rotation.asked > 5


@pytest.mark.parametrize(
    ("function", "url", "problem"),
    [
        ("client_of_text", "redis://h", "decode_responses"),
        ("rotating_client", "redis+cluster://h:1", "RedisCluster"),
        ("nothing", "redis://h", "a dict of arguments"),
        ("missing", "redis://h", "cannot import"),
        ("opened", "redis+cluster://h:1", "positional"),
    ],
)
def test_a_function_that_returns_no_usable_client_is_refused(redis_with_a_user, function, url, problem):
    with opened("redis", function, url=url) as store, pytest.raises((ConfigError, StoreError), match=problem):
        store.write(b"payload")


# S3 -----------------------------------------------------------------------------------------------------------------

ANN = {"aws_access_key_id": "ann", "aws_secret_access_key": "ann-secret"}
PLACE: dict[str, Any] = {}
sse: list[tuple[str, bytes | None]] = []


@pytest.fixture(scope="module")
def two_accounts(s3_programs):
    """A server with a bucket of the root account, and one of another account."""
    with servers.s3() as server:
        admin = ["versitygw", "admin", "-a", server.access_key, "-s", server.secret_key, "--er", server.endpoint_url]
        names = ["-a", ANN["aws_access_key_id"], "-s", ANN["aws_secret_access_key"], "-r", "userplus"]
        subprocess.run([*admin, "create-user", *names], check=True, capture_output=True, timeout=30)
        for bucket, account in (("roots", {}), ("anns", ANN)):
            client = boto3.client("s3", endpoint_url=server.endpoint_url, region_name=server.region, **account)
            client.create_bucket(Bucket=bucket)
            client.close()
        yield server


def ann() -> dict[str, Any]:
    return ANN


def ann_of_obstore() -> dict[str, Any]:
    return {
        "credential_provider": lambda: {"access_key_id": "ann", "secret_access_key": "ann-secret", "expires_at": None}
    }


def encrypted() -> Any:
    """A client whose objects the server encrypts."""

    def encrypt(params: dict[str, Any], model: Any, **_: Any) -> None:
        params["ServerSideEncryption"] = "AES256"

    def note(request: Any, event_name: str, **_: Any) -> None:
        sse.append((event_name.rpartition(".")[2], request.headers.get("x-amz-server-side-encryption")))

    client = boto3.client("s3", region_name="us-east-1", **PLACE)
    for operation in ("PutObject", "CreateMultipartUpload"):
        client.meta.events.register(f"provide-client-params.s3.{operation}", encrypt)
        client.meta.events.register(f"before-send.s3.{operation}", note)
    return client


def obstore_of_ann() -> Any:
    return obstore.store.S3Store(
        "anns", endpoint=PLACE["endpoint_url"], region="us-east-1", client_options={"allow_http": True},
        access_key_id="ann", secret_access_key="ann-secret",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "function"), [("s3", "ann"), ("obstore", "ann_of_obstore"), ("obstore", "obstore_of_ann")]
)
def test_two_accounts_of_s3_in_one_process(two_accounts, kind, function):
    PLACE["endpoint_url"] = two_accounts.endpoint_url
    place = {"endpoint_url": two_accounts.endpoint_url, "region_name": two_accounts.region}

    def named(bucket):
        return {"bucket": bucket} if kind == "s3" else {"url": f"s3://{bucket}"}

    with opened(kind, function, **named("anns"), **place) as anns:
        root = StoreConfig(kind, named("roots") | place)
        with build_store(root, path="stores.root") as roots:
            for store in (anns, roots):
                assert store.read(store.write(b"payload" * 5)) == b"payload" * 5
    if function != "obstore_of_ann":  # which has its own bucket
        with (
            opened(kind, function, **named("roots"), **place) as store,
            pytest.raises(StoreError, match="AccessDenied"),
        ):
            store.write(b"payload")


def test_a_client_of_boto3_adds_its_own_headers(two_accounts):
    PLACE["endpoint_url"] = two_accounts.endpoint_url
    with opened("s3", "encrypted", bucket="roots") as store:
        divide(store._transfers, part=5 << 20, single=5 << 20)
        for payload in (b"small", bytes(11 << 20)):
            assert store.read(store.write(payload)) == payload
    assert dict(sse) == {"PutObject": b"AES256", "CreateMultipartUpload": b"AES256"}
