"""A `Lab` for tests of brokers and their experiments."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from claimcheck._config_file import from_dict
from tests.benchmarks.compare.broker import Broker, BrokerAddress
from tests.benchmarks.compare.lab import Lab
from tests.benchmarks.compare.store_space import StoreSpace

KIB, MIB = 1 << 10, 1 << 20


@contextlib.contextmanager
def lab_on(
    broker: Broker, folder: Path, *, store: dict[str, Any] | None = None, kind: type[Lab] = Lab, **more: Any
) -> Iterator[Any]:
    """Open a lab on a broker, with a store of files by default; what it created is removed."""
    entry = store or {"type": "filesystem", "path": str(folder / "store"), "create": True}
    settings = from_dict({"strategy": "external", "stores": {"s": entry}})
    run = secrets.token_hex(4)
    lab = kind(
        broker=broker,
        space=StoreSpace.of(settings, f"claimcheck-compare-{run}"),
        run=run,
        sizes=more.pop("sizes", (64 * KIB, MIB)),
        **more,
    )
    try:
        yield lab
    finally:
        lab.clean_up()
        broker.close()


def embedded(folder: Path) -> Broker:
    """Return the embedded broker."""
    from tests.benchmarks.compare.local import connect

    (folder / "broker").mkdir()
    return connect(BrokerAddress("local", str(folder / "broker")))
