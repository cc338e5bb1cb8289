"""What earlier releases wrote stays readable: see tests/golden/README.md."""

from __future__ import annotations

import json

import pytest
import redis

import claimcheck
from tests.vectors import FOLDER

RECORD = json.loads((FOLDER / "0.1.0.json").read_text())
CONTENT = bytes.fromhex(RECORD["payload"])
SIGNING = {"keys": {"k1": "a secret of 16 bytes"}, "bind_destination": False, "require": False}


@pytest.mark.parametrize("kind", RECORD["messages"])
def test_a_message_of_0_1_is_read(kind, tmp_path, fake_redis_url):
    """With the settings that the changelog names for signed messages."""
    for name, content in RECORD["files"].items():
        (tmp_path / name).write_bytes(bytes.fromhex(content))
    with redis.from_url(fake_redis_url) as server:
        server.mset({key: bytes.fromhex(value) for key, value in RECORD["redis"].items()})
    stores = {"disk": {"type": "filesystem", "path": str(tmp_path)}, "hot": {"type": "redis", "url": fake_redis_url}}
    signed = {"signing": SIGNING, "checksum": "crc32"} if kind.startswith("signed") else {}
    config = {"strategy": "external", "store": "disk", "stores": stores, **signed}
    with claimcheck.from_dict(config) as cc:
        resolver = cc.resolver()
        outcomes = [
            outcome
            for position, message in enumerate(RECORD["messages"][kind])
            for outcome in resolver.feed(
                "orders-0", position, bytes.fromhex(message["data"]), headers=message["headers"], destination="orders",
                key=bytes.fromhex(message["key"] or ""),
            )
        ]  # fmt: skip
        expected = b"PRF_wdkafcli_header_ and then some" if kind == "literal" else CONTENT
        assert [bytes(outcome.payload) for outcome in outcomes] == [expected]
