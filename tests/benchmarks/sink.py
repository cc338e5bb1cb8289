"""What the network itself can do: the same bytes through a bare socket, and through the standard library's HTTP.

    python sink.py            the other end of the socket: prints its port, and runs until its standard input ends

A request is one letter and a length of 8 bytes: ``W`` takes so many bytes into one warm buffer and answers a byte,
``F`` takes them into memory that nobody has touched yet, as a store must, and ``R`` gives so many.
"""

from __future__ import annotations

import http.client
import io
import socket
import struct
import sys
import threading
from urllib.parse import urlsplit

_PIECE = 1 << 20
_REQUEST = struct.Struct("<cQ")


class RawSocket:
    """A client of this program."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.close = self._socket.close

    def write(self, payload: bytes, *, fresh: bool = False) -> None:
        """Send a payload and wait until it was received, into fresh memory or into a warm buffer."""
        self._socket.sendall(_REQUEST.pack(b"F" if fresh else b"W", len(payload)))
        self._socket.sendall(payload)
        self._socket.recv(1)

    def read_into(self, room: memoryview) -> None:
        self._socket.sendall(_REQUEST.pack(b"R", len(room)))
        _fill(self._socket, room)

    def read(self, size: int) -> bytes:
        """Receive a payload as new bytes, without a copy: nobody touches the memory before the bytes come."""
        box = io.BytesIO(bytes(size))
        with box.getbuffer() as room:
            self.read_into(room)
        return box.getvalue()


class RawHttp:
    """Puts and gets one object by the standard library, over one connection that stays open."""

    def __init__(self, url: str, path: str) -> None:
        self._connection, self._path = http.client.HTTPConnection(urlsplit(url).netloc), path
        self.close = self._connection.close

    def put(self, payload: bytes) -> None:
        self._answer("PUT", payload).read()

    def get_into(self, room: memoryview) -> None:
        answer = self._answer("GET")
        while len(room) and (count := answer.readinto(room)):
            room = room[count:]
        answer.read()

    def _answer(self, method: str, body: bytes | None = None) -> http.client.HTTPResponse:
        self._connection.request(method, self._path, body=body)
        answer = self._connection.getresponse()
        if answer.status >= 300:
            raise OSError(f"{self._path}: HTTP status {answer.status}")
        return answer


def _receive(connection: socket.socket, room: memoryview) -> int:
    count = connection.recv_into(room)
    if not count:
        raise ConnectionError("the other end hung up")
    return count


def _fill(connection: socket.socket, room: memoryview) -> None:
    while len(room):
        room = room[_receive(connection, room) :]


def _serve(connection: socket.socket, given: memoryview) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    warm = memoryview(bytearray(_PIECE))
    while request := connection.recv(_REQUEST.size, socket.MSG_WAITALL):
        letter, size = _REQUEST.unpack(request)
        if letter == b"R":
            for begin in range(0, size, len(given)):
                connection.sendall(given[: size - begin])
            continue
        if letter == b"F":
            with io.BytesIO(bytes(size)).getbuffer() as untouched:  # zero pages, until the bytes come
                _fill(connection, untouched)
        else:
            while size:
                size -= _receive(connection, warm[:size])
        connection.sendall(b"k")


def _listen(listener: socket.socket) -> None:
    given = memoryview(b"x" * (64 << 20))  # larger than the caches, as payloads are
    while True:
        threading.Thread(target=_serve, args=(listener.accept()[0], given), daemon=True).start()


if __name__ == "__main__":
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=_listen, args=(server,), daemon=True).start()
        print(server.getsockname()[1], flush=True)
        sys.stdin.buffer.read()
