"""Limits of topics from the broker's configuration: record size, compaction and retention."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from claimcheck._wire.headers import WireLimit, kafka_overhead
from claimcheck.transports.kafka._client import CompactedTopicError, vendor
from claimcheck.transports.kafka._queries import topic_settings

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

_log = logging.getLogger(__name__)

MAX_MESSAGE_BYTES = 1_000_000
"""The client's default ``message.max.bytes``; the broker's is 1,048,588."""

_RETRY_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class TopicLimits:
    """Limits of one topic."""

    limit: WireLimit
    compacted: bool = False
    retention_bytes: int | None = None


class Topics:
    """Requests the configuration of each topic once, and again after `refresh`."""

    def __init__(
        self, admin: AdminClient | None, max_message_bytes: int, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._admin = admin
        self._max_message_bytes = max_message_bytes
        self._default = TopicLimits(WireLimit(max_message_bytes, kafka_overhead))
        self._known: dict[str, TopicLimits] = {}
        self._stale: set[str] = set()  # known topics only
        self._retry_at: dict[str, float] = {}
        self._clock = clock
        self._warned = False

    def of(self, name: str) -> TopicLimits:
        """Return a topic's limits, or the defaults if the broker does not answer; a later call requests them again."""
        if self._admin is not None and not self.knows(name) and self._retry_at.get(name, 0.0) <= self._clock():
            limits = self._request(self._admin, name)
            if limits is None or name in self._stale:
                self._retry_at[name] = self._clock() + _RETRY_SECONDS
            if limits is not None:
                self._known[name] = limits
                self._stale.discard(name)
        return self._known.get(name, self._default)

    def knows(self, name: str) -> bool:
        """Whether `of` returns the same limits until `refresh`, without a request."""
        return self._admin is None or (name in self._known and name not in self._stale)

    def refresh(self, name: str) -> None:
        """Request a topic's limits again at its next use, but at most every few seconds."""
        if name in self._known:
            self._stale.add(name)

    def check_chunks(self, name: str, size: int | None) -> None:
        """Check that a topic can hold the chunks of a payload of ``size`` bytes, if the size is known."""
        topic = self.of(name)
        if topic.compacted:
            text = f"{name} is compacted and would keep only the last chunk of a payload; use strategy external"
            raise CompactedTopicError(text, destination=name)
        if topic.retention_bytes is not None and size is not None and size > topic.retention_bytes:
            _log.warning(
                "%s: sending %d bytes as chunks to a partition that keeps %d (retention.bytes); the first chunks may "
                "be deleted before the last one is read", name, size, topic.retention_bytes,
            )  # fmt: skip
        if self._admin is None and not self._warned:
            self._warned = True
            _log.warning("%s: sending chunks without checking whether the topic is compacted; pass admin=", name)

    def _request(self, admin: AdminClient, name: str) -> TopicLimits | None:
        try:
            settings = topic_settings(admin, name)
        except vendor().KafkaException as error:
            _log.warning("%s: failed to read the topic's configuration: %s", name, error.args[0].name())
            return None
        max_bytes = settings.max_message_bytes or self._max_message_bytes
        if max_bytes < self._max_message_bytes:
            _log.warning(
                "%s accepts batches of at most %d bytes, and rejects a larger one as a whole: set the producer's "
                "batch.size to %d or less", name, max_bytes, max_bytes,
            )  # fmt: skip
        limit = WireLimit(min(max_bytes, self._max_message_bytes), kafka_overhead)
        return TopicLimits(limit, compacted=settings.compacted, retention_bytes=settings.retention_bytes)
