"""What a source wants of the embedded broker's file: where partitions end, what messages weigh, the messages."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any

from claimcheck._validation import fail
from claimcheck.spark.sources._admission_control import Entry, Scale
from claimcheck.transports.local import LocalBroker
from claimcheck.transports.local._messages import LocalMessage

__all__ = ["ends", "existing", "firsts", "messages", "weights"]

_PAGE_BYTES = 8 << 20
_PAGE_ROWS = 1000
_FIRST_PAGE_ROWS = 16
_FIRST = "SELECT timestamp FROM messages WHERE topic = ? AND partition = ? AND offset = 0"
_WEIGHTS = """SELECT offset, length(value), substr(value, 1, ?) FROM messages
    WHERE topic = ? AND partition = ? AND offset >= ? AND offset < ? ORDER BY offset LIMIT ?"""


def existing(path: str) -> str:
    """Give the whole path of a broker's file, which has to be there: a broker would make a new one.

    Raises:
        ConfigError: It is not.
    """
    whole = os.path.abspath(path)
    if not os.path.isfile(whole):
        fail("path", found=f"{whole!r}, which is no file", expected="the file of an embedded broker")
    return whole


def ends(broker: LocalBroker, topic: str) -> dict[int, int]:
    """Give the offset of each partition's next message.

    Raises:
        UnknownTopicError: Nobody has created the topic.
    """
    return {partition: broker.end_offset(topic, partition) for partition in range(broker.partitions(topic))}


def firsts(broker: LocalBroker, topic: str, partitions: Iterable[int]) -> dict[int, int]:
    """Give the time of each partition's first message in microseconds since 1970, which tells one file from another."""
    with broker.database.read() as connection:
        rows = {partition: connection.execute(_FIRST, (topic, partition)).fetchone() for partition in partitions}
    return {partition: round(row[0] * 1_000_000) for partition, row in rows.items() if row}


def weights(broker: LocalBroker, topic: str, partition: int, start: int, end: int, scale: Scale) -> Iterator[Entry]:
    """Weigh the messages of a stretch in order, without reading more of them than that takes."""
    while start < end:
        with broker.database.read() as connection:
            place: tuple[Any, ...] = (scale.head_bytes, topic, partition, start, end, _PAGE_ROWS)
            rows = connection.execute(_WEIGHTS, place).fetchall()
        if not rows:
            return
        for offset, size, head in rows:
            yield Entry(offset + 1, 1, scale.weigh(head, size or 0))
        start = rows[-1][0] + 1


def messages(broker: LocalBroker, topic: str, partition: int, start: int, end: int) -> Iterator[list[LocalMessage]]:
    """Read a stretch in pages of some megabytes."""
    limit = _FIRST_PAGE_ROWS
    while start < end:
        page = broker.fetch(topic, partition, start, min(limit, end - start))
        if not page:
            return
        yield page
        start = page[-1].offset + 1
        held = sum(len(message.value or b"") for message in page)
        limit = max(1, min(_PAGE_ROWS, _PAGE_BYTES * len(page) // max(1, held)))
