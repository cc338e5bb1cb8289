"""What a garbage collection needs from a broker: every message of its topics, and what was appended meanwhile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from claimcheck._envelope import Buffer
from claimcheck.errors import TransportError

__all__ = ["IncompleteReadError", "Topics", "TopicMessage"]


class IncompleteReadError(TransportError):
    """A topic could not be read completely, so nothing was deleted."""


@dataclass(frozen=True, slots=True)
class TopicMessage:
    """A message of a topic.

    Attributes:
        topic: The topic.
        place: Partition and position, for errors.
        value: Its bytes; ``None`` for a tombstone.
    """

    topic: str
    place: str
    value: Buffer | None = field(repr=False)


class Topics(Protocol):
    """The topics of one broker. Reading them changes nothing: no group is joined, nothing is acknowledged."""

    @property
    def topics(self) -> Sequence[str]:
        """The topics whose payloads are collected, as the broker calls them."""

    def known(self) -> Sequence[str]:
        """Return all topics of the broker that can be listed.

        Raises:
            TransportError: They cannot.
        """

    def names(self, topic: str) -> Sequence[str]:
        """Return all names that a producer may use for a topic."""

    def read(self) -> Iterator[TopicMessage]:
        """Yield what was appended since the last call began, up to when this one begins; at first, everything.

        Includes the dead-letter topics that can be recognized by their names, also those that were created since the
        last call.

        Raises:
            IncompleteReadError: A topic does not exist or cannot be read completely, or something that was appended
                since the last call was deleted before it could be read.
            TransportError: The broker failed.
        """
