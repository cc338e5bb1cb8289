"""Limits of topics by the broker's configuration: record size, compaction and retention."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from claimcheck._registry import import_vendor
from claimcheck._wire_size import WireLimit, kafka_overhead
from claimcheck.transports.kafka._client import vendor
from claimcheck.transports.kafka._errors import CompactedTopicError

__all__ = ["MAX_MESSAGE_BYTES", "Topic", "Topics"]

_log = logging.getLogger(__name__)

MAX_MESSAGE_BYTES = 1_000_000
"""The client's own limit, ``message.max.bytes``, by default; the broker's is 1,048,588."""

_ASK_SECONDS = 10.0
_ASK_AGAIN_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Topic:
    """The configuration of one topic.

    Attributes:
        limit: Of a record.
        compacted: Whether it keeps only the last record of each key.
        retention_bytes: Bytes that a partition keeps; ``None`` for no limit, or where it is unknown.
    """

    limit: WireLimit
    compacted: bool = False
    retention_bytes: int | None = None


class Topics:
    """Requests the configuration of each topic once, and again after `ask_again`.

    Args:
        admin: A `confluent_kafka.admin.AdminClient`; without one nothing is requested.
        max_message_bytes: The producer's own ``message.max.bytes``.
        clock: Seconds, monotonic.
    """

    def __init__(self, admin: Any, max_message_bytes: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._admin = admin
        self._max_message_bytes = max_message_bytes
        self._unasked = Topic(WireLimit(max_message_bytes, kafka_overhead))
        self._known: dict[str, Topic] = {}
        self._stale: set[str] = set()  # of those that are known
        self._ask_again: dict[str, float] = {}
        self._clock = clock
        self._warned = False

    def of(self, name: str) -> Topic:
        """Return a topic's limits; without an answer from the broker the defaults, and it is asked again soon."""
        if not self.knows(name) and self._ask_again.get(name, 0.0) <= self._clock():
            told = self._ask(name)
            if told is None or name in self._stale:
                self._ask_again[name] = self._clock() + _ASK_AGAIN_SECONDS
            if told is not None:
                self._known[name] = self._topic(name, told)
                self._stale.discard(name)
        return self._known.get(name, self._unasked)

    def knows(self, name: str) -> bool:
        """Whether `of` returns the same until `ask_again`."""
        return self._admin is None or (name in self._known and name not in self._stale)

    def ask_again(self, name: str) -> None:
        """Ask for a topic at its next use, but not more often than every few seconds; until then the old answer holds.

        Its configuration may have changed: it refused a record that should have fitted.
        """
        if name in self._known:
            self._stale.add(name)

    def check_chunks(self, name: str, size: int | None) -> None:
        """Check that a topic may hold chunks.

        Args:
            name: The topic.
            size: Payload bytes, where they are known.

        Raises:
            CompactedTopicError: It keeps one record of each key, and chunks have one key.
        """
        topic = self.of(name)
        if topic.compacted:
            raise CompactedTopicError(
                f"{name} is compacted: of the chunks of a payload, which have one key, it would keep the last; use "
                "strategy external",
                destination=name,
            )
        if topic.retention_bytes is not None and size is not None and size > topic.retention_bytes:
            _log.warning(
                "%s: a payload of %d bytes goes as chunks to partitions that hold %d (retention.bytes); its first may "
                "be gone before its last is read", name, size, topic.retention_bytes,
            )  # fmt: skip
        if self._admin is None and not self._warned:
            self._warned = True
            _log.warning("%s: chunks are sent without a check whether the topic is compacted; pass admin=", name)

    def _ask(self, name: str) -> dict[str, str] | None:
        admin = import_vendor("confluent_kafka.admin", extra="kafka")
        resource = admin.ConfigResource(admin.ResourceType.TOPIC, name)
        try:
            entries = self._admin.describe_configs([resource], request_timeout=_ASK_SECONDS)[resource].result()
        except vendor().KafkaException as error:
            _log.warning("%s: failed to read the topic's configuration: %s", name, error.args[0].name())
            return None
        return {key: entry.value for key, entry in entries.items()}

    def _topic(self, name: str, told: dict[str, str]) -> Topic:
        theirs = int(told.get("max.message.bytes") or self._max_message_bytes)
        if theirs < self._max_message_bytes:
            _log.warning(
                "%s takes %d bytes; the producer may put that and more into one batch, which is refused as a whole: "
                "set its batch.size to %d at most", name, theirs, theirs,
            )  # fmt: skip
        retention = int(told.get("retention.bytes") or -1)
        return Topic(
            WireLimit(min(theirs, self._max_message_bytes), kafka_overhead),
            compacted="compact" in (told.get("cleanup.policy") or ""),
            retention_bytes=retention if retention >= 0 else None,
        )
