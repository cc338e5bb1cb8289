"""A part of the user's store that belongs to one run: what is in it can be counted and removed."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from claimcheck._client import ClaimCheck
from claimcheck._store.store import Store
from claimcheck.config import Config, StoreConfig, expand
from claimcheck.errors import ScanNotSupportedError
from tests.benchmarks.compare.model import CompareError

_TTL_SECONDS = 3600.0  # what cannot be removed expires soon


def _joined(base: object, name: str) -> str:
    return f"{str(base).rstrip('/')}/{name}" if base else f"{name}/"


_OWN: dict[str, Callable[[dict[str, Any], str], dict[str, Any]]] = {
    "filesystem": lambda options, name: {"path": os.path.join(str(options.get("path", "")), name), "create": True},
    "redis": lambda options, name: {"key_prefix": f"{options.get('key_prefix', 'claimcheck:')}{name}:"},
    "s3": lambda options, name: {"prefix": f"{_joined(options.get('prefix'), name).rstrip('/')}/"},
    "obstore": lambda options, name: {"url": _joined(options.get("url"), name)},
    "pulsar-topic": lambda options, name: {},
}
"""The options that confine a store to a part of its medium, by its type."""


@dataclass(frozen=True, slots=True)
class StoreSpace:
    """The store of a run: its name in the user's configuration, or ``None``, and the part of it that is used."""

    config: Config
    name: str | None
    part: str

    @classmethod
    def of(cls, config: Config, part: str) -> StoreSpace:
        """Choose the store that writers use."""
        name = config.store or (next(iter(config.stores)) if len(config.stores) == 1 else None)
        if name is None and config.stores:
            raise CompareError("the configuration has several stores: name the one to compare with 'store:'")
        if name is not None and config.stores[name].type == "memory":
            raise CompareError(f"store {name!r} is in the memory of one process: a comparison needs another store")
        return cls(config, name, part)

    @property
    def label(self) -> str:
        """Name and type, for people."""
        return "none" if self.name is None else f"{self.name} ({self.config.stores[self.name].type})"

    def stores(self, **options: object) -> dict[str, StoreConfig]:
        """Return the configuration's ``stores``, confined to the part, with further options."""
        if self.name is None:
            return {}
        entry = self.config.stores[self.name]
        known = dict(entry.options)
        lifetime = known.pop("ttl_seconds", None)
        if own := _OWN.get(entry.type):  # a store of a third party may not have a lifetime
            is_number = isinstance(lifetime, int | float)  # and not a placeholder
            known |= {
                "ttl_seconds": min(lifetime, _TTL_SECONDS) if is_number else _TTL_SECONDS,
                **own(known, self.part),
            }
        return {self.name: replace(entry, options=known | options)}

    def count(self) -> int | None:
        """Return the number of payloads in the part; ``None`` if the store cannot be listed."""
        with self._opened() as store:
            return sum(1 for _ in store.scan()) if store else 0
        return None

    def clear(self) -> None:
        """Remove everything from the part, if the store can be listed."""
        with self._opened() as store:
            if store:
                for deletion in store.delete(store.scan()):
                    if deletion.error:
                        raise CompareError(f"payloads of {self.part} could not be removed: {deletion.error}")
        if self.name is not None and self.config.stores[self.name].type == "filesystem":
            path = expand(self.stores()[self.name].options["path"], path=f"stores.{self.name}.path")
            shutil.rmtree(Path(path).expanduser(), ignore_errors=True)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[Store | None]:
        """Open the store, if there is one, for a block that ends if it cannot be listed."""
        if self.name is None:
            yield None
            return
        with (
            ClaimCheck(Config(strategy="external", store=self.name, stores=self.stores())) as cc,
            contextlib.suppress(ScanNotSupportedError),
        ):
            yield cc.store(self.name)
