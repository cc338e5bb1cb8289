"""The transport kit on the embedded broker."""

from tests.conformance.local_transport import LocalConformance


class TestLocal(LocalConformance):
    pass
