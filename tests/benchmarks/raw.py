"""What the network itself can do: the same bytes through a bare socket, and through the standard library's HTTP."""

from __future__ import annotations

import http.client
import io
import socket
from urllib.parse import urlsplit

from tests.benchmarks.sink import REQUEST, fill


class RawSocket:
    """A client of sink.py."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def write(self, payload: bytes, *, fresh: bool = False) -> None:
        """Send a payload and wait until it was received, into fresh memory or into a warm buffer."""
        self._socket.sendall(REQUEST.pack(b"F" if fresh else b"W", len(payload)))
        self._socket.sendall(payload)
        self._socket.recv(1)

    def read_into(self, room: memoryview) -> None:
        """Receive a payload into memory that is there."""
        self._socket.sendall(REQUEST.pack(b"R", len(room)))
        fill(self._socket, room)

    def read(self, size: int) -> bytes:
        """Receive a payload as new bytes, without a copy: nobody touches the memory before the bytes come."""
        box = io.BytesIO(bytes(size))
        with box.getbuffer() as room:
            self.read_into(room)
        return box.getvalue()

    def close(self) -> None:
        """Hang up."""
        self._socket.close()


class RawHttp:
    """Puts and gets one object by the standard library, over one connection that stays open."""

    def __init__(self, url: str, path: str) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(url).netloc)
        self._path = path

    def put(self, payload: bytes) -> None:
        """Put it and wait for the answer."""
        self._connection.request("PUT", self._path, body=payload)
        self._answer().read()

    def get_into(self, room: memoryview) -> None:
        """Get it into memory that is there."""
        self._connection.request("GET", self._path)
        answer = self._answer()
        while len(room) and (count := answer.readinto(room)):
            room = room[count:]
        answer.read()

    def close(self) -> None:
        """Hang up."""
        self._connection.close()

    def _answer(self) -> http.client.HTTPResponse:
        answer = self._connection.getresponse()
        if answer.status >= 300:
            raise OSError(f"{self._path}: HTTP status {answer.status}")
        return answer
