import pytest

from tests.conformance.s3_medium import S3Conformance


class TestS3Store(S3Conformance):
    @pytest.fixture
    def options(self, s3_server, s3_bucket):
        return self.medium(s3_server.endpoint_url, s3_bucket)
