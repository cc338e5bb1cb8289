"""Dead letters: what they are labeled with, and sending them back to their topics."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import chain
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from claimcheck._wire.buffers import Buffer
from claimcheck._wire.envelope import is_lookalike
from claimcheck._wire.signing import signed_ms
from claimcheck.config import canonical
from claimcheck.errors import TransportError

if TYPE_CHECKING:
    from claimcheck._client import ClaimCheck

REASON = "dead-letter-reason"
"""The header or property with the reason, for all transports."""

_TOPIC, _PARTITION, _OFFSET = "dead-letter-topic", "dead-letter-partition", "dead-letter-offset"
_LONGEST_REASON = 500

_LABELS = {REASON, _TOPIC, _PARTITION, _OFFSET, "ORIGIN_MESSAGE_ID", "REAL_TOPIC", "REAL_SUBSCRIPTION"}
_ORIGINS = {_TOPIC, "REAL_TOPIC"}  # the names that Pulsar's own clients use
_COUNT = "redrive-count"
_PATIENCE_SECONDS = 1e9

P = TypeVar("P")
V = TypeVar("V")


def origin(topic: str, partition: int, offset: int, reason: str) -> Iterator[tuple[str, bytes]]:
    """Yield the headers with a dead letter's origin and reason, for brokers with partitions and offsets."""
    yield _TOPIC, topic.encode()
    yield _PARTITION, b"%d" % partition
    yield _OFFSET, b"%d" % offset
    yield REASON, reason[:_LONGEST_REASON].encode("utf-8", "replace")


# Redrive -------------------------------------------------------------------------------------------------------------


class ForeignLetterError(TransportError):
    """The message is not a dead letter of the topic to send to. It was not sent, and stays."""


@dataclass(frozen=True, slots=True)
class Letter:
    """One dead letter: a whole payload, or the error in its place."""

    position: str
    read: Callable[[], bytes | None] = field(repr=False)
    send: Callable[[bytes | None], None] = field(repr=False)
    settle: Callable[[], None] = field(repr=False)
    skip: Callable[[], None] | None = field(repr=False, default=None)
    store: str | None = None
    foreign: ForeignLetterError | None = None


class DeadLetterTopic(Protocol):
    """A dead-letter topic with a consumer, and the topic to send to with a producer."""

    def letters(self) -> Iterator[Letter]:
        """Yield the letters that were in the topic at the time of the call, and were not settled before."""

    def close(self) -> None:
        """Close consumer and producer; letters that were not settled are received again by the next consumer."""


class EndClock:
    """A monotonic clock by which chunks do not expire before all letters were received; see `patient`."""

    def __init__(self) -> None:
        self._ahead = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self._ahead

    def end(self) -> None:
        """Let all chunks expire: the rest of their payloads is not in the topic."""
        self._ahead += 2 * _PATIENCE_SECONDS


def patient(cc: ClaimCheck, *, source: str, target: str) -> ClaimCheck:
    """Return a `ClaimCheck` that reads dead letters, of any age."""
    chunking = replace(cc.config.chunking, expire_after_seconds=_PATIENCE_SECONDS, max_redeliveries=0)
    chunking, signing = replace(chunking, on_expire="redeliver", on_evict="redeliver"), cc.config.signing
    allowed = {pattern: tuple(origins) for pattern, origins in signing.accept_from.items()}
    known = [origins for pattern, origins in allowed.items() if fnmatchcase(canonical(target), canonical(pattern))]
    allowed[source] = (*allowed.get(source, ()), target, *chain.from_iterable(known))
    signing = replace(signing, accept_from=allowed, max_age_seconds=None)
    stores = cc.config.readable_from(target)
    return type(cc)(replace(cc.config, chunking=chunking, destinations=(), reads_from=stores, signing=signing))


class Senders(Generic[P]):
    """Sends letters again with what they had: a signature and its time, or none."""

    def __init__(self, cc: ClaimCheck, producer: Callable[[ClaimCheck], P]) -> None:
        config, kind = cc.config, type(cc)
        unsigned = replace(config, signing=replace(config.signing, key_id=None))
        encryption = replace(config.encryption, inline=False)
        plain = replace(unsigned, strategy="inline", destinations=(), encryption=encryption)
        self._header, self._signs = config.header, config.signing.key_id is not None
        self._configured = [kind(config), *([kind(unsigned), kind(plain)] if self._signs else [])]
        self.producers = [producer(each) for each in self._configured]

    def choose(self, messages: Sequence[tuple[Buffer | None, object]]) -> P:
        if not self._signs:
            return self.producers[0]
        times = [signed_ms(value, headers, header=self._header) for value, headers in messages]
        signed = [each for each in times if each is not None]
        self._configured[0].opened.seal.first_ms = min(signed, default=None)
        is_plain = not any(value is not None and is_lookalike(value, header=self._header) for value, _ in messages)
        return self.producers[0 if signed else 2 if is_plain else 1]

    def close(self) -> None:
        for each in self._configured:
            each.close()


def foreign(
    headers: Iterable[tuple[str, str | bytes | None]], target: str, name: Callable[[str], str] = str
) -> ForeignLetterError | None:
    """Return why a message with these headers is not a dead letter of a topic; ``None`` if it is one."""
    values = [value for header, value in headers if header in _ORIGINS and value is not None]
    origins = [value if isinstance(value, str) else value.decode("utf-8", "replace") for value in values]
    if name(target) in map(name, origins):
        return None
    text = f"it came from {origins[-1]}" if origins else "its headers do not name the topic that it came from"
    return ForeignLetterError(f"not a dead letter of {target}: {text}", destination=target)


def relabeled(headers: Iterable[tuple[str, V]], encode: Callable[[str], V]) -> list[tuple[str, V]]:
    """Return a letter's headers without those of dead letters, and with the number of redrives."""
    pairs = list(headers)
    known: Any = next((value for name, value in reversed(pairs) if name == _COUNT), None)
    text = known.decode("ascii", "replace") if isinstance(known, bytes) else str(known)
    count = int(text) + 1 if text.isascii() and text.isdigit() and len(text) < 10 else 1
    kept = [(name, value) for name, value in pairs if name not in _LABELS and name != _COUNT]
    return [*kept, (_COUNT, encode(str(count)))]
