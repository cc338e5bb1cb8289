"""A line with a round trip and a rate for each connection, in a process of its own.

    python delay.py HOST PORT MILLISECONDS MEGABYTES_PER_SECOND

Prints the port on which it listens, and ends with its standard input. Half of the round trip passes in each direction,
and a new connection waits for one more. With a rate of ``inf`` only the delay remains. Bytes stay in the kernel: they
go from socket to pipe to socket, so that the proxy takes little of the processor; a thread that waits takes none.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import queue
import select
import socket
import sys
import threading
import time

_PIECE_BYTES = 1 << 20  # the most that is moved at a time
_PIPE_BYTES = 1 << 20  # the most that a process without privileges gets
_PACE_SECONDS = 0.002  # a piece is what passes in this time


def _move(source: socket.socket, target: socket.socket, seconds: float, rate: float) -> None:
    """Move the bytes of one direction: each piece leaves when its time has come. The end of one ends the other."""
    out, into = os.pipe()
    fcntl.fcntl(into, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    due: queue.SimpleQueue[tuple[float, int]] = queue.SimpleQueue()

    def deliver() -> None:
        with contextlib.suppress(OSError):
            while (piece := due.get())[1]:
                when, count = piece
                if (left := when - time.monotonic()) > 0:
                    time.sleep(left)
                while count:
                    count -= os.splice(out, target.fileno(), count)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        os.close(out)  # a reader that waits for space fails now

    waiting = select.poll()
    waiting.register(source, select.POLLIN)
    delivering = threading.Thread(target=deliver)
    delivering.start()
    size, last, count = int(min(_PIECE_BYTES, rate * _PACE_SECONDS)), 0.0, 1
    while count:
        waiting.poll()  # a splice that waits for bytes would hold the pipe's lock
        try:
            count = os.splice(source.fileno(), into, size)
        except OSError:
            count = 0
        last = max(last, time.monotonic()) + count / rate
        due.put((last + seconds, count))
        if (left := last - _PACE_SECONDS - time.monotonic()) > 0:
            time.sleep(left)
    delivering.join()
    os.close(into)


def _serve(client: socket.socket, address: tuple[str, int], seconds: float, rate: float) -> None:
    """Serve one connection until one direction has ended."""
    time.sleep(seconds)  # the handshake
    with client, contextlib.suppress(OSError), socket.create_connection(address) as server:
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        back = threading.Thread(target=_move, args=(server, client, seconds / 2, rate), daemon=True)
        back.start()
        _move(client, server, seconds / 2, rate)
        back.join()


def _listen(listener: socket.socket, *line: object) -> None:
    while True:
        threading.Thread(target=_serve, args=(listener.accept()[0], *line), daemon=True).start()


if __name__ == "__main__":
    with socket.create_server(("127.0.0.1", 0), backlog=512) as listening:
        line = (sys.argv[1], int(sys.argv[2])), float(sys.argv[3]) / 1000, float(sys.argv[4]) * 1e6
        threading.Thread(target=_listen, args=(listening, *line), daemon=True).start()
        print(listening.getsockname()[1], flush=True)
        sys.stdin.buffer.read()
    os._exit(0)  # connections may be open
