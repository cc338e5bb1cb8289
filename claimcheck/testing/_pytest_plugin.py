"""The pytest plugin: fixtures that keep payloads in memory. pytest loads it in every environment with claimcheck."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from claimcheck._client import ClaimCheck


@pytest.fixture
def claimcheck_config() -> dict[str, object]:
    """The configuration of `claimcheck_memory`, as in YAML; override it to change the configuration."""
    return {"strategy": "external", "stores": {"memory": {"type": "memory", "space": f"test-{uuid.uuid4()}"}}}


@pytest.fixture
def claimcheck_memory(claimcheck_config: dict[str, object]) -> Iterator[ClaimCheck]:
    """A `ClaimCheck` that keeps payloads in memory until the test ends. Its store is called ``memory``."""
    from claimcheck._client import from_dict

    with from_dict(claimcheck_config) as cc:
        yield cc
        for name, store in cc.config.stores.items():
            if store.type == "memory":
                list(cc.store(name).delete(cc.store(name).scan()))
