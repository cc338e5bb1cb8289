"""Received messages with the whole payload, ids of payloads in several messages, and what to acknowledge. No I/O."""

from __future__ import annotations

import functools
import struct
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from claimcheck._receive.resolver import Outcome
from claimcheck._wire import headers as hints
from claimcheck.errors import ClaimCheckError, IncompletePayloadError, TransportError
from claimcheck.transports._common.delegation import Delegated
from claimcheck.transports._common.received import StoredPayload
from claimcheck.transports.pulsar._queries import vendor

if TYPE_CHECKING:
    import pulsar

    AnyMessage: TypeAlias = "PulsarMessage | WholeMessageId | pulsar.Message | AnyMessageId"
    """A message or an id, native or of a whole payload."""

_MARK = b"\x00claimcheck-id\x01"  # no protobuf message begins with a zero
_ID = struct.Struct(">iqqi")
_MOST_HANDLES = 100_000

Position = tuple[int, int, int]

Place = tuple[Hashable, Position]
"""A topic, and the position of a message in it; for a payload, of its first message."""


class AnyMessageId(Protocol):
    """The methods that a native message id and a `WholeMessageId` share."""

    def partition(self) -> int: ...
    def ledger_id(self) -> int: ...
    def entry_id(self) -> int: ...
    def batch_index(self) -> int: ...
    def serialize(self) -> bytes: ...


@functools.total_ordering
class WholeMessageId(Delegated):
    """The id of one payload: the ids of all its messages. The wrappers accept it wherever they take an id.

    Pulsar's own id of a chunked message contains only two of them. Acknowledged in another process, it would leave the
    other messages unacknowledged. The methods of a native id return those of the last message.

    On the left of a comparison with a native id it compares by its last message; native ids on the left raise.

    Attributes:
        ids: The native ids of all its messages, lowest first; at least one.
        topic: Their topic.
    """

    delegated = frozenset({"batch_index", "entry_id", "ledger_id", "partition"})

    def __init__(self, ids: tuple[pulsar.MessageId, ...], topic: str) -> None:
        self.ids = tuple(sorted(ids, key=position_of))
        self.topic = topic

    @classmethod
    def of_sent(cls, ids: list[pulsar.MessageId], topic: str) -> WholeMessageId:
        """Create it from the ids that a send returned, which contain the partition's number but not its name."""
        partition = ids[0].partition()
        source = topic if partition < 0 or "-partition-" in topic else f"{topic}-partition-{partition}"
        return cls(tuple(_native(source, *_fields(sent)) for sent in ids), source)

    @property
    def first(self) -> pulsar.MessageId:
        """The native id of its first message, where a reader has to begin."""
        return self.ids[0]

    @property
    def last(self) -> pulsar.MessageId:
        """The native id of its last message."""
        return self.ids[-1]

    def _delegate(self) -> pulsar.MessageId:
        return self.last

    def serialize(self) -> bytes:
        """Return bytes for `deserialize`, in this or another process."""
        topic = self.topic.encode()
        parts = [_ID.pack(*_fields(native)) for native in self.ids]
        return b"".join([_MARK, struct.pack(">H", len(topic)), topic, *parts])

    @staticmethod
    def deserialize(data: bytes) -> WholeMessageId:
        """Create an id from what `serialize` returned.

        Raises:
            TransportError: These bytes are not from `serialize`.
        """
        try:
            (length,) = struct.unpack_from(">H", data, len(_MARK))
            start = len(_MARK) + 2 + length
            topic = data[len(_MARK) + 2 : start].decode()
            ids = tuple(_native(topic, *fields) for fields in _ID.iter_unpack(data[start:]))
        except (struct.error, UnicodeDecodeError):
            ids, topic = (), ""
        if not ids or not data.startswith(_MARK):
            raise TransportError("not a serialized WholeMessageId")
        return WholeMessageId(ids, topic)

    def __eq__(self, other: Any) -> bool:
        if isinstance(other, WholeMessageId):
            return list(map(position_of, self.ids)) == list(map(position_of, other.ids))
        return hasattr(other, "ledger_id") and len(self.ids) == 1 and position_of(self.last) == position_of(other)

    def __lt__(self, other: AnyMessageId) -> bool:
        return position_of(self) < position_of(other) if hasattr(other, "ledger_id") else NotImplemented

    def __hash__(self) -> int:
        return hash((self.topic, *map(position_of, self.ids)))

    def __str__(self) -> str:
        return f"{self.first}..{self.last}" if len(self.ids) > 1 else str(self.first)

    def __repr__(self) -> str:
        return f"<WholeMessageId {self}, {len(self.ids)} messages of {self.topic}>"

    def __reduce__(self) -> tuple[object, ...]:
        return WholeMessageId.deserialize, (self.serialize(),)


