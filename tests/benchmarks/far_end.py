"""The other ends of connections, each a process of its own: an S3 server that keeps nothing, and a line.

    python far_end.py s3                                              as much S3 as clients need
    python far_end.py line HOST PORT MILLISECONDS MEGABYTES_PER_SECOND

Each prints its port, and runs until its standard input ends. The S3 server throws bodies away, and a get returns as
many ``x``: it shows what the client costs. A line has a round trip, of which half passes in each direction, and a new
connection waits for one more; with a rate of ``inf`` for each connection only the delay remains.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import queue
import select
import socket
import sys
import threading
import time
from collections.abc import Callable

_PIECE = 1 << 20

# The S3 server ---------------------------------------------------------------------------------------------------


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


# The line --------------------------------------------------------------------------------------------------------

_PIPE_BYTES = 1 << 20  # the most that a process without privileges gets
_PACE_SECONDS = 0.002  # a piece is what passes in this time, and a wake-up may be late by as much


def _carry(source: socket.socket, target: socket.socket, seconds: float, rate: float) -> None:
    """Move the bytes of one direction of a connection until they end: each piece leaves when its time has come.

    Args:
        source: Where the bytes come from.
        target: Where they go.
        seconds: How long each byte takes.
        rate: Bytes per second; infinite for no limit.
    """
    out, into = os.pipe()  # it limits what is under way
    fcntl.fcntl(into, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    due = queue.SimpleQueue[tuple[float, int]]()
    delivering = threading.Thread(target=_deliver, args=(due, out, target))
    delivering.start()
    readable, piece, last, count = select.poll(), int(min(_PIECE, rate * _PACE_SECONDS)), 0.0, 1
    readable.register(source, select.POLLIN)
    while count:
        readable.poll()  # to wait in splice would keep the pipe locked
        try:
            count = os.splice(source.fileno(), into, piece, flags=os.SPLICE_F_NONBLOCK)
        except BlockingIOError:  # the pipe is full
            time.sleep(_PACE_SECONDS)
            continue
        except OSError:  # the connection is lost
            count = 0
        now = time.perf_counter()
        last = max(last, now) + count / rate
        due.put((last + seconds, count))
        time.sleep(max(0.0, last - now - _PACE_SECONDS))
    delivering.join()
    for end in (out, into):
        os.close(end)


def _deliver(due: queue.SimpleQueue[tuple[float, int]], out: int, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while True:
            at, left = due.get()
            time.sleep(max(0.0, at - time.perf_counter()))
            if not left:
                break
            while left:
                left -= os.splice(out, target.fileno(), left)
    with contextlib.suppress(OSError):  # the other direction ends, too
        target.shutdown(socket.SHUT_RDWR)


def _serve_line(client: socket.socket, address: tuple[str, int], seconds: float, rate: float) -> None:
    """Serve one connection until it has ended. Bytes stay in the kernel, so that this takes little of the processor."""
    time.sleep(seconds)  # the handshake
    with client, contextlib.suppress(OSError), socket.create_connection(address) as server:
        server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        back = threading.Thread(target=_carry, args=(server, client, seconds / 2, rate))
        back.start()
        _carry(client, server, seconds / 2, rate)
        back.join()


def _listen(listener: socket.socket, serve: Callable[[socket.socket], None]) -> None:
    while True:
        connection, _ = listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=serve, args=(connection,), daemon=True).start()


def _serving(kind: str, *line: str) -> Callable[[socket.socket], None]:
    if kind == "line":
        host, port, milliseconds, megabytes = line
        address, seconds, rate = (host, int(port)), float(milliseconds) / 1000, float(megabytes) * 1e6
        return lambda connection: _serve_line(connection, address, seconds, rate)
    given = memoryview(b"x" * (64 << 20))  # larger than the caches, as payloads are
    return lambda connection: _serve_s3(connection, given)


if __name__ == "__main__":
    with socket.create_server(("127.0.0.1", 0), backlog=512) as server:
        threading.Thread(target=_listen, args=(server, _serving(*sys.argv[1:])), daemon=True).start()
        print(server.getsockname()[1], flush=True)
        sys.stdin.buffer.read()
        os._exit(0)  # threads still wait for connections
