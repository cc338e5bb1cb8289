"""Messages of whole topics, and which topics have copies of the messages of others, by their names. No I/O."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from claimcheck._wire.buffers import Buffer
from claimcheck.errors import TransportError

_DEAD_LETTERS = r"[._-](dlq|dlt|dead[._-]?letters?|errors?)"
_COPIES = re.compile(rf"([._-].+)?({_DEAD_LETTERS}|[._-]retr(y|ies))([._-]\d+)?", re.IGNORECASE)


class IncompleteReadError(TransportError):
    """A topic could not be read completely. A garbage collection deletes nothing then."""


@dataclass(frozen=True, slots=True)
class TopicMessage:
    """A message of a topic."""

    topic: str
    place: str
    value: Buffer | None = field(repr=False)
    sent_ms: int | None = None


def is_dead_letter_topic(name: str, topic: str) -> bool:
    """Whether a topic has, by convention, the name of another one's dead-letter topic: ``orders.dlq``."""
    return name.startswith(topic) and re.fullmatch(_DEAD_LETTERS, name[len(topic) :], re.IGNORECASE) is not None


def topics_to_read(topics: Iterable[str], known: Collection[str]) -> list[str]:
    """Return the existing topics that, by their names, may have messages with payloads of some topics, sorted."""
    origins = _origins(topics, known)
    return sorted(name for name in known if name in origins or any(_has_copies(name, each) for each in origins))


def topics_not_read(topics: Iterable[str], known: Collection[str]) -> list[str]:
    """Return the other topics with similar names, sorted: one name contains the other, in upper or lower case."""
    origins = [_short(topic) for topic in _origins(topics, known)]
    others = sorted(set(known).difference(topics_to_read(topics, known)))
    return [name for name in others if any(each in _short(name) or _short(name) in each for each in origins)]


def _origins(topics: Iterable[str], known: Iterable[str]) -> set[str]:
    """Return these topics, and those whose dead-letter or retry topics they are."""
    named = set(topics)
    return named | {name for name in known if any(_has_copies(topic, name) for topic in named)}


def _has_copies(name: str, topic: str) -> bool:
    """Whether a topic has, by convention, the name of a dead-letter or retry topic of another one."""
    return name.startswith(topic) and _COPIES.fullmatch(name[len(topic) :]) is not None


def _short(topic: str) -> str:
    return (topic.rpartition("/")[2] if "://" in topic else topic).lower()