def deserialize(data: bytes, topic: str | None = None) -> pulsar.MessageId | WholeMessageId:
    """Create an id, native or of a whole payload, from what its ``serialize`` returned.

    Args:
        data: The bytes.
        topic: For a native id: the partition's topic, without which a consumer of several cannot acknowledge it.
    """
    if data.startswith(_MARK):
        return WholeMessageId.deserialize(data)
    return vendor().MessageId.deserialize(data, topic=topic)


def id_of(message: AnyMessage) -> Any:
    """Return the id of a message; an id unchanged."""
    read = getattr(message, "message_id", None)
    return read() if callable(read) else message


def natives(message_id: AnyMessageId) -> tuple[pulsar.MessageId, ...]:
    return message_id.ids if isinstance(message_id, WholeMessageId) else (message_id,)


def position_of(message_id: AnyMessageId) -> Position:
    """Return the position within a topic; a whole entry comes after each message of its batch."""
    batch_index = message_id.batch_index()
    return message_id.ledger_id(), message_id.entry_id(), batch_index if batch_index >= 0 else 1 << 31


def before(position: Position, partition: int, topic: str) -> pulsar.MessageId | None:
    """Return the id of the entry before a position; ``None`` if that is in another, unknown ledger."""
    ledger, entry, _ = position
    return _native(topic, partition, ledger, entry - 1, -1) if entry > 0 else None


def nowhere(topic: str = "") -> pulsar.MessageId:
    """Return an id that is before all messages of a topic, as the client passes it to callbacks of failed sends."""
    return _native(topic, -1, -1, -1, -1)


def _fields(message_id: AnyMessageId) -> tuple[int, int, int, int]:
    return message_id.partition(), message_id.ledger_id(), message_id.entry_id(), message_id.batch_index()


def _native(topic: str, partition: int, ledger: int, entry: int, batch_index: int) -> pulsar.MessageId:
    native = vendor().MessageId(partition, ledger, entry, batch_index)
    return vendor().MessageId.deserialize(native.serialize(), topic=topic)


_METADATA = frozenset(
    {
        "event_timestamp", "message_id", "ordering_key", "producer_name", "publish_timestamp", "redelivery_count",
        "schema_version", "topic_name",
    }
)  # fmt: skip


class MessageMetadata:
    """Methods of a native message, kept without the message so that its data can be freed."""

    __slots__ = ("_values", "native")

    def __init__(self, native: pulsar.Message, *, keep: bool = False) -> None:
        self._values = {name: getattr(native, name)() for name in _METADATA}
        self._values["int_schema_version"] = _int_schema_version(native)
        self.native = native if keep else None

    def __getattr__(self, name: str) -> Callable[[], Any]:
        if name not in self._values:
            raise AttributeError(name)
        return functools.partial(self._values.__getitem__, name)


def _int_schema_version(native: pulsar.Message) -> int:
    return int(getattr(native._message, "int_schema_version", int)())


