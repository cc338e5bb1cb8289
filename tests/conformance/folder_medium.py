"""The hooks of the store kit for a folder, whose path is `root`."""

from claimcheck.testing import StoreConformance


class FolderConformance(StoreConformance):
    def peek(self, pointer):
        """Includes unfinished files: only complete payloads may remain."""
        folder, _, name = pointer.key.rpartition("/")
        found = [path for path in (self.root / folder).glob("*") if name in path.name]
        return found[0].read_bytes() if found else None

    def damage(self, pointer, payload):
        (self.root / pointer.key).unlink()
        if payload is not None:
            (self.root / pointer.key).write_bytes(payload)
