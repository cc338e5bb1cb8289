"""The embedded broker passes the transport conformance kit."""

from tests.conformance.local_transport import LocalConformance


class TestLocal(LocalConformance):
    pass
