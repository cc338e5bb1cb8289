"""A line with a round trip and a rate for each connection, in a process of its own.

    python delay.py HOST PORT MILLISECONDS MEGABYTES_PER_SECOND

Prints the port on which it listens, and ends with its standard input. Half of the round trip passes in each direction,
and a new connection waits for one more. With a rate of ``inf`` only the delay remains. Bytes stay in the kernel: they
go from socket to pipe to socket, so that the proxy takes little of the processor.
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
    readable, piece, last, count = select.poll(), int(min(_PIECE_BYTES, rate * _PACE_SECONDS)), 0.0, 1
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


def _serve(client: socket.socket, address: tuple[str, int], seconds: float, rate: float) -> None:
    """Serve one connection until it has ended."""
    time.sleep(seconds)  # the handshake
    with client, contextlib.suppress(OSError), socket.create_connection(address) as server:
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        back = threading.Thread(target=_carry, args=(server, client, seconds / 2, rate))
        back.start()
        _carry(client, server, seconds / 2, rate)
        back.join()


def _listen(listener: socket.socket, address: tuple[str, int], seconds: float, rate: float) -> None:
    while True:
        threading.Thread(target=_serve, args=(listener.accept()[0], address, seconds, rate), daemon=True).start()


if __name__ == "__main__":
    with socket.create_server(("127.0.0.1", 0), backlog=512) as server:
        line = server, (sys.argv[1], int(sys.argv[2])), float(sys.argv[3]) / 1000, float(sys.argv[4]) * 1e6
        threading.Thread(target=_listen, args=line, daemon=True).start()
        print(server.getsockname()[1], flush=True)
        sys.stdin.read()
        os._exit(0)  # threads still wait for connections
