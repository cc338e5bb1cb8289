"""What the tests of this folder share: where payloads rest, and how they get there."""

from __future__ import annotations

import pytest

import claimcheck


@pytest.fixture
def config(tmp_path) -> dict[str, object]:
    """Payloads above 1,000 bytes rest in a folder: the memory store does not cross processes."""
    return {
        "strategy": "external",
        "threshold_bytes": 1000,
        "stores": {"disk": {"type": "filesystem", "path": str(tmp_path / "claims"), "create": True}},
    }


@pytest.fixture
def send(config):
    """From a payload to its messages."""
    writer = claimcheck.from_dict(config)

    def messages(payload: bytes, **overrides: object) -> list[bytes]:
        cc = claimcheck.from_dict(config | overrides) if overrides else writer
        with cc.outbound(payload, destination="orders", key=b"k") as out:
            return [envelope.data for envelope in out.envelopes]

    return messages
