"""Data keys wrapped by AWS KMS, against a simulated service and one that fails as the real one does."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from claimcheck._content.data_keys import DataKeys
from claimcheck.config import EncryptionConfig
from claimcheck.errors import ConfigError, IntegrityError, StoreUnavailableError

CONTEXT = {"claimcheck": "2", "destination": "orders"}


@pytest.fixture
def kms(moto_url):
    import boto3

    return boto3.client("kms", endpoint_url=moto_url, region_name="eu-central-1")


def provider(url: str, key_id: str = "k1", **keys: str) -> DataKeys:
    options = {"endpoint_url": url, "region_name": "eu-central-1", "timeout_seconds": 2}
    config = EncryptionConfig(key_id=key_id, keys=keys, provider="aws-kms", options=options)
    keys_ = DataKeys(config)
    keys_.check()
    return keys_


def test_keys_by_alias_and_arn_wrap_and_unwrap(kms, moto_url):
    one, two = (kms.create_key()["KeyMetadata"]["Arn"] for _ in range(2))
    kms.create_alias(AliasName="alias/one", TargetKeyId=one)
    keys = {"k1": "alias/one", "k2": two}

    for key_id in keys:
        made = provider(moto_url, key_id, **keys).new(CONTEXT)
        assert made.key not in made.wrapped
        assert provider(moto_url, **keys).open(key_id, made.wrapped, CONTEXT) == made.key

    # The service knows context and key: what was wrapped otherwise is refused.
    foreign = kms.encrypt(KeyId=one, Plaintext=bytes(32), EncryptionContext={"claimcheck": "3"})["CiphertextBlob"]
    with pytest.raises(IntegrityError, match=r"encryption\.keys\.k1.*InvalidCiphertext"):
        provider(moto_url, **keys).open("k1", foreign, CONTEXT)


def test_a_key_that_does_not_exist_is_named(moto_url):
    with pytest.raises(ConfigError, match=r"encryption\.keys\.k1.*NotFoundException.*kms:Encrypt"):
        provider(moto_url, k1="alias/nothing").new(CONTEXT)


class _Answer:
    code, status = "", 400


@pytest.fixture
def failing_kms() -> Iterator[tuple[str, type[_Answer]]]:
    """A service that answers every request with one error, in the real one's format."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            body = json.dumps({"__type": _Answer.code, "message": "no"}).encode()
            self.send_response(_Answer.status)
            self.send_header("Content-Type", "application/x-amz-json-1.1")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", _Answer
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    ("code", "when_writing", "when_reading"),
    [
        ("AccessDeniedException", ConfigError, ConfigError),
        ("DisabledException", ConfigError, IntegrityError),
        ("KMSInvalidStateException", ConfigError, IntegrityError),
        ("NotFoundException", ConfigError, IntegrityError),
        ("InvalidCiphertextException", ConfigError, IntegrityError),
        ("IncorrectKeyException", ConfigError, IntegrityError),
    ],
)
def test_answers_of_the_service_are_errors_of_claimcheck(failing_kms, code, when_writing, when_reading):
    url, answer = failing_kms
    answer.code = code
    keys = provider(url, k1="alias/one")

    with pytest.raises(when_writing, match=code):
        keys.new(CONTEXT)
    with pytest.raises(when_reading, match=code):
        keys.open("k1", b"wrapped", CONTEXT)


@pytest.mark.slow  # the SDK waits before its own retries
def test_a_throttled_call_is_worth_another_try(failing_kms):
    url, answer = failing_kms
    answer.code = "ThrottlingException"
    with pytest.raises(StoreUnavailableError, match="Throttling"):
        provider(url, k1="alias/one").open("k1", b"wrapped", CONTEXT)


def test_a_service_that_cannot_be_reached_is_worth_another_try():
    keys = provider("http://127.0.0.1:1", k1="alias/one")
    for call in (lambda: keys.new(CONTEXT), lambda: keys.open("k1", b"x", CONTEXT)):
        with pytest.raises(StoreUnavailableError, match="cannot be reached") as caught:
            call()
        assert caught.value.retryable
