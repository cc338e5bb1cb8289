"""The other end of a raw socket, in a process of its own: takes bytes and throws them away, or gives bytes.

    python sink.py            prints its port, and runs until its standard input ends

A request is one letter and a length of 8 bytes: ``W`` takes so many bytes into one warm buffer and answers a byte,
``F`` takes them into memory that nobody has touched yet, as a store must, and ``R`` gives so many.
"""

from __future__ import annotations

import io
import socket
import struct
import sys
import threading

PIECE = 1 << 20
REQUEST = struct.Struct("<cQ")
_GIVEN = memoryview(b"x" * (64 << 20))  # larger than the caches, as payloads are


def receive(connection: socket.socket, room: memoryview) -> int:
    """Receive what is there; a connection that ends here is an error."""
    count = connection.recv_into(room)
    if not count:
        raise ConnectionError("the other end hung up")
    return count


def fill(connection: socket.socket, room: memoryview) -> None:
    """Receive until the room is full."""
    while len(room):
        room = room[receive(connection, room) :]


def _discard(connection: socket.socket, size: int) -> None:
    warm = memoryview(bytearray(PIECE))
    while size:
        size -= receive(connection, warm[:size])


def _keep(connection: socket.socket, size: int) -> None:
    with io.BytesIO(bytes(size)).getbuffer() as fresh:  # zero pages, not touched before the bytes come
        fill(connection, fresh)


def _give(connection: socket.socket, size: int) -> None:
    while size:
        piece = _GIVEN[:size]
        connection.sendall(piece)
        size -= len(piece)


def _serve(connection: socket.socket) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while request := connection.recv(REQUEST.size, socket.MSG_WAITALL):
        letter, size = REQUEST.unpack(request)
        {b"W": _discard, b"F": _keep, b"R": _give}[letter](connection, size)
        if letter != b"R":
            connection.sendall(b"k")


def _listen(listener: socket.socket) -> None:
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=_serve, args=(connection,), daemon=True).start()


def main() -> None:
    """Serve until whoever started this goes away."""
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=_listen, args=(listener,), daemon=True).start()
    print(listener.getsockname()[1], flush=True)
    sys.stdin.buffer.read()


if __name__ == "__main__":
    main()
