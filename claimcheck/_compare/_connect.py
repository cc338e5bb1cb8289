"""Opens the broker of an address. The clients of Kafka and Pulsar are imported only when they are used."""

from __future__ import annotations

import importlib

from claimcheck._compare._broker import Broker, BrokerAddress

__all__ = ["connect"]


def connect(address: BrokerAddress) -> Broker:
    """Return the broker, connected for administration: the module of each kind has a function ``connect``.

    Raises:
        CompareError: It cannot be reached.
        MissingDependencyError: Its client is not installed; names the extra.
    """
    broker: Broker = importlib.import_module(f"claimcheck._compare._{address.kind}").connect(address)
    return broker
