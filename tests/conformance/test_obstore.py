"""The store kit on the obstore engine: in memory, and on a real S3 server."""

import uuid
from typing import ClassVar

import obstore
import pytest

from claimcheck.stores import obstore as obstore_client
from claimcheck.testing import StoreConformance
from tests.conformance.s3_medium import S3Conformance


class TestObstoreInMemory(StoreConformance):
    skip: ClassVar = {"test_large_payload_in_bounded_memory": "it keeps its payloads in memory"}

    @pytest.fixture
    def options(self):
        self.objects = obstore_client._memory()
        return {"type": "obstore", "url": f"memory:///{uuid.uuid4()}", "ttl_seconds": 600}

    def peek(self, pointer):
        try:
            return obstore.get(self.objects, pointer.key).bytes().to_bytes()
        except FileNotFoundError:
            return None

    def damage(self, pointer, payload):
        if payload is None:
            obstore.delete(self.objects, pointer.key)
        else:
            obstore.put(self.objects, pointer.key, payload)


class TestObstoreOnS3(S3Conformance):
    @pytest.fixture
    def options(self, s3_server, s3_bucket):
        options = self.medium(s3_server.endpoint_url, s3_bucket)
        place = f"s3://{options.pop('bucket')}/{options.pop('prefix')}"
        return {**options, "type": "obstore", "url": place}
