"""Calls within a rebalance, where the client turns exceptions into a bare `KafkaError`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from claimcheck.transports.kafka.errors import vendor

__all__ = ["Rebalances"]


class Rebalances:
    """Keeps what is raised within a rebalance, for the consumer's method that the user called.

    A `KafkaError` is not an exception class: only a bare ``except`` would catch it.

    Attributes:
        kept: The exception to raise, if there is one.
    """

    def __init__(self) -> None:
        self.kept: Exception | None = None

    def call(self, callback: Callable[[Any, list[Any]], None] | None, consumer: Any, partitions: list[Any]) -> None:
        """Call a callback of the user's, if there is one."""
        try:
            if callback is not None:
                callback(consumer, partitions)
        except Exception as error:
            self.kept = self.kept or error

    def assign(self, native: Any, places: list[Any]) -> None:
        """Assign partitions from given offsets, by the group's protocol."""
        try:
            try:
                native.incremental_assign(places)
            except vendor().KafkaException as error:
                if error.args[0].code() != vendor().KafkaError._STATE:
                    raise
                native.assign(places)  # an eager protocol
        except Exception as error:
            self.kept = self.kept or error

    def raise_kept(self) -> None:
        """Raise what was kept, once."""
        kept, self.kept = self.kept, None
        if kept is not None:
            raise kept
