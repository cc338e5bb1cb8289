"""The embedded broker keeps every promise of a transport."""

from tests.conformance.local_transport import LocalConformance


class TestLocal(LocalConformance):
    pass
