import pytest

from claimcheck.testing import StoreConformance


class TestFilesystemStore(StoreConformance):
    @pytest.fixture(params=[False, True], ids=["", "fsync"])
    def options(self, request, tmp_path):
        self.root = tmp_path / "made" / "at first use"
        options = {"path": str(self.root), "create": True, "ttl_seconds": 600, "fsync": request.param}
        return {"type": "filesystem", **options}

    def peek(self, pointer):
        """Unfinished files count: nothing may be left but complete payloads."""
        found = [path for path in self.root.glob("*") if pointer.key in path.name]
        return found[0].read_bytes() if found else None

    def damage(self, pointer, payload):
        (self.root / pointer.key).unlink()
        if payload is not None:
            (self.root / pointer.key).write_bytes(payload)
