"""The lag of consumer groups in time. Nothing here joins a group or commits an offset."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from claimcheck._check import Finding
from claimcheck._client import ClaimCheck
from claimcheck._doctor._findings import examined, finding
from claimcheck._doctor._topics import Expectation, behind
from claimcheck._pointer import Pointer
from claimcheck._registry import import_vendor
from claimcheck.errors import ClaimCheckError
from claimcheck.transports.kafka._groups import NO_GROUP, groups_of, log_offsets

__all__ = ["GroupReader"]

_SECONDS = 10.0
_MS = 1000
_MESSAGES = 100
_OWN = {
    "group.id": "claimcheck-doctor",  # the client requires one; it is never joined
    "enable.auto.commit": False,
    "enable.partition.eof": True,  # sent where only the markers of transactions are left
    "isolation.level": "read_uncommitted",
    "queued.max.messages.kbytes": 1024,
}
_quiet = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GroupReader:
    """Looks at the groups that have committed offsets of one topic.

    Attributes:
        cc: The configuration.
        admin: The admin client.
        settings: Of the clients; they may be secrets.
        topic: The topic.
        expected: What the configuration promises.
        clock: This machine's time, in seconds.
    """

    cc: ClaimCheck
    admin: Any
    settings: Mapping[str, object] = field(repr=False)
    topic: str
    expected: Expectation
    clock: Callable[[], float]

    def findings(self, groups: tuple[str, ...]) -> Iterator[Finding]:
        """Yield the findings about groups; an empty tuple stands for all."""
        committed = groups_of(self.admin, self.topic, groups)
        for name in groups:
            if name not in committed:
                message = f"group {name} has committed no offsets for this topic"
                yield finding("warning", "kafka-group-unknown", self.expected.path, message, "Check its name.")
        if len(committed) > 1:
            message = f"{len(committed)} groups read this topic: {', '.join(committed)}"
            yield self.expected.read_by_several("kafka-groups", message)
        for name, offsets in committed.items():
            yield from examined("kafka", self.expected.path, f"group {name}", partial(self._group, name, offsets))

    def _group(self, group: str, offsets: dict[int, int]) -> Iterator[Finding]:
        earliest, latest = self._watermarks(offsets, "earliest"), self._watermarks(offsets, "latest")
        lost = sum(max(0, earliest[partition] - offset) for partition, offset in offsets.items())
        if lost:
            message = f"retention deleted up to {lost:,} messages that group {group} had not read"
            fix = "Raise retention.ms, or start more consumers."
            yield finding("warning", "kafka-group-lost", self.expected.path, message, fix)
        unread = {each: max(offset, earliest[each]) for each, offset in offsets.items()}
        unread = {partition: offset for partition, offset in unread.items() if offset < latest[partition]}
        found = self._first_pointers(unread) if unread and self.expected.store is not None else []
        if found:
            yield from behind(
                "kafka-group-lag",
                f"the oldest unread pointer of group {group}",
                self.expected.path,
                self.expected.lifetime,
                now=self.clock(),
                oldest=min(message.timestamp()[1] for message, _ in found) / _MS,
                expires=min((each.expires_ms / _MS for _, each in found if each.expires_ms is not None), default=None),
            )

    def _pointer(self, message: Any) -> Pointer | None:
        with suppress(ClaimCheckError):  # a consumer reports it
            return self.cc._messages.pointer_from_anywhere(message.value() or b"")
        return None

    def _watermarks(self, offsets: dict[int, int], which: str) -> dict[int, int]:
        found = log_offsets(self.admin, [(self.topic, partition) for partition in offsets], which)
        return {partition: offset for (_, partition), offset in found.items()}

    def _first_pointers(self, offsets: dict[int, int]) -> list[tuple[Any, Pointer]]:
        """Return the first message with a pointer from each offset on, if it is among the next few.

        Raises:
            TimeoutError: Not every partition returned a message in time.
        """
        vendor = _vendor()
        left, found = dict.fromkeys(offsets, _MESSAGES), list[tuple[Any, Pointer]]()
        with closing(vendor.Consumer({**self.settings, **_OWN}, logger=_quiet)) as consumer:
            consumer.assign([vendor.TopicPartition(self.topic, *place) for place in offsets.items()])
            deadline = time.monotonic() + _SECONDS
            while left:
                message = consumer.poll(max(0.0, deadline - time.monotonic()))
                if message is None:
                    silent = [partition for partition, count in left.items() if count == _MESSAGES]
                    if silent:
                        raise TimeoutError(f"no message from partition {min(silent)} within {_SECONDS:g} seconds")
                    break
                at_end = message.error() is not None
                if at_end and message.error().name() == NO_GROUP:
                    continue
                if at_end and message.error().code() != vendor.KafkaError._PARTITION_EOF:
                    raise vendor.KafkaException(message.error())
                if message.partition() not in left:
                    continue
                left[message.partition()] -= 1
                pointer = None if at_end else self._pointer(message)
                if pointer is not None:
                    found.append((message, pointer))
                if at_end or pointer is not None or not left[message.partition()]:
                    del left[message.partition()]
                    consumer.pause([vendor.TopicPartition(self.topic, message.partition())])
        return found


def _vendor() -> Any:
    return import_vendor("confluent_kafka", extra="kafka")
