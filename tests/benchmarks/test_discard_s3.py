"""The server that keeps nothing: what a real client believes of it."""

import io
import shutil

import pytest
from botocore.exceptions import ClientError

from tests.benchmarks.lab import BUCKET, Lab
from tests.benchmarks.rounds import MIB, QUICK

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no cc on PATH")


@pytest.fixture(scope="module")
def lab():
    with Lab(QUICK) as lab:
        yield lab


def test_objects_have_their_sizes_and_ranges_of_a_pattern(lab):
    client = lab.boto3()
    client.put_object(Bucket=BUCKET, Key="one", Body=bytes(3 * MIB + 5))
    client.upload_fileobj(io.BytesIO(bytes(20 * MIB + 1)), BUCKET, "parts")
    client.put_object(Bucket=BUCKET, Key="empty", Body=b"")

    def body(**how):
        return client.get_object(Bucket=BUCKET, Key="one", **how)["Body"].read()

    whole = body()
    assert len(whole) == 3 * MIB + 5
    assert whole[:MIB] == whole[MIB : 2 * MIB]
    for first, last in ((0, 0), (5, 99), (MIB - 1, MIB), (MIB + 7, 3 * MIB - 1), (3 * MIB, 4 * MIB)):
        assert body(Range=f"bytes={first}-{last}") == whole[first : last + 1]
    with pytest.raises(ClientError, match="416"):
        body(Range=f"bytes={4 * MIB}-")
    lengths = [client.head_object(Bucket=BUCKET, Key=key)["ContentLength"] for key in ("parts", "empty")]
    assert lengths == [20 * MIB + 1, 0]


def test_what_was_deleted_is_gone(lab):
    client = lab.boto3()
    client.put_object(Bucket=BUCKET, Key="gone", Body=b"x")
    for _ in range(2):
        client.delete_object(Bucket=BUCKET, Key="gone")
    assert "Errors" not in client.delete_objects(Bucket=BUCKET, Delete={"Objects": [{"Key": "a"}, {"Key": "b"}]})

    with pytest.raises(ClientError, match="404"):
        client.head_object(Bucket=BUCKET, Key="gone")
