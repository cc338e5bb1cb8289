"""The names that the author of a store needs.

Subclass `Store` and name the class in the configuration: ``type: "mypackage:TapeStore"``.
`claimcheck.testing.StoreConformance` tests whether it keeps the contract.
"""

from claimcheck._listing import Deletion, StoreEntry
from claimcheck._payload import Payload, Source
from claimcheck._pointer import Pointer
from claimcheck._reader import PieceReader, Reader
from claimcheck._store import RangeStore, Store
from claimcheck._store_contract import StoreContext

__all__ = [
    "Deletion",
    "Payload",
    "PieceReader",
    "Pointer",
    "RangeStore",
    "Reader",
    "Source",
    "Store",
    "StoreContext",
    "StoreEntry",
]
