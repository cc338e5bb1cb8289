"""The names that the author of a store needs.

Subclass `Store` and name the class in the configuration: ``type: "mypackage:TapeStore"``.
`claimcheck.testing.StoreConformance` tests whether it keeps the contract.
"""

from claimcheck._content.source import Payload, Source
from claimcheck._store.contract import StoreContext
from claimcheck._store.listing import Deletion, StoreEntry
from claimcheck._store.store import Store
from claimcheck._wire.buffers import PieceReader, Reader
from claimcheck._wire.pointer import Pointer

__all__ = [
    "Deletion",
    "Payload",
    "PieceReader",
    "Pointer",
    "Reader",
    "Source",
    "Store",
    "StoreContext",
    "StoreEntry",
]
