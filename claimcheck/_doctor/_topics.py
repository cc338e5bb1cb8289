"""What the configuration promises for a topic, and what the operator wants to know about."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from claimcheck._check import Finding
from claimcheck._client import ClaimCheck
from claimcheck._doctor._findings import finding
from claimcheck._texts import duration

DEAD_LETTERS = re.compile(r"[._-](dlq|dlt|dead[._-]?letters?|errors?)", re.IGNORECASE)
"""What follows a topic's name in the name of its dead-letter topic, by convention."""

_LATE = 0.5
_SECRET = re.compile(r"password|secret|token|pem$|_key$|oauthbearer\.(config|assertion)")


@dataclass(frozen=True, slots=True)
class KafkaTarget:
    """Topics of a Kafka cluster."""

    servers: str = field(repr=False)
    topics: tuple[str, ...]
    groups: tuple[str, ...] = ()
    dead_letter_topics: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def secrets(self) -> list[str]:
        """Words that no text may contain."""
        login = self.servers.rpartition("@")[0].rpartition("//")[2]
        values = [value for name, value in self.options.items() if _SECRET.search(name)]
        return [login, *" ".join(values).split()]


@dataclass(frozen=True, slots=True)
class PulsarTarget:
    """Topics of a Pulsar cluster."""

    url: str | None = field(repr=False)
    admin_url: str | None = field(repr=False)
    topics: tuple[str, ...]
    subscriptions: tuple[str, ...] = ()
    dead_letter_topics: tuple[str, ...] = ()
    token: str | None = field(default=None, repr=False)
    ca_file: str | None = None
    listener_name: str | None = None

    @property
    def secrets(self) -> list[str]:
        """Words that no text may contain."""
        return (self.token or "").split()


@dataclass(frozen=True, slots=True)
class Expectation:
    """What the configuration promises for one topic."""

    path: str
    strategy: str
    store: str | None
    lifetime: float | None
    threshold: int | None
    chunk_bytes: int | None
    dead_letter_lifetime: float | None = None

    @classmethod
    def of(cls, cc: ClaimCheck, topic: str) -> Expectation:
        """Return what a configuration promises for a topic, by the name that the producer uses."""
        config = cc.config.for_destination(topic)
        store = config.store if config.strategy not in ("chunking", "inline") else None
        lifetime, chunk = cc.store(store).ttl_seconds if store else None, config.chunking.max_message_bytes
        return cls(
            path=f"topic {topic}",
            strategy=config.strategy,
            store=store,
            lifetime=lifetime,
            dead_letter_lifetime=None if lifetime is None else max(lifetime, config.dead_letter_ttl_seconds or 0),
            threshold=None if config.threshold_bytes == "auto" else config.threshold_bytes,
            chunk_bytes=None if chunk == "auto" else chunk,
        )

    @property
    def chunks(self) -> bool:
        """Whether the writer may send chunks."""
        return self.strategy in ("chunking", "hybrid")

    def unset(self) -> Iterator[Finding]:
        """Yield a finding if payloads are stored, but the configuration does not limit their lifetime."""
        if self.store is not None and self.lifetime is None:
            message = f"store {self.store!r} has no ttl_seconds, so the topic's settings cannot be compared with it"
            fix = "Set ttl_seconds to the time after which payloads are deleted."
            yield finding("info", "lifetime-unset", self.path, message, fix)

    def too_large(self, limit: int, default: int) -> Iterator[tuple[Literal["error", "warning"], str]]:
        """Yield what would be larger than a topic's limit: an error, or a warning if only the default is."""
        if (self.threshold or default) > limit:
            yield self._too_large("threshold_bytes", self.threshold, default, limit)
        if self.chunks and (self.chunk_bytes or default) > limit:
            yield self._too_large("chunking.max_message_bytes", self.chunk_bytes, default, limit)

    def _too_large(
        self, option: str, value: int | None, default: int, limit: int
    ) -> tuple[Literal["error", "warning"], str]:
        if value is None:
            return "warning", f"{option} is auto ({default:,} bytes by default), and the topic accepts {limit:,}"
        return "error", f"{option} is {value:,} bytes, and the topic accepts {limit:,}"


def is_dead_letter_topic(name: str, topic: str) -> bool:
    """Whether a topic has, by convention, the name of another one's dead-letter topic: ``orders.dlq``."""
    return name.startswith(topic) and DEAD_LETTERS.fullmatch(name[len(topic) :]) is not None


def on_command_line(path: str, option: str, address: str, fix: str) -> Iterator[Finding]:
    """Yield a finding if an option's address contains a user name or password."""
    if "@" in address or "password=" in address:
        yield finding("warning", "secret-on-command-line", path, f"{option} contains a user name or password", fix)


def outlives(seconds: float | None, lifetime: float | None) -> bool:
    """Whether messages that are kept for a time (``None``: without limit) stay longer than their payloads."""
    return lifetime is not None and (seconds is None or seconds > lifetime)


def behind(
    id: str,  # noqa: A002 - the name of the field
    what: str,
    path: str,
    lifetime: float | None,
    *,
    now: float,
    oldest: float,
    expires: float | None = None,
) -> Iterable[Finding]:
    """Yield a finding if a reader is so late that payloads have expired, or soon will."""
    fix = "Start more consumers, or raise ttl_seconds: it applies to payloads that are written from then on."
    if expires is not None and expires <= now:
        message = f"the payload of {what} expired {duration(now - expires)} ago"
        yield finding("error", id, path, message, fix)
    elif lifetime is not None and now - oldest >= _LATE * lifetime:
        age = now - oldest
        message = f"{what} is {duration(age)} old, and payloads live {duration(lifetime)}"
        yield finding("error" if age >= lifetime else "warning", id, path, message, fix)
