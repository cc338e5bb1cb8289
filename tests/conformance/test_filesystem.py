import pytest

from claimcheck.testing import StoreConformance
from tests.conformance.subsets import REACH_THE_SERVER, FewerPayloads, only


class TestFilesystemStore(StoreConformance):
    fsync = False

    @pytest.fixture
    def options(self, tmp_path):
        self.root = tmp_path / "made" / "at first use"
        options = {"path": str(self.root), "create": True, "ttl_seconds": 600, "fsync": self.fsync}
        return {"type": "filesystem", **options}

    def peek(self, pointer):
        """Includes unfinished files: only complete payloads may remain."""
        found = [path for path in self.root.glob("*") if pointer.key in path.name]
        return found[0].read_bytes() if found else None

    def damage(self, pointer, payload):
        (self.root / pointer.key).unlink()
        if payload is not None:
            (self.root / pointer.key).write_bytes(payload)


@only(*REACH_THE_SERVER)
class TestFilesystemStoreWithFsync(FewerPayloads, TestFilesystemStore):
    fsync = True
