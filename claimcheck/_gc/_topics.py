"""What a garbage collection needs from a broker: every message of its topics, and what was appended meanwhile."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from claimcheck._doctor._topics import DEAD_LETTERS
from claimcheck._envelope import Buffer
from claimcheck.errors import TransportError

_COPIES = re.compile(rf"([._-].+)?({DEAD_LETTERS.pattern}|[._-]retr(y|ies))([._-]\d+)?", re.IGNORECASE)


class IncompleteReadError(TransportError):
    """A topic could not be read completely, so nothing was deleted."""


@dataclass(frozen=True, slots=True)
class TopicMessage:
    """A message of a topic."""

    topic: str
    place: str
    value: Buffer | None = field(repr=False)
    sent_ms: int | None = None


class Topics(Protocol):
    """The topics of one broker. Reading them changes nothing: no group is joined, nothing is acknowledged."""

    @property
    def topics(self) -> Sequence[str]:
        """The topics whose payloads are collected, as the broker calls them."""

    def cluster(self) -> str:
        """Return the name of the broker's cluster, which no other one has."""

    def known(self) -> Sequence[str]:
        """Return all topics of the broker that can be listed."""

    def names(self, topic: str) -> Sequence[str]:
        """Return all names that a producer may use for a topic."""

    def read(self) -> Iterator[TopicMessage]:
        """Yield what was appended since the last call began, up to when this one begins; at first, everything."""


def topics_to_read(topics: Iterable[str], known: Collection[str]) -> list[str]:
    """Return the existing topics that, by their names, may have messages with payloads of some topics, sorted."""
    origins = _origins(topics, known)
    return sorted(name for name in known if name in origins or any(_has_copies(name, each) for each in origins))


def _origins(topics: Iterable[str], known: Iterable[str]) -> set[str]:
    """Return these topics, and those whose dead-letter or retry topics they are."""
    named = set(topics)
    return named | {name for name in known if any(_has_copies(topic, name) for topic in named)}


def _has_copies(name: str, topic: str) -> bool:
    """Whether a topic has, by convention, the name of a dead-letter or retry topic of another one."""
    return name.startswith(topic) and _COPIES.fullmatch(name[len(topic) :]) is not None


def topics_not_read(topics: Iterable[str], known: Collection[str]) -> list[str]:
    """Return the other topics with similar names, sorted: one name contains the other, in upper or lower case."""
    origins = [_short(topic) for topic in _origins(topics, known)]
    others = sorted(set(known).difference(topics_to_read(topics, known)))
    return [name for name in others if any(each in _short(name) or _short(name) in each for each in origins)]


def _short(topic: str) -> str:
    return (topic.rpartition("/")[2] if "://" in topic else topic).lower()
