"""The store kit on Google Cloud Storage and Azure, by obstore, as far as their emulators go."""

import uuid

import obstore
import pytest
from obstore.store import AzureStore, GCSStore

from claimcheck.stores import obstore as obstore_store
from claimcheck.stores._parts import TransferPolicy
from claimcheck.testing import StoreConformance
from tests.real.cloud_emulators import BUCKET

PART_BYTES = 5 << 20


class EmulatorConformance(StoreConformance):
    memory_bytes = 48 << 20  # those for parts, one being read, one being filled

    @pytest.fixture(autouse=True)
    def _several_parts(self, monkeypatch):
        monkeypatch.setattr(TransferPolicy, "_part", PART_BYTES)
        monkeypatch.setattr(TransferPolicy, "_single", PART_BYTES)

    def medium(self, scheme, kind, emulator, monkeypatch):
        """Return the options of a store that needs several parts for `several MiB`."""
        url, environment = emulator
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        address = {obstore_store._ENDPOINT_KEYS[scheme][0]: url}
        self.bucket = kind(BUCKET, config=address, client_options={"allow_http": True})
        place = f"{scheme}://{BUCKET}/{uuid.uuid4()}"
        return {"type": "obstore", "url": place, "endpoint_url": url, "ttl_seconds": 600, "transfer_bytes": 16 << 20}

    def peek(self, pointer):
        try:
            return bytes(obstore.get(self.bucket, pointer.key).bytes())
        except FileNotFoundError:
            return None

    def damage(self, pointer, payload):
        if payload is None:
            obstore.delete(self.bucket, pointer.key)
        else:
            obstore.put(self.bucket, pointer.key, payload)


class TestGoogle(EmulatorConformance):
    @pytest.fixture
    def options(self, google_emulator, monkeypatch):
        return self.medium("gs", GCSStore, google_emulator, monkeypatch)


class TestAzure(EmulatorConformance):
    @pytest.fixture
    def options(self, azure_emulator, monkeypatch):
        return self.medium("az", AzureStore, azure_emulator, monkeypatch)
