import logging

import pytest

from tests.conformance.s3_medium import S3Conformance, resource
from tests.conformance.subsets import SMOKE, FewerPayloads, only


@pytest.fixture(scope="module")
def moto_url():
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@only(*SMOKE)
class TestS3StoreOnMoto(FewerPayloads, S3Conformance):
    @pytest.fixture
    def options(self, moto_url):
        resource(moto_url).create_bucket(Bucket="payloads")
        return self.medium(moto_url, "payloads")
