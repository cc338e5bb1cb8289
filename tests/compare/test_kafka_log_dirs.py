"""Requests for the log directories, answered by a socket; test_kafka.py has the ones to a real broker."""

import contextlib
import socket
import struct
import threading

import pytest

from tests.benchmarks.compare.kafka_log_dirs import LogDirsError, partition_bytes


@contextlib.contextmanager
def answering(response):
    """Accept one connection, read the request, send these bytes and close; yields the port and the request."""
    requests = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            connection, _ = listener.accept()
            with connection:
                requests.append(connection.recv(1000))
                connection.sendall(response)

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1], requests
        thread.join()


def text(name):
    return struct.pack(">h", len(name)) + name.encode()


def directory(*partitions, topic="t", code=0):
    """One log directory: each partition is its number, size, and whether the replica is being moved there."""
    entries = b"".join(struct.pack(">iqq?", number, size, 0, future) for number, size, future in partitions)
    return (
        struct.pack(">h", code)
        + text("/data")
        + struct.pack(">i", 1)
        + text(topic)
        + struct.pack(">i", len(partitions))
        + entries
    )


def framed(*directories):
    body = struct.pack(">iii", 1, 0, len(directories)) + b"".join(directories)
    return struct.pack(">i", len(body)) + body


def test_sizes_of_all_directories():
    response = framed(
        directory((0, 100, False), (2, 7, True)),
        directory((1, 200, False), (2, 300, False)),
        directory((0, 9, False), topic="other"),
        directory((1, 9, False), code=56),
    )
    with answering(response) as (port, requests):
        assert partition_bytes("127.0.0.1", port, "t", [0, 1, 2]) == {0: 100, 1: 200, 2: 300}
    (request,) = requests
    assert struct.unpack_from(">ihh", request) == (len(request) - 4, 35, 1)
    assert request.endswith(text("t") + struct.pack(">iiii", 3, 0, 1, 2))


@pytest.mark.parametrize(
    "response",
    [
        b"",
        framed(),  # not permitted
        framed(directory((0, 1, False)))[:-3],
        struct.pack(">i", 2**31 - 1),
        struct.pack(">i", -5),
        struct.pack(">i", 12) + struct.pack(">iii", 1, 0, 2**31 - 1),
        framed(struct.pack(">hhi", 0, 2**15 - 1, 1)),
    ],
)
def test_a_response_that_is_none(response):
    with answering(response) as (port, _), pytest.raises(LogDirsError):
        partition_bytes("127.0.0.1", port, "t", [0])


def test_nothing_listens():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(LogDirsError, match="ConnectionRefusedError"):
        partition_bytes("127.0.0.1", port, "t", [0])
