"""The size of a topic in the brokers' log directories: Kafka's DescribeLogDirs, which confluent-kafka does not offer.

Only for listeners without TLS and SASL. The format is that of version 1, which every Kafka since 2.0 understands.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable, Iterator

_DESCRIBE_LOG_DIRS, _VERSION, _CORRELATION_ID = 35, 1, 1
_CLIENT_ID = b"claimcheck"
_MAX_RESPONSE_BYTES = 16 << 20
_SECONDS = 10.0


class LogDirsError(Exception):
    """The broker did not answer, or refused the request."""


def partition_bytes(host: str, port: int, topic: str, partitions: Iterable[int]) -> dict[int, int]:
    """Return the bytes of each of these partitions that this broker stores, by partition.

    Raises:
        LogDirsError: The broker did not answer, or refused the request; nothing is known.
    """
    request = _request(topic, list(partitions))
    try:
        with socket.create_connection((host, port), timeout=_SECONDS) as connection:
            connection.sendall(struct.pack(">i", len(request)) + request)
            (size,) = struct.unpack(">i", _read(connection, 4))
            if not 0 < size <= _MAX_RESPONSE_BYTES:
                raise LogDirsError(f"a response of {size} bytes")
            return dict(_sizes(_Response(_read(connection, size)), topic))
    except (OSError, struct.error, IndexError) as error:
        raise LogDirsError(f"no valid response: {type(error).__name__}") from error


def _request(topic: str, partitions: list[int]) -> bytes:
    header = struct.pack(">hhi", _DESCRIBE_LOG_DIRS, _VERSION, _CORRELATION_ID) + _string(_CLIENT_ID)
    wanted = struct.pack(f">i{len(partitions)}i", len(partitions), *partitions)
    return header + struct.pack(">i", 1) + _string(topic.encode()) + wanted


def _string(text: bytes) -> bytes:
    return struct.pack(">h", len(text)) + text


def _read(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            raise LogDirsError("the broker closed the connection")
        data += piece
    return bytes(data)


def _sizes(response: _Response, topic: str) -> Iterator[tuple[int, int]]:
    """Iterate over partitions and sizes; replicas that are being moved to another directory are left out."""
    response.take(">ii")  # correlation id, throttle time
    directories = response.count()
    if not directories:
        raise LogDirsError("not permitted, or no log directory")
    for _ in range(directories):
        (code,) = response.take(">h")
        response.string()
        for _ in range(response.count()):
            name = response.string()
            for _ in range(response.count()):
                partition, size, _, is_future = response.take(">iqq?")
                if name == topic.encode() and not is_future and not code:
                    yield partition, size


class _Response:
    """Reads a response from its beginning."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def take(self, form: str) -> tuple[int, ...]:
        values = struct.unpack_from(form, self._data, self._at)
        self._at += struct.calcsize(form)
        return values

    def count(self) -> int:
        return self.take(">i")[0]

    def string(self) -> bytes:
        (length,) = self.take(">h")
        self._at += length
        return self._data[self._at - length : self._at]
