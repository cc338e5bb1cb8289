"""The store kit on Azure by obstore, as far as its emulator goes."""

import uuid

import obstore
import pytest
from obstore.store import AzureStore

from claimcheck.stores._parts import TransferPolicy
from claimcheck.testing import StoreConformance
from tests.real.object_stores import CONTAINER

PART_BYTES = 5 << 20


class TestAzure(StoreConformance):
    memory_bytes = 48 << 20  # those for parts, one being read, one being filled

    @pytest.fixture
    def options(self, azure_emulator, monkeypatch):
        """A store that needs several parts for `several MiB`."""
        url, environment = azure_emulator
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(TransferPolicy, "_part", PART_BYTES)
        monkeypatch.setattr(TransferPolicy, "_single", PART_BYTES)
        self.container = AzureStore(CONTAINER, config={"endpoint": url}, client_options={"allow_http": True})
        place = f"az://{CONTAINER}/{uuid.uuid4()}"
        return {"type": "obstore", "url": place, "endpoint_url": url, "ttl_seconds": 600, "transfer_bytes": 16 << 20}

    def peek(self, pointer):
        try:
            return bytes(obstore.get(self.container, pointer.key).bytes())
        except FileNotFoundError:
            return None

    def damage(self, pointer, payload):
        if payload is None:
            obstore.delete(self.container, pointer.key)
        else:
            obstore.put(self.container, pointer.key, payload)
