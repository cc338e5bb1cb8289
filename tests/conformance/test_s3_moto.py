import logging
from typing import ClassVar

import boto3
import pytest

from tests.conformance.s3_medium import S3Conformance


@pytest.fixture(scope="module")
def moto_url():
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


class TestS3StoreOnMoto(S3Conformance):
    skip: ClassVar = {"test_large_payload_in_bounded_memory": "the mock server keeps its payloads in this very process"}

    @pytest.fixture
    def options(self, moto_url):
        boto3.client("s3", endpoint_url=moto_url).create_bucket(Bucket="payloads")
        return self.medium(moto_url, "payloads")
