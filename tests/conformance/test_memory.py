import uuid
from typing import ClassVar

import pytest

from claimcheck.stores import memory
from claimcheck.testing import StoreConformance


class TestMemoryStore(StoreConformance):
    skip: ClassVar = {"test_large_payload_in_bounded_memory": "it keeps its payloads in memory"}

    @pytest.fixture
    def options(self):
        space = uuid.uuid4().hex
        self.payloads = memory._SPACES.setdefault(space, {})
        yield {"type": "memory", "space": space}
        del memory._SPACES[space]

    def peek(self, pointer):
        return self.payloads.get(pointer.key)

    def damage(self, pointer, payload):
        self.payloads.pop(pointer.key)
        if payload is not None:
            self.payloads[pointer.key] = payload
