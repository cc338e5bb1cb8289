"""The example of a key provider, on a Vault or OpenBao server that CLAIMCHECK_TEST_VAULT_URL and ..._TOKEN name.

The token must be allowed to mount secrets engines. CI has no such server and does not run this.
"""

from __future__ import annotations

import os
import sys
import uuid
from pathlib import Path

import pytest

from claimcheck._content.data_keys import DataKeys
from claimcheck.config import EncryptionConfig
from claimcheck.errors import ConfigError, IntegrityError, StoreUnavailableError

URL, TOKEN = (os.environ.get(f"CLAIMCHECK_TEST_VAULT_{name}", "") for name in ("URL", "TOKEN"))
FOLDER = Path(__file__).resolve().parents[2] / "examples" / "key_providers"

CONTEXT = {"claimcheck": "2", "destination": "orders"}

pytestmark = pytest.mark.skipif(not URL, reason="CLAIMCHECK_TEST_VAULT_URL is not set")


@pytest.fixture
def transit(monkeypatch):
    """A mounted engine with one key, and the SDK's client for it."""
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.setenv("VAULT_TOKEN", TOKEN)
    hvac = pytest.importorskip("hvac")
    client = hvac.Client(url=URL, token=TOKEN)
    mount = f"test-{uuid.uuid4().hex[:8]}"
    client.sys.enable_secrets_engine("transit", path=mount)
    client.secrets.transit.create_key("payloads", mount_point=mount)
    yield client, mount
    client.sys.disable_secrets_engine(mount)
    sys.modules.pop("vault_transit", None)


def data_keys(mount, key_id="k1", **options):
    options = {"url": URL, "token": "${VAULT_TOKEN}", "mount_point": mount, **options}
    keys = {"k1": "payloads", "k2": "nothing"}
    config = EncryptionConfig(key_id=key_id, keys=keys, provider="vault_transit:VaultTransit", options=options)
    made = DataKeys(config)
    made.check()
    return made


def test_data_keys_are_wrapped_and_unwrapped(transit):
    _, mount = transit
    made = data_keys(mount).new(CONTEXT)

    assert made.wrapped.startswith(b"vault:v1:")
    assert data_keys(mount).open("k1", made.wrapped, CONTEXT) == made.key


def test_rotation_in_transit_needs_no_change_here(transit):
    client, mount = transit
    old = data_keys(mount).new(CONTEXT)
    client.secrets.transit.rotate_key("payloads", mount_point=mount)
    new = data_keys(mount).new(CONTEXT)

    assert new.wrapped.startswith(b"vault:v2:")
    assert [data_keys(mount).open("k1", each.wrapped, CONTEXT) for each in (old, new)] == [old.key, new.key]


def test_a_forged_data_key_and_another_context_are_refused(transit):
    client, mount = transit
    made = data_keys(mount).new(CONTEXT)
    foreign = client.secrets.transit.encrypt_data("payloads", plaintext="AAAA", mount_point=mount)
    forged = (made.wrapped[:-6] + b"AAAAA=", foreign["data"]["ciphertext"].encode(), b"\xff", b"")
    for wrapped in forged:
        with pytest.raises(IntegrityError, match=r"encryption\.keys\.k1"):
            data_keys(mount).open("k1", wrapped, CONTEXT)


def test_a_deleted_key_makes_payloads_unreadable(transit):
    client, mount = transit
    made = data_keys(mount).new(CONTEXT)
    client.secrets.transit.update_key_configuration("payloads", deletion_allowed=True, mount_point=mount)
    client.secrets.transit.delete_key("payloads", mount_point=mount)

    with pytest.raises(IntegrityError):
        data_keys(mount).open("k1", made.wrapped, CONTEXT)


def test_a_wrong_token_and_a_server_that_is_down_are_no_errors_of_the_payload(transit):
    _, mount = transit
    with pytest.raises(ConfigError, match="token"):
        data_keys(mount, token="wrong").new(CONTEXT)
    with pytest.raises(StoreUnavailableError):
        data_keys(mount, url="http://127.0.0.1:1").new(CONTEXT)
