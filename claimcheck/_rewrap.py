"""Encrypts the data keys of stored payloads again, with the current key, so that an old key can be deleted.

Only the header of a payload's content changes. The payload itself stays encrypted with its data key, so every pointer
to it stays valid, and a reader that is in the middle of the payload does not notice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice

from claimcheck._content_header import MAX_HEADER_BYTES, ContentHeader, Damaged, NotContent, read_header
from claimcheck._data_keys import DataKeys
from claimcheck._listing import StoreEntry
from claimcheck._pointer import Pointer
from claimcheck._reader import PieceReader
from claimcheck._store import Store
from claimcheck._store_errors import Translated, untrusted
from claimcheck.errors import ConfigError, IntegrityError, PayloadNotFoundError, StoreError

__all__ = ["RewrapReport", "rewrap"]

_BATCH = 1000
_PARALLEL = 8
_ERRORS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class RewrapReport:
    """The result for one store, or its state so far. A second run continues where an interrupted one ended.

    Attributes:
        store: The store's name in the configuration.
        key_id: The current key.
        dry_run: Whether nothing was written.
        scanned: Payloads that were listed.
        rewrapped: Payloads whose data key is now encrypted with the current key; in a dry run, those that need it.
        current: Payloads that need nothing.
        not_encrypted: Payloads that are not encrypted.
        gone: Payloads that were deleted meanwhile.
        failed: Payloads that could not be changed; they are as they were.
        by_key: Payloads by the id of the key that their data key was encrypted with.
        errors: The first few errors behind ``failed``.
    """

    store: str
    key_id: str
    dry_run: bool
    scanned: int = 0
    rewrapped: int = 0
    current: int = 0
    not_encrypted: int = 0
    gone: int = 0
    failed: int = 0
    by_key: dict[str, int]
    errors: tuple[Exception, ...] = ()


def rewrap(
    store: Store,
    *,
    dry_run: bool = True,
    on_batch: Callable[[RewrapReport], None] | None = None,
    max_payloads: int | None = None,
) -> RewrapReport:
    """Encrypt the data keys of all payloads of a store with ``encryption.key_id``.

    Safe beside writers, readers and sweeps. The lifetime of a payload does not become shorter. A payload that another
    process deletes at the same moment may be stored again; a sweep removes it after its lifetime.

    Args:
        store: The store.
        dry_run: Whether to write nothing and only count.
        on_batch: Called with the state so far after each batch.
        max_payloads: Look at this many payloads only.

    Raises:
        ConfigError: No ``encryption.key_id`` is configured.
        ScanNotSupportedError: The store cannot list its payloads.
        StoreError: The store failed. Every payload can be read; the run can be repeated.
    """
    keys = store.context.content.keys
    if keys is None or keys.key_id is None:
        raise ConfigError("rewrap needs encryption.key_id, the key to encrypt with", path="encryption.key_id")
    run = _Run(store, keys, dry_run)
    with ThreadPoolExecutor(_PARALLEL, thread_name_prefix="claimcheck-rewrap") as executor:
        payloads = islice((entry for entry in store.scan() if entry.kind == "payload"), max_payloads)
        while batch := list(islice(payloads, _BATCH)):
            for result in executor.map(run.one, batch):
                run.count(result)
            if on_batch is not None:
                on_batch(run.report())
    return run.report()


class _Run:
    def __init__(self, store: Store, keys: DataKeys, dry_run: bool) -> None:
        self._store, self._keys, self._dry_run = store, keys, dry_run
        self._counts = Counter[str]()
        self._by_key = Counter[str]()
        self._errors = list[Exception]()

    def one(self, entry: StoreEntry) -> tuple[str, str | None, Exception | None]:
        """Rewrap one payload; returns what became of it, the id of its key, and the error."""
        key_id = None
        try:
            found = self._header(entry)
            if found is None:
                return "not_encrypted", None, None
            header, pointer, size = found
            key_id = header.key_id
            if key_id == self._keys.key_id:
                return "current", key_id, None
            if self._dry_run:
                self._check_known(pointer, key_id)
            else:
                self._replace(pointer, size)
        except PayloadNotFoundError:
            return "gone", key_id, None
        except StoreError as error:
            if error.retryable:
                raise
            return "failed", key_id, error
        return "rewrapped", key_id, None

    def _header(self, entry: StoreEntry) -> tuple[ContentHeader, Pointer, int] | None:
        """Read the header of a payload's content; returns ``None`` if the payload is not encrypted."""
        store = self._store
        with Translated(store, Pointer(key=entry.key), "read"):
            pointer = store._stored_pointer(entry)
            with closing(store._open(pointer, 0, min(pointer.size or 0, MAX_HEADER_BYTES))) as source:
                try:
                    header, size = read_header(source)
                except NotContent:
                    return None
                except Damaged as error:
                    raise untrusted(store, pointer, str(error)) from error
        if header.encryption is None:
            return None
        if header.key_id is None or header.wrapped_key is None:
            raise untrusted(store, pointer, "its header has no data key")
        return header, pointer, size

    def _check_known(self, pointer: Pointer, key_id: str | None) -> None:
        try:
            self._keys.check_known(key_id or "")
        except IntegrityError as error:  # name the payload
            raise untrusted(self._store, pointer, str(error)) from error

    def _replace(self, pointer: Pointer, size: int) -> None:
        with Translated(self._store, pointer, "write"):
            self._store._replace_start(pointer, size, lambda start: self._rewrapped(pointer, start))

    def _rewrapped(self, pointer: Pointer, start: bytes) -> bytes:
        """Return the header with the same data key, encrypted with the current key."""
        try:
            header, size = read_header(PieceReader([start]))
        except Damaged as error:
            raise untrusted(self._store, pointer, f"it was replaced: {error}") from error
        if header.key_id is None or header.wrapped_key is None:
            raise untrusted(self._store, pointer, "its header has no data key")
        try:
            new = self._keys.rewrap(header.key_id, header.wrapped_key)
        except IntegrityError as error:  # name the payload
            raise untrusted(self._store, pointer, str(error)) from error
        changed = replace(header, key_id=new.key_id, wrapped_key=new.wrapped).encode(at_least=size)
        if len(changed) != len(start):
            text = f"store {self._store.name!r}: the header of {pointer.key!r} is too short for the new data key"
            raise StoreError(text, store=self._store.name, key=pointer.key)
        return changed

    def count(self, result: tuple[str, str | None, Exception | None]) -> None:
        outcome, key_id, error = result
        self._counts[outcome] += 1
        self._by_key.update([key_id] if key_id else [])
        if error is not None and len(self._errors) < _ERRORS:
            self._errors.append(error)

    def report(self) -> RewrapReport:
        """Return the state so far."""
        return RewrapReport(
            store=self._store.name,
            key_id=self._keys.key_id or "",
            dry_run=self._dry_run,
            scanned=self._counts.total(),
            by_key=dict(self._by_key),
            errors=tuple(self._errors),
            **self._counts,
        )
