"""The id of a payload that was sent as several messages: the ids of all of them, as one value.

Pulsar's own id of a chunked message contains only two of them; acknowledged in another process, it would leave the
other messages unacknowledged.
"""

from __future__ import annotations

import functools
import struct
from typing import Any

from claimcheck.errors import TransportError
from claimcheck.transports.pulsar._errors import vendor

__all__ = ["Place", "Position", "WholeMessageId", "before", "deserialize", "id_of", "natives", "nowhere", "position_of"]

_MARK = b"\x00claimcheck-id\x01"  # no protobuf message begins with a zero
_ID = struct.Struct(">iqqi")

Position = tuple[int, int, int]

Place = tuple[Any, Position]
"""A topic, and the position of a message in it; for a payload, of its first message."""


@functools.total_ordering
class WholeMessageId:
    """The id of one payload; the wrappers accept it wherever they take an id.

    On the left of a comparison it compares with native ids, too, by its last message; native ids on the left raise.

    Attributes:
        ids: The native ids of all its messages, lowest first; at least one.
        topic: Their topic.
    """

    def __init__(self, ids: tuple[Any, ...], topic: str) -> None:
        self.ids = tuple(sorted(ids, key=position_of))
        self.topic = topic

    @classmethod
    def of_sent(cls, ids: tuple[Any, ...], topic: str) -> WholeMessageId:
        """Make it from the ids that a send returned, which contain the partition's number but not its name."""
        partition = ids[0].partition()
        where = topic if partition < 0 or "-partition-" in topic else f"{topic}-partition-{partition}"
        return cls(tuple(_native(where, i.partition(), *_place(i)) for i in ids), where)

    @property
    def first(self) -> Any:
        """The native id of its first message, where a reader has to begin."""
        return self.ids[0]

    @property
    def last(self) -> Any:
        """The native id of its last message."""
        return self.ids[-1]

    def ledger_id(self) -> int:
        """The last message's."""
        return int(self.last.ledger_id())

    def entry_id(self) -> int:
        """The last message's."""
        return int(self.last.entry_id())

    def batch_index(self) -> int:
        """The last message's."""
        return int(self.last.batch_index())

    def partition(self) -> int:
        """The topic's partition, -1 if it has none."""
        return int(self.last.partition())

    def serialize(self) -> bytes:
        """Return bytes for `deserialize`, in this or another process."""
        topic = self.topic.encode()
        parts = [_ID.pack(i.partition(), i.ledger_id(), i.entry_id(), i.batch_index()) for i in self.ids]
        return b"".join([_MARK, struct.pack(">H", len(topic)), topic, *parts])

    @staticmethod
    def deserialize(data: bytes) -> WholeMessageId:
        """Make an id from what `serialize` returned.

        Raises:
            TransportError: These bytes are not from `serialize`.
        """
        try:
            (length,) = struct.unpack_from(">H", data, len(_MARK))
            start = len(_MARK) + 2 + length
            topic = data[len(_MARK) + 2 : start].decode()
            ids = tuple(_native(topic, *parts) for parts in _ID.iter_unpack(data[start:]))
        except (struct.error, UnicodeDecodeError) as error:
            raise TransportError("these bytes are no id of a whole payload") from error
        if not ids or not data.startswith(_MARK):
            raise TransportError("these bytes are no id of a whole payload")
        return WholeMessageId(ids, topic)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, WholeMessageId):
            return list(map(position_of, self.ids)) == list(map(position_of, other.ids))
        return hasattr(other, "ledger_id") and len(self.ids) == 1 and position_of(self.last) == position_of(other)

    def __lt__(self, other: Any) -> bool:
        if not hasattr(other, "ledger_id"):
            return NotImplemented
        return position_of(self) < position_of(other)

    def __hash__(self) -> int:
        return hash((self.topic, *map(position_of, self.ids)))

    def __str__(self) -> str:
        return f"{self.first}..{self.last}" if len(self.ids) > 1 else str(self.first)

    def __repr__(self) -> str:
        return f"<WholeMessageId {self}, {len(self.ids)} messages of {self.topic}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return WholeMessageId.deserialize, (self.serialize(),)


def deserialize(data: bytes, topic: str | None = None) -> Any:
    """Make an id, native or of a whole payload, from what its ``serialize`` returned.

    Args:
        data: The bytes.
        topic: For a native id: the partition's topic, without which a consumer of several cannot acknowledge it.
    """
    if data.startswith(_MARK):
        return WholeMessageId.deserialize(data)
    return vendor().MessageId.deserialize(data, topic=topic)


def id_of(message: Any) -> Any:
    """Return the id of a message; an id unchanged."""
    return message.message_id() if callable(getattr(message, "message_id", None)) else message


def natives(message_id: Any) -> tuple[Any, ...]:
    """Return all native ids that an id stands for."""
    return message_id.ids if isinstance(message_id, WholeMessageId) else (message_id,)


def position_of(message_id: Any) -> Position:
    """Return the position within a topic; a whole entry comes after each message of its batch."""
    batch_index = message_id.batch_index()
    return message_id.ledger_id(), message_id.entry_id(), batch_index if batch_index >= 0 else 1 << 31


def before(position: Position, partition: int, topic: str) -> Any | None:
    """Return the id of the entry before a position; ``None`` if that is in another, unknown ledger."""
    ledger, entry, _ = position
    return _native(topic, partition, ledger, entry - 1, -1) if entry > 0 else None


def nowhere(topic: str) -> Any:
    """Return an id that is before all messages of a topic."""
    return _native(topic, -1, -1, -1, -1)


def _place(message_id: Any) -> Position:
    return message_id.ledger_id(), message_id.entry_id(), message_id.batch_index()


def _native(topic: str, partition: int, ledger: int, entry: int, batch_index: int) -> Any:
    made = vendor().MessageId(partition, ledger, entry, batch_index)
    return vendor().MessageId.deserialize(made.serialize(), topic=topic)
