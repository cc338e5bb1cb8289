import pytest

from tests.conformance.folder_medium import FolderConformance
from tests.conformance.subsets import REACH_THE_SERVER, FewerPayloads, only


class TestFilesystemStore(FolderConformance):
    fsync = False

    @pytest.fixture
    def options(self, tmp_path):
        self.root = tmp_path / "made" / "at first use"
        options = {"path": str(self.root), "create": True, "ttl_seconds": 600, "fsync": self.fsync}
        return {"type": "filesystem", **options}


@only(*REACH_THE_SERVER)
class TestFilesystemStoreWithFsync(FewerPayloads, TestFilesystemStore):
    fsync = True
