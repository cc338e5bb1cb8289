"""Fixtures of this folder: a configuration, and a function that sends payloads."""

from __future__ import annotations

import pytest

import claimcheck


@pytest.fixture
def config(tmp_path) -> dict[str, object]:
    """Stores payloads above 1,000 bytes in a folder: processes cannot share the memory store."""
    return {
        "strategy": "external",
        "threshold_bytes": 1000,
        "stores": {"disk": {"type": "filesystem", "path": str(tmp_path / "claims"), "create": True}},
    }


@pytest.fixture
def send(config):
    """Returns the messages of a payload."""
    writer = claimcheck.from_dict(config)

    def messages(payload: bytes, **overrides: object) -> list[bytes]:
        cc = claimcheck.from_dict(config | overrides) if overrides else writer
        with cc.outbound(payload, destination="orders", key=b"k") as out:
            return [envelope.data for envelope in out.envelopes]

    return messages
