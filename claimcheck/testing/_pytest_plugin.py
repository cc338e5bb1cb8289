"""The pytest plugin: fixtures that keep payloads in memory. pytest loads it in every environment with claimcheck."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from claimcheck import ClaimCheck


@pytest.fixture
def claimcheck_config() -> dict[str, object]:
    """The configuration of `claimcheck_memory`, as in YAML; override it to change the configuration."""
    return {"strategy": "external", "stores": {"memory": {"type": "memory", "space": f"test-{uuid.uuid4()}"}}}


@pytest.fixture
def claimcheck_memory(claimcheck_config: dict[str, object]) -> Iterator[ClaimCheck]:
    """A `ClaimCheck` that keeps payloads in memory until the test ends. Its store is called ``memory``."""
    from claimcheck import from_dict
    from claimcheck.stores.memory import MemoryStore

    with from_dict(claimcheck_config) as cc:
        yield cc
        for store in map(cc.store, cc.config.stores):
            if isinstance(store, MemoryStore):
                store._payloads.clear()
