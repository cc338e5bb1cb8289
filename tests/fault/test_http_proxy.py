"""The proxy that knows requests: what it breaks it breaks as asked, and nothing else."""

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError, ConnectionClosedError, IncompleteReadError, ResponseStreamingError

from tests.fault.http_proxy import HttpProxy
from tests.real.process import wait_until

MIB = 1 << 20
BODY = bytes(range(256)) * 4096


@pytest.fixture
def proxy(s3_server):
    with HttpProxy(*s3_server.endpoint_url.removeprefix("http://").split(":")) as proxy:
        yield proxy


@pytest.fixture
def s3(proxy):
    """A client that tries once only."""
    checksums = dict.fromkeys(("request_checksum_calculation", "response_checksum_validation"), "when_required")
    settings = {**checksums, "s3": {"payload_signing_enabled": False}}
    config = Config(retries={"total_max_attempts": 1}, **settings)
    client = boto3.client("s3", endpoint_url=proxy.url, config=config)
    yield client
    client.close()


@pytest.fixture
def put(s3, s3_bucket):
    return lambda body=BODY: s3.put_object(Bucket=s3_bucket, Key="key", Body=body)


@pytest.fixture
def get(s3, s3_bucket):
    return lambda: s3.get_object(Bucket=s3_bucket, Key="key")["Body"].read()


def test_everything_passes(put, get, s3, s3_bucket, proxy):
    put()
    upload = s3.create_multipart_upload(Bucket=s3_bucket, Key="large")["UploadId"]
    place = {"Bucket": s3_bucket, "Key": "large", "UploadId": upload}
    parts = [s3.upload_part(**place, PartNumber=i, Body=bytes(5 * MIB)) for i in (1, 2)]
    done = [{"PartNumber": i, "ETag": part["ETag"]} for i, part in enumerate(parts, 1)]
    s3.complete_multipart_upload(**place, MultipartUpload={"Parts": done})
    other = s3.create_multipart_upload(Bucket=s3_bucket, Key="other")["UploadId"]
    s3.abort_multipart_upload(Bucket=s3_bucket, Key="other", UploadId=other)

    assert get() == BODY
    assert s3.head_object(Bucket=s3_bucket, Key="large")["ContentLength"] == 10 * MIB
    s3.delete_object(Bucket=s3_bucket, Key="large")
    assert proxy.seen == ["put", "begin", "part", "part", "complete", "begin", "abort", "get", "head", "delete"]


def test_refusals_are_counted(put, get, proxy):
    put()
    proxy.fail("get", status=503, times=2, after=1)

    assert get() == BODY
    for _ in range(2):
        with pytest.raises(ClientError, match="SlowDown"):
            get()
    assert get() == BODY


def test_a_request_breaks_and_is_not_done(put, get, proxy):
    put(b"before")
    proxy.fail("put", break_request=1000)

    with pytest.raises(ConnectionClosedError):
        put()

    assert get() == b"before"


def test_an_answer_is_lost_after_all_was_done(put, get, proxy):
    proxy.fail("put", lose_answer=True)

    with pytest.raises(ConnectionClosedError):
        put()

    assert get() == BODY


@pytest.mark.parametrize("at", [0, 1, 100_000, len(BODY) - 1])
@pytest.mark.parametrize("reset", [False, True])
def test_an_answer_breaks_at_a_byte(put, s3, s3_bucket, proxy, at, reset):
    put()
    proxy.fail("get", break_answer=at, reset=reset)
    body = s3.get_object(Bucket=s3_bucket, Key="key")["Body"]

    heard = bytearray()
    with pytest.raises(ResponseStreamingError if reset else IncompleteReadError):
        while piece := body.read(1000):
            heard += piece

    assert len(heard) <= at if reset else len(heard) == at
    assert heard == BODY[: len(heard)]


def test_bytes_are_changed(put, get, proxy):
    proxy.fail("put", flip_request=70_000)
    put()
    proxy.fail("get", flip_answer=100_000)

    changed = [i for i, (a, b) in enumerate(zip(get(), BODY, strict=True)) if a != b]

    assert changed == [70_000, 100_000]


def test_an_answer_is_held(put, s3, s3_bucket, proxy):
    put()
    fault = proxy.fail("get", hold_answer=5000)
    body = s3.get_object(Bucket=s3_bucket, Key="key")["Body"]

    assert body.read(5000) == BODY[:5000]
    body.set_socket_timeout(0.1)
    with pytest.raises(Exception, match="imeout"):
        body.read(1)
    fault.go.set()


def test_lines_are_counted(put, s3, proxy):
    put()
    put()
    assert proxy.live == 1

    s3.close()
    wait_until(lambda: proxy.live == 0, "the client's connection is gone")
