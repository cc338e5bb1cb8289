"""A key provider on the secrets engine Transit of HashiCorp Vault or OpenBao: the keys never leave the server.

    pip install 'claimcheck-messaging[encryption]' hvac

    encryption:
      provider: "vault_transit:VaultTransit"     # this module is on the PYTHONPATH
      key_id: k1
      keys: {k1: claimcheck-payloads}            # the names of keys of Transit
      options: {url: "https://vault:8200", token: "${VAULT_TOKEN}"}

Create the key with ``vault write -f transit/keys/claimcheck-payloads``; its type is ``aes256-gcm96``. The token of a
writer needs ``update`` on ``transit/encrypt/claimcheck-payloads``, that of a reader on ``transit/decrypt/...``. Transit
rotates a key without a change of the configuration: a wrapped key begins with the version that decrypts it.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any

import hvac
import requests
from hvac import exceptions

import claimcheck

UNAVAILABLE = (
    exceptions.BadGateway,
    exceptions.InternalServerError,
    exceptions.RateLimitExceeded,
    exceptions.VaultDown,
    requests.ConnectionError,
    requests.Timeout,
)
FORBIDDEN = (exceptions.Forbidden, exceptions.Unauthorized)


class VaultTransit:
    """Wraps data keys with keys of Transit.

    Args:
        keys: By key id, the name of a key of Transit.
        url: The server's address.
        token: A token for it. Renew it outside of this process, for example with Vault Agent.
        mount_point: Where Transit is mounted.
        timeout_seconds: Timeout for one response.
    """

    def __init__(
        self,
        *,
        keys: Mapping[str, str],
        url: str,
        token: str,
        mount_point: str = "transit",
        timeout_seconds: int = 10,
    ) -> None:
        self._keys = keys
        self._mount_point = mount_point
        self._transit = hvac.Client(url=url, token=token, timeout=timeout_seconds).secrets.transit

    def wrap(self, data_key: bytes, *, key_id: str, context: Mapping[str, str]) -> bytes:
        """Encrypt a data key; returns text of Transit, as in ``vault:v1:...``."""
        answer = self._call(self._transit.encrypt_data, key_id, context, plaintext=_base64(data_key))
        ciphertext: str = answer["ciphertext"]
        return ciphertext.encode()

    def unwrap(self, wrapped: bytes, *, key_id: str, context: Mapping[str, str]) -> bytes:
        """Decrypt a data key. A forged one is an error of hvac, which claimcheck reports as an `IntegrityError`."""
        answer = self._call(self._transit.decrypt_data, key_id, context, ciphertext=wrapped.decode("ascii"))
        return base64.b64decode(answer["plaintext"])

    def _call(self, function: Callable[..., Any], key_id: str, context: Mapping[str, str], **data: str) -> Any:
        bound = json.dumps(dict(context), sort_keys=True).encode()
        with _errors(key_id):
            answer = function(self._keys[key_id], associated_data=_base64(bound), mount_point=self._mount_point, **data)
        return answer["data"]


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


@contextmanager
def _errors(key_id: str) -> Generator[None]:
    """Raise errors of claimcheck for what is no error of the payload."""
    try:
        yield
    except UNAVAILABLE as error:
        text = f"encryption.keys.{key_id}: Vault cannot be reached or is overloaded ({type(error).__name__})"
        raise claimcheck.StoreUnavailableError(text) from error
    except FORBIDDEN as error:
        text = f"encryption.keys.{key_id}: Vault refused the token: check its policy and its lifetime"
        raise claimcheck.ConfigError(text, path="encryption.options.token") from error
