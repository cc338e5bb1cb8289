"""Pointers and trust: signing what is written, and deciding which of what is read will be followed. No I/O."""

from __future__ import annotations

import functools

from claimcheck import pointer as pointers
from claimcheck.config import Config, expand
from claimcheck.errors import ConfigError, PointerRejectedError
from claimcheck.pointer import Pointer

__all__ = ["Seal"]


class Seal:
    """The signing keys and the known stores of one configuration; secrets are resolved when they are first needed.

    Args:
        config: Its ``signing``, ``limits`` and ``stores`` count.
    """

    def __init__(self, config: Config) -> None:
        self._config = config

    def sign(self, pointer: Pointer) -> bytes:
        """Return pointer bytes, signed where a key to sign with is configured and the version has room for it.

        Raises:
            ConfigError: A secret is not set, or empty.
        """
        key_id = self._config.signing.key_id
        if key_id is not None and pointer.version != 1:
            pointer = pointers.sign(pointer, key_id=key_id, secret=self._secrets[key_id])
        return pointers.encode(pointer)

    def accept(self, data: bytes) -> Pointer:
        """Read pointer bytes that anybody may have sent.

        Raises:
            EnvelopeError: Damaged, or of a newer version.
            PointerRejectedError: Too long, unsigned where a signature is required, or wrongly signed.
            ConfigError: A secret is not set, or empty.
        """
        pointer = pointers.decode(data, max_bytes=self._config.limits.max_pointer_bytes)
        require = self._config.signing.require
        if require or pointer.mac is not None:
            pointers.verify(pointer, secrets=self._secrets, require=require)
        return pointer

    def store_name(self, pointer: Pointer) -> str:
        """Return the name of the store that a pointer belongs to.

        Raises:
            PointerRejectedError: It is not configured here, or version 1 leaves it open.
        """
        name = self._v1_store(pointer) if pointer.version == 1 else pointer.store
        if name is None or name not in self._config.stores:
            raise PointerRejectedError(
                f"the pointer to {pointer.key[:200]!r} names the store {name!r}, which is not configured here: "
                "add it below stores to read from it",
                reason="store",
                store=name,
                key=pointer.key,
            )
        return name

    def _v1_store(self, pointer: Pointer) -> str:
        """Version 1 names no store: it is the one with ``v1_pointers: true``, or the only Redis there is."""
        stores = self._config.stores
        marked = [name for name, store in stores.items() if store.options.get("v1_pointers")]
        candidates = [name for name, store in stores.items() if store.type == "redis"]
        found = marked or [name for name in candidates if stores[name].options.get("v1_pointers") is not False]
        if len(found) != 1:
            raise PointerRejectedError(
                f"the pointer to {pointer.key[:200]!r} has version 1, which names no store: "
                "mark the Redis store that it belongs to with v1_pointers: true",
                reason="version",
                key=pointer.key,
            )
        return found[0]

    @functools.cached_property
    def _secrets(self) -> dict[str, bytes]:
        keys = self._config.signing.keys
        secrets = {name: expand(text, path=f"signing.keys.{name}").encode() for name, text in keys.items()}
        for name, secret in secrets.items():
            if not secret:
                raise ConfigError(f"signing.keys.{name}: the secret is empty", path=f"signing.keys.{name}")
        return secrets
