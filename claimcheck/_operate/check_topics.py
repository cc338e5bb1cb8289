"""What the configuration promises for a topic, and whether the topics of a broker and their readers keep to it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from claimcheck._operate.check import Configured
from claimcheck._operate.findings import Finding, finding
from claimcheck._texts import duration

_LATE = 0.5


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
    def of(cls, cc: Configured, topic: str) -> Expectation:
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
        options = {"threshold_bytes": self.threshold}
        if self.chunks:
            options["chunking.max_message_bytes"] = self.chunk_bytes
        for option, value in options.items():
            if value is None and default > limit:
                yield "warning", f"{option} is auto ({default:,} bytes by default), and the topic accepts {limit:,}"
            elif value is not None and value > limit:
                yield "error", f"{option} is {value:,} bytes, and the topic accepts {limit:,}"


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
