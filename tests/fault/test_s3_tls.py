"""S3 with TLS: the certificate is verified by both engines, its host name included."""

import boto3
import pytest

from claimcheck._registry import build_store
from claimcheck.config import StoreConfig
from claimcheck.errors import ConfigError, StoreUnavailableError

BUCKET = "payloads"


@pytest.fixture(scope="module")
def bucket(s3_tls):
    port, authority = s3_tls
    s3 = boto3.client("s3", endpoint_url=f"https://localhost:{port}", verify=str(authority))
    s3.create_bucket(Bucket=BUCKET)
    s3.close()


@pytest.fixture(
    params=[{"type": "s3", "bucket": BUCKET}, {"type": "obstore", "url": f"s3://{BUCKET}"}], ids=["s3", "obstore"]
)
def open_store(request, s3_tls, bucket):
    port, authority = s3_tls

    def build(host="localhost", **options):
        given = {"endpoint_url": f"https://{host}:{port}", "tls_ca_file": str(authority), **request.param, **options}
        options = {name: value for name, value in given.items() if name != "type" and value is not None}
        return build_store(StoreConfig(given["type"], options), path="stores.store")

    return build


def test_the_right_host_of_a_known_authority(open_store):
    with open_store() as store:
        assert store.read(store.write(b"payload")) == b"payload"


def test_a_certificate_for_another_host_is_refused(open_store):
    with open_store("127.0.0.1") as store, pytest.raises(StoreUnavailableError):
        store.write(b"payload")


def test_an_unknown_authority_is_refused(open_store):
    with open_store(tls_ca_file=None) as store, pytest.raises(StoreUnavailableError):
        store.write(b"payload")


def test_a_file_that_does_not_exist_is_named(open_store):
    with open_store(tls_ca_file="/nowhere/ca.crt") as store, pytest.raises(ConfigError, match="/nowhere/ca.crt"):
        store.write(b"payload")
