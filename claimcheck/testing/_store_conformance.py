"""The promises of a store, as tests that any store can run.

A store author writes a fixture and two back doors, in a test file of about 15 lines::

    class TestTapeStore(StoreConformance):
        @pytest.fixture
        def options(self, tmp_path):                      # the store's entry in YAML
            self.tape = tmp_path / "tape"
            return {"type": "mypackage.stores:TapeStore", "path": str(self.tape)}

        def peek(self, pointer): ...                       # read the medium, without the store
        def damage(self, pointer, payload): ...            # break the medium, without the store
"""

from __future__ import annotations

from claimcheck.testing._store_reads import RangePromises, ReadPromises
from claimcheck.testing._store_writes import WritePromises

__all__ = ["StoreConformance"]


class StoreConformance(WritePromises, ReadPromises, RangePromises):
    """Subclass it under a name that begins with ``Test`` and give `options`, `peek` and `damage`.

    What a store cannot promise is declared, with its reason, in `skip`, and shows in the report as skipped.
    """
