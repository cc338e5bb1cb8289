import pytest

from tests.conformance.s3_medium import S3Conformance, resource
from tests.conformance.subsets import SMOKE, FewerPayloads, only


@only(*SMOKE)
class TestS3StoreOnMoto(FewerPayloads, S3Conformance):
    @pytest.fixture
    def options(self, moto_url):
        resource(moto_url).create_bucket(Bucket="payloads")
        return self.medium(moto_url, "payloads")
