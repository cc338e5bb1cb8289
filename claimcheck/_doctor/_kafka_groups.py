"""The lag of consumer groups in time. Nothing here joins a group or commits an offset."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from claimcheck import _pointer as pointers
from claimcheck._check import Finding
from claimcheck._client import ClaimCheck
from claimcheck._doctor._findings import examined, finding
from claimcheck._doctor._topics import Expectation, behind
from claimcheck._envelope import PointerData, decode
from claimcheck._pointer import Pointer
from claimcheck._registry import import_vendor
from claimcheck.errors import ClaimCheckError, PayloadNotFoundError
from claimcheck.transports.kafka._groups import NO_GROUP, groups_of, log_offsets

_SECONDS = 10.0
_MS = 1000
_MESSAGES = 10_000
_READ_BYTES = 1 << 20  # of a larger payload only the first byte is read
_OWN = {
    "group.id": "claimcheck-doctor",  # the client requires one; it is never joined
    "enable.auto.commit": False,
    "enable.partition.eof": True,  # sent where only the markers of transactions are left
    "isolation.level": "read_uncommitted",
    "queued.max.messages.kbytes": 1024,
}
_FIXES = {
    "kafka-pointer-rejected": "Give readers and writers the same stores, prefixes and signing keys.",
    "kafka-payload-missing": "Check that this is the writers' store (address, database, bucket), and evicts nothing.",
}
_quiet = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GroupReader:
    """Looks at the groups that have committed offsets of one topic."""

    cc: ClaimCheck
    admin: Any
    settings: Mapping[str, object] = field(repr=False)
    topic: str
    partitions: Sequence[int]
    expected: Expectation
    clock: Callable[[], float]

    def findings(self, groups: tuple[str, ...]) -> Iterator[Finding]:
        """Yield the findings about groups; an empty tuple stands for all."""
        committed = groups_of(self.admin, self.topic, groups)
        for name in groups:
            if name not in committed:
                message = f"group {name} has committed no offsets for this topic"
                yield finding("warning", "kafka-group-unknown", self.expected.path, message, "Check its name.")
        for name, offsets in committed.items():
            yield from examined("kafka", self.expected.path, f"group {name}", partial(self._group, name, offsets))

    def _group(self, group: str, offsets: dict[int, int]) -> Iterator[Finding]:
        earliest, latest = self._watermarks("earliest"), self._watermarks("latest")
        lost = sum(max(0, earliest[partition] - offset) for partition, offset in offsets.items())
        if lost:
            message = f"retention deleted up to {lost:,} messages that group {group} had not read"
            fix = "Raise retention.ms, or start more consumers."
            yield finding("warning", "kafka-group-lost", self.expected.path, message, fix)
        unread = {each: max(offsets.get(each, 0), earliest[each]) for each in self.partitions}  # 0: none committed
        unread = {partition: offset for partition, offset in unread.items() if offset < latest[partition]}
        found = self._first_pointers(unread) if unread and self.expected.store is not None else []
        yield from self._unreadable(group, found)
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

    def _unreadable(self, group: str, found: Sequence[tuple[Any, Pointer]]) -> Iterator[Finding]:
        """Yield what readers with this configuration could not read: writers may have another one."""
        problems = [problem for message, pointer in found if (problem := self._problem(message, pointer)) is not None]
        for kind, fix in _FIXES.items():
            texts = [text for each, text in problems if each == kind]
            if texts:
                what = f"{len(texts)} of {len(found)} unread pointers of group {group} that were looked at"
                yield finding("error", kind, self.expected.path, f"{what} cannot be read here: {texts[0]}", fix)

    def _problem(self, message: Any, pointer: Pointer) -> tuple[str, str] | None:
        """Return why a message cannot be read, unless its payload has expired or its store does not answer."""
        try:
            accepted = self.cc._messages.pointer(message.value(), self.topic)
            store = self.cc._messages.store_of(pointer if accepted is None else accepted)
            if pointer.size is not None and pointer.size > _READ_BYTES:
                store.read_range(pointer, 0, 1)
            elif pointer.size is not None:
                store.read(pointer)
        except PayloadNotFoundError as error:
            if pointer.expires_ms is None or pointer.expires_ms / _MS > self.clock():
                return "kafka-payload-missing", str(error)
        except ClaimCheckError as error:
            if not error.retryable:
                return "kafka-pointer-rejected", str(error)
        return None

    def _pointer(self, message: Any) -> Pointer | None:
        """Return the pointer of a message, also of an untrusted one."""
        with suppress(ClaimCheckError):  # a consumer reports it
            envelope = decode(message.value() or b"", header=self.cc.config.header)
            if isinstance(envelope, PointerData):
                return pointers.decode(envelope.data)
        return None

    def _watermarks(self, which: str) -> dict[int, int]:
        found = log_offsets(self.admin, [(self.topic, partition) for partition in self.partitions], which)
        return {partition: offset for (_, partition), offset in found.items()}

    def _first_pointers(self, offsets: dict[int, int]) -> list[tuple[Any, Pointer]]:
        """Return the first message with a pointer from each offset on, if it is among the next few."""
        vendor = _vendor()
        left, found = dict.fromkeys(offsets, _MESSAGES), list[tuple[Any, Pointer]]()
        with closing(vendor.Consumer({**self.settings, **_OWN}, logger=_quiet)) as consumer:
            consumer.assign([vendor.TopicPartition(self.topic, *place) for place in offsets.items()])
            deadline = time.monotonic() + _SECONDS
            while left and time.monotonic() < deadline:
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
