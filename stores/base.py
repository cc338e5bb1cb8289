"""What the author of a store needs, and nothing else.

Subclass `Store`, or `RangeStore` where the medium can begin to read anywhere, and name the class in the configuration:
``type: "mypackage:TapeStore"``. `claimcheck.testing.StoreConformance` shows whether it keeps the promises.
"""

from claimcheck._payload import Payload, Source
from claimcheck._payload_reader import PieceReader, Reader
from claimcheck._pointer import Pointer
from claimcheck._store import RangeStore, Store, StoreContext

__all__ = ["Payload", "PieceReader", "Pointer", "RangeStore", "Reader", "Source", "Store", "StoreContext"]
