"""The server that keeps nothing: what a real client believes of it."""

import http.client
import io
import shutil
from urllib.parse import urlsplit

import pytest
from botocore.exceptions import ClientError

from tests.benchmarks.lab import BUCKET, Lab
from tests.benchmarks.rounds import MIB, QUICK

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no cc on PATH")


@pytest.fixture(scope="module")
def lab():
    with Lab(QUICK) as lab:
        yield lab


@pytest.fixture(scope="module")
def client(lab):
    return lab.boto3()


def body(client, key, **how):
    return client.get_object(Bucket=BUCKET, Key=key, **how)["Body"].read()


def test_a_size_is_remembered_and_a_pattern_given(client):
    client.put_object(Bucket=BUCKET, Key="one", Body=bytes(3 * MIB + 5))

    assert client.head_object(Bucket=BUCKET, Key="one")["ContentLength"] == 3 * MIB + 5
    got = body(client, "one")
    assert len(got) == 3 * MIB + 5
    assert got[:MIB] == got[MIB : 2 * MIB]
    assert len(set(got[:MIB])) == 256


@pytest.mark.parametrize(("first", "last"), [(0, 0), (5, 99), (MIB - 1, MIB), (MIB + 7, 3 * MIB - 1)])
def test_a_range_is_a_part_of_the_whole(client, first, last):
    client.put_object(Bucket=BUCKET, Key="ranged", Body=bytes(3 * MIB))
    assert body(client, "ranged", Range=f"bytes={first}-{last}") == body(client, "ranged")[first : last + 1]


def test_a_range_beyond_the_end_is_cut_or_refused(client):
    client.put_object(Bucket=BUCKET, Key="short", Body=bytes(10))

    assert len(body(client, "short", Range="bytes=4-99")) == 6
    with pytest.raises(ClientError, match="416"):
        body(client, "short", Range="bytes=10-")


def test_parts_become_one_object_of_their_size(client):
    client.upload_fileobj(io.BytesIO(bytes(20 * MIB + 1)), BUCKET, "parts")
    assert client.head_object(Bucket=BUCKET, Key="parts")["ContentLength"] == 20 * MIB + 1


def test_an_empty_object_is_there(client):
    client.put_object(Bucket=BUCKET, Key="empty", Body=b"")
    assert body(client, "empty") == b""


def test_what_was_deleted_is_gone(client):
    client.put_object(Bucket=BUCKET, Key="gone", Body=b"x")
    client.delete_object(Bucket=BUCKET, Key="gone")
    client.delete_object(Bucket=BUCKET, Key="gone")

    with pytest.raises(ClientError, match="404"):
        body(client, "gone")


def test_many_are_deleted_in_one_request(client):
    answer = client.delete_objects(Bucket=BUCKET, Delete={"Objects": [{"Key": "one"}, {"Key": "two"}]})
    assert "Errors" not in answer


def test_a_body_in_chunks_is_counted(lab):
    connection = http.client.HTTPConnection(urlsplit(lab.s3).netloc)
    connection.request("PUT", f"/{BUCKET}/chunked", body=iter([b"abc", bytes(100_000), b"d"]), encode_chunked=True)
    assert connection.getresponse().read() == b""
    connection.request("HEAD", f"/{BUCKET}/chunked")
    assert connection.getresponse().headers["Content-Length"] == "100004"
    connection.close()