class PulsarMessage(Delegated):
    """One received payload. Its methods are those of `pulsar.Message`; for chunks, keys and times are the first one's.

    `data` and `value` raise the error of *this* payload, so that the receiver can acknowledge it, negatively
    acknowledge it or dead-letter it. Other messages are not affected.

    Attributes:
        native: The native message; for chunks, the metadata of the first.
        outcome: Of a payload in chunks; ``None`` for any other.
    """

    delegated = _METADATA

    __slots__ = ("_content", "_schema", "native", "outcome")

    def __init__(
        self,
        native: pulsar.Message | MessageMetadata,
        schema: pulsar.schema.Schema,
        content: bytes | StoredPayload | ClaimCheckError,
        outcome: Outcome | None = None,
    ) -> None:
        self.native: Any = native
        self._schema = schema
        self._content = content
        self.outcome = outcome

    def _delegate(self) -> Any:
        return self.native

    def data(self) -> bytes:
        """Return the payload, whole and verified. A stored or encoded payload is read or decoded by the first call.

        After a ``retryable`` error another call reads again, but not on an event loop, which it would block. Call
        ``await asyncio.to_thread(message.data)`` there.

        Raises:
            ClaimCheckError: There is no payload; the error has the reason, and a later call may return it if
                ``error.retryable``. The message still has to be acknowledged, or negatively acknowledged.
        """
        content = self._content
        if isinstance(content, ClaimCheckError):
            raise content
        return content.get() if isinstance(content, StoredPayload) else content

    def value(self) -> Any:
        """Return the payload, decoded by the consumer's schema. Raises the errors of `data` and of the schema."""
        return self.native.value() if self.has_null_value() else self._schema.decode_message(self)

    @property
    def error(self) -> ClaimCheckError | None:
        """The error that `data` raises, or ``None``. Reads a stored payload."""
        try:
            self.data()
        except ClaimCheckError as error:
            return error
        return None

    def message_id(self) -> pulsar.MessageId | WholeMessageId:
        """The native id; a `WholeMessageId` for chunks."""
        if self.outcome is None:
            return self.native.message_id()
        return WholeMessageId(tuple(handle.message_id() for handle in self.outcome.handles), self.topic_name())

    def properties(self) -> dict[str, str]:
        """The sender's properties, without the ``claimcheck-`` headers."""
        return dict(hints.strip(self.native.properties()) if self.outcome is None else self.outcome.headers)

    def partition_key(self) -> str:
        """The sender's key, empty without one."""
        return str(self.native.partition_key() if self.outcome is None else self.outcome.key or "")

    def redelivery_count(self) -> int:
        """How often it was redelivered, by the broker's count; for chunks, the highest."""
        handles = (self.native,) if self.outcome is None else self.outcome.handles
        return max(int(handle.redelivery_count()) for handle in handles)

    def int_schema_version(self) -> int:
        """The schema version as a number, for schemas that decode this message."""
        return _int_schema_version(self.native) if self.outcome is None else self.native.int_schema_version()

    def has_null_value(self) -> bool:
        """Whether it is a tombstone."""
        return self.outcome is None and bool(self.native.has_null_value())

    def encryption_context(self) -> pulsar.EncryptionContext | None:
        """The native message's encryption context; ``None`` for chunks."""
        return None if self.outcome is not None else self.native.encryption_context()

    @property
    def is_incomplete(self) -> bool:
        """Whether its messages did not complete a payload and are not redelivered again."""
        return self.outcome is not None and isinstance(self._content, IncompletePayloadError)

    @property
    def stored(self) -> StoredPayload | None:
        """Its payload, if that is stored or encoded."""
        return self._content if isinstance(self._content, StoredPayload) else None

    @property
    def held_bytes(self) -> int:
        """Bytes of its payload, in memory now or once it is read."""
        content = self._content
        return len(content) if isinstance(content, bytes) else content.size if isinstance(content, StoredPayload) else 0

    @property
    def natives(self) -> tuple[pulsar.Message, ...]:
        """The native messages, for a dead-letter topic; ``None`` for chunks that were not kept."""
        return (self.native,) if self.outcome is None else tuple(handle.native for handle in self.outcome.handles)

    def __repr__(self) -> str:
        state = f"failed: {type(self._content).__name__}" if isinstance(self._content, Exception) else "received"
        return f"<PulsarMessage {self.message_id()} of {self.topic_name()}, {state}>"


# Cumulative acknowledgement -------------------------------------------------------------------------------------------


class AckPlan(NamedTuple):
    """What to acknowledge: cumulatively all before a position, or up to the target, and messages after it."""

    before: Any | None
    individually: tuple[pulsar.MessageId, ...]


class CumulativeAcks(OrderedDict[Any, "pulsar.MessageId"]):
    """The messages of one topic that are their own payloads, while a payload in chunks is not settled. Not thread-safe.

    "Everything up to here" may include messages of payloads that are incomplete or not settled. The lowest of those is
    the *hole*: everything before it is acknowledged cumulatively, and the messages after it individually.
    """

    def received(self, position: Any, handle: pulsar.MessageId) -> None:
        """Remember a message that is a payload of its own (plain, a pointer, or unreadable)."""
        self[position] = handle
        if len(self) > _MOST_HANDLES:
            self.popitem(last=False)

    def up_to(self, target: Any, *, hole: Any | None, settled: Iterable[tuple[Any, pulsar.MessageId]] = ()) -> AckPlan:
        """Return the plan for acknowledging everything up to a message, and forget what it covers."""
        before = hole if hole is not None and hole <= target else None
        behind = dict(settled) | {position: self.pop(position) for position in list(self) if position <= target}
        covered = target if before is None else before
        return AckPlan(before, tuple(behind[position] for position in sorted(behind) if position > covered))
