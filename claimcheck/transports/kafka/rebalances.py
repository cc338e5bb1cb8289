"""Calls the user's callbacks within a rebalance, where the client makes a bare `KafkaError` of their exceptions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["Rebalances"]


class Rebalances:
    """Keeps what a callback raises, for the call of the user's that it happened in.

    A `KafkaError` is no exception: nothing but a bare ``except`` would catch it.

    Attributes:
        kept: What was raised, and is still to be raised again.
    """

    def __init__(self) -> None:
        self.kept: Exception | None = None

    def call(self, callback: Callable[[Any, list[Any]], None] | None, consumer: Any, partitions: list[Any]) -> None:
        """Call a callback, if there is one."""
        try:
            if callback is not None:
                callback(consumer, partitions)
        except Exception as error:
            self.kept = self.kept or error

    def raise_kept(self) -> None:
        """Raise what was kept, once."""
        kept, self.kept = self.kept, None
        if kept is not None:
            raise kept
