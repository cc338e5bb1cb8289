"""The embedded broker keeps every promise of a transport."""

import pytest

from claimcheck.testing import TransportConformance
from tests.conformance.local_transport import LocalTransport


class TestLocal(LocalTransport, TransportConformance):
    @pytest.fixture
    def broker(self, tmp_path, clock):
        with self.connected(tmp_path / "broker.sqlite", clock):
            yield
