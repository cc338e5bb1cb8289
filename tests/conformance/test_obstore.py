"""The store kit on the obstore engine: in memory, in a folder, and on a real S3 server."""

import uuid
from typing import ClassVar

import obstore
import pytest

from claimcheck.stores import obstore as obstore_client
from claimcheck.stores._parts import TransferPolicy
from claimcheck.testing import StoreConformance
from tests.conformance.folder_medium import FolderConformance
from tests.conformance.s3_medium import PART_BYTES, TRANSFER_BYTES, S3Conformance


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


class TestObstoreInAFolder(FolderConformance):
    memory_bytes = S3Conformance.memory_bytes

    @pytest.fixture
    def options(self, tmp_path):
        self.root = tmp_path / "made at first use"
        options = {"create": True, "ttl_seconds": 600, "transfer_bytes": TRANSFER_BYTES}
        return {"type": "obstore", "url": self.root.as_uri(), **options}

    @pytest.fixture(autouse=True)
    def _several_parts(self, monkeypatch):
        monkeypatch.setattr(TransferPolicy, "_part", PART_BYTES)
        monkeypatch.setattr(TransferPolicy, "_single", 1 << 20)


class TestObstoreOnS3(S3Conformance):
    @pytest.fixture
    def options(self, s3_server, s3_bucket):
        options = self.medium(s3_server.endpoint_url, s3_bucket)
        place = f"s3://{options.pop('bucket')}/{options.pop('prefix')}"
        return {**options, "type": "obstore", "url": place}
