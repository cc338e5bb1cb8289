"""What the network itself can do: the same bytes through a bare socket, and through the standard library's HTTP.

    python sink.py            the other end of the socket: prints its port, and runs until its standard input ends
    python sink.py s3         as much of an S3 server as clients need, which keeps nothing but sizes

A request on the socket is one letter and a length of 8 bytes: ``W`` takes so many bytes into one warm buffer and
answers a byte, ``F`` takes them into memory that nobody has touched yet, as a store must, and ``R`` gives so many.
The S3 server throws bodies away, and a get returns as many ``x``: it shows what the client costs.
"""

from __future__ import annotations

import http.client
import io
import socket
import struct
import sys
import threading
from collections.abc import Callable
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


# The servers -----------------------------------------------------------------------------------------------------


def _serve(connection: socket.socket, given: memoryview) -> None:
    warm = memoryview(bytearray(_PIECE))
    while request := connection.recv(_REQUEST.size, socket.MSG_WAITALL):
        letter, size = _REQUEST.unpack(request)
        if letter == b"R":
            _give(connection, given, size)
            continue
        if letter == b"F":
            with io.BytesIO(bytes(size)).getbuffer() as untouched:  # zero pages, until the bytes come
                _fill(connection, untouched)
        else:
            while size:
                size -= _receive(connection, warm[:size])
        connection.sendall(b"k")


def _give(connection: socket.socket, given: memoryview, size: int) -> None:
    for begin in range(0, size, len(given)):
        connection.sendall(given[: size - begin])


_sizes: dict[bytes, int] = {}
_parts: dict[bytes, list[int]] = {}
_DESCRIBED = b'ETag: "e"\r\nLast-Modified: Wed, 01 Jan 2025 00:00:00 GMT\r\nAccept-Ranges: bytes\r\n'
_XML = b'<?xml version="1.0"?><%s><Bucket>b</Bucket><Key>k</Key><UploadId>u</UploadId><ETag>"e-1"</ETag></%s>'


def _serve_s3(connection: socket.socket, given: memoryview) -> None:
    """Answer requests; no signature is looked at, and a checksum behind a body is confirmed unseen."""
    warm = memoryview(bytearray(_PIECE))
    with connection.makefile("rb") as requests:
        while words := requests.readline().split():
            method, (path, _, query) = words[0], words[1].partition(b"?")
            headers = _headers(requests)
            if b"expect" in headers:
                connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
            length = int(headers.get(b"content-length", 0))
            trailer = 12 if b"x-amz-trailer" in headers else 0  # the text of a checksum, and an empty line
            left = length - trailer
            while left:
                left -= requests.readinto(warm[:left]) or left
            confirmed = b"x-amz-checksum-crc32: %s\r\n" % requests.read(trailer)[:8] if trailer else b""
            if method in (b"GET", b"HEAD"):
                _give_object(connection, given, path, headers.get(b"range"), is_head=method == b"HEAD")
                continue
            kind = _change(method, path, query, int(headers.get(b"x-amz-decoded-content-length", length)))
            body, status = _XML % (kind, kind) if kind else b"", b"204 No Content" if method == b"DELETE" else b"200 OK"
            connection.sendall(_head(status, _DESCRIBED + confirmed, len(body)) + body)


def _headers(requests: io.BufferedReader) -> dict[bytes, bytes]:
    headers = {}
    while line := requests.readline().strip():
        name, _, value = line.partition(b":")
        headers[name.lower()] = value.strip()
    return headers


def _head(status: bytes, headers: bytes, length: int) -> bytes:
    return b"HTTP/1.1 %s\r\n%sContent-Length: %d\r\n\r\n" % (status, headers, length)


def _give_object(
    connection: socket.socket, given: memoryview, path: bytes, span: bytes | None, *, is_head: bool
) -> None:
    if path not in _sizes:
        connection.sendall(_head(b"404 Not Found", b"", 0))
        return
    first, last, status, headers = 0, _sizes[path] - 1, b"200 OK", _DESCRIBED
    if span is not None:
        begin, _, end = span.removeprefix(b"bytes=").partition(b"-")
        first, last, status = int(begin), min(int(end or last), last), b"206 Partial Content"
        headers += b"Content-Range: bytes %d-%d/%d\r\n" % (first, last, _sizes[path])
    connection.sendall(_head(status, headers, last + 1 - first), 0 if is_head else socket.MSG_MORE)
    if not is_head:
        _give(connection, given, last + 1 - first)


def _change(method: bytes, path: bytes, query: bytes, size: int) -> bytes:
    """Remember or forget the size of an object; returns the kind of the answer, if it has a body."""
    is_part = b"uploadId=" in query
    if method == b"PUT" and is_part:
        _parts.setdefault(path, []).append(size)
    elif method == b"PUT":
        _sizes[path] = size
    elif method == b"DELETE":
        (_parts if is_part else _sizes).pop(path, None)
    elif is_part:
        _sizes[path] = sum(_parts.pop(path, ()))
        return b"CompleteMultipartUploadResult"
    else:
        return b"InitiateMultipartUploadResult" if query.startswith(b"uploads") else b"DeleteResult"
    return b""


def _listen(listener: socket.socket, serve: Callable[[socket.socket, memoryview], None]) -> None:
    given = memoryview(b"x" * (64 << 20))  # larger than the caches, as payloads are
    while True:
        connection, _ = listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=serve, args=(connection, given), daemon=True).start()


if __name__ == "__main__":
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = _serve_s3 if sys.argv[1:] == ["s3"] else _serve
        threading.Thread(target=_listen, args=(server, one), daemon=True).start()
        print(server.getsockname()[1], flush=True)
        sys.stdin.buffer.read()
