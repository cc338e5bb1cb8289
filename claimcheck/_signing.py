"""Signs written pointers, and decides which received pointers are accepted. No I/O."""

from __future__ import annotations

import functools
from typing import NoReturn

from claimcheck import _pointer as pointers
from claimcheck._digest import CRYPTOGRAPHIC, algorithm_of
from claimcheck._pointer import Pointer
from claimcheck.config import Config, signing_key
from claimcheck.errors import ConfigError, PointerRejectedError

__all__ = ["Seal"]


class Seal:
    """The signing keys and readable stores of a configuration. Secrets are resolved at first use."""

    def __init__(self, config: Config) -> None:
        self._config = config

    def sign(self, pointer: Pointer) -> bytes:
        """Encode a pointer, signed if ``signing.key_id`` is configured and its version can be signed.

        Raises:
            ConfigError: The variable of a signing key is not set, or a key is too short.
        """
        key_id = self._config.signing.key_id
        if key_id is not None and pointer.version != 1:
            pointer = pointers.sign(pointer, key_id=key_id, secret=self._secrets[key_id])
        return pointers.encode(pointer)

    def accept(self, data: bytes) -> Pointer:
        """Decode untrusted pointer bytes and check their signature.

        Raises:
            EnvelopeError: Damaged, or of a newer version.
            PointerRejectedError: Too long, unsigned where a signature is required, or wrongly signed. Also, where
                signatures are optional, a signed pointer for which this process has no key, from the `ConfigError`.
            ConfigError: A signature is required, but a key's variable is not set here or a key is too short: no pointer
                can be accepted.
        """
        pointer = pointers.decode(data, max_bytes=self._config.limits.max_pointer_bytes)
        signing = self._config.signing
        if pointer.version == 1 and signing.keys:
            _reject(pointer, "signature", "has version 1, which has no signature, but signing.keys is configured")
        if signing.require or pointer.mac is not None:
            pointers.verify(pointer, secrets=self._secrets_for(pointer), require=bool(signing.require))
        if signing.require:
            self._check_checksum(pointer)
        return pointer

    def store_name(self, pointer: Pointer) -> str:
        """Return the name of the store that a pointer belongs to.

        Raises:
            PointerRejectedError: The store is not configured here or not listed in ``reads_from``, or the pointer's
                version names no store and it may belong to several.
        """
        name = self._v1_store(pointer) if pointer.version == 1 else pointer.store
        if name is None or name not in self._config.stores:
            _reject(pointer, "store", f"names the store {name!r}, which is not configured here", name)
        if name not in self._config.readable:
            _reject(pointer, "store", f"names the store {name!r}, which is not listed in reads_from", name)
        return name

    def _check_checksum(self, pointer: Pointer) -> None:
        """Reject a checksum that other bytes may have, too: the signature would not bind what is in the store.

        What is encrypted is authenticated by its encryption.
        """
        algorithm = algorithm_of(pointer.checksum or "")
        if algorithm in CRYPTOGRAPHIC or algorithm == self._config.checksum or pointer.encryption:
            return
        named = algorithm or "an unknown algorithm"
        why = f"has a checksum by {named}, which does not bind its content: set checksum: {named} to accept it"
        _reject(pointer, "checksum", why)

    def _secrets_for(self, pointer: Pointer) -> dict[str, bytes]:
        try:
            return self._secrets
        except ConfigError as error:
            if self._config.signing.require:
                raise
            # This process reads unsigned pointers: a signed one that it cannot verify is an error of that message.
            _reject(pointer, "signature", f"has a signature that cannot be checked here: {error}", cause=error)

    def _v1_store(self, pointer: Pointer) -> str:
        """Version 1 names no store: use the one with ``v1_pointers: true``, or the only Redis store."""
        stores = self._config.stores
        marked = [name for name, store in stores.items() if store.options.get("v1_pointers")]
        redis = [name for name, store in stores.items() if store.type == "redis"]
        candidates = marked or [name for name in redis if stores[name].options.get("v1_pointers") is not False]
        if len(candidates) != 1:
            why = "has version 1, which names no store: set v1_pointers: true for the Redis store that it belongs to"
            _reject(pointer, "version", why)
        return candidates[0]

    @functools.cached_property
    def _secrets(self) -> dict[str, bytes]:
        keys = self._config.signing.keys
        return {name: signing_key(text, path=f"signing.keys.{name}") for name, text in keys.items()}


def _reject(
    pointer: Pointer, reason: str, why: str, store: str | None = None, cause: Exception | None = None
) -> NoReturn:
    raise PointerRejectedError(
        f"the pointer to {pointer.key[:200]!r} {why}", reason=reason, store=store or pointer.store, key=pointer.key
    ) from cause
