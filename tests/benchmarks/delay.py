"""A line with a round trip and a rate for each connection, in a process of its own.

    python delay.py HOST PORT MILLISECONDS MEGABYTES_PER_SECOND

Prints the port on which it listens, and ends with its standard input. Half of the round trip passes in each direction,
and a new connection waits for one more. With a rate of ``inf`` only the delay remains. Bytes stay in the kernel: they
go from socket to pipe to socket, so that the proxy takes little of the processor.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import selectors
import socket
import sys
from collections import deque
from collections.abc import Callable

_PIECE_BYTES = 1 << 20  # the most that is moved at a time
_PIPE_BYTES = 1 << 20  # the most that a process without privileges gets
_SHORT_MILLISECONDS = 5  # for shorter lines the timers of epoll, exact to a millisecond, are too coarse
_PACE_SECONDS = 0.002  # a piece is what passes in this time, and a wake-up may be late by as much


class Direction:
    """Moves the bytes of one direction of a connection: each piece leaves when its time has come.

    Args:
        source: Where the bytes come from.
        target: Where they go.
        seconds: How long each byte takes.
        rate: Bytes per second; infinite for no limit.
        ended: Called once: at the end of the bytes, or when a connection is lost.
    """

    def __init__(
        self, source: socket.socket, target: socket.socket, *, seconds: float, rate: float, ended: Callable[[], None]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._source, self._target, self._ended = source, target, ended
        self._seconds, self._rate = seconds, rate
        self._out, self._in = os.pipe()
        fcntl.fcntl(self._in, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self._piece = int(min(_PIECE_BYTES, rate * _PACE_SECONDS))
        self._due: deque[tuple[float, int]] = deque()
        self._last = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._pause: asyncio.TimerHandle | None = None
        self._resume()

    def close(self) -> None:
        """Stop, and drop what is under way."""
        self._loop.remove_reader(self._source)
        self._loop.remove_writer(self._target)
        for timer in (self._timer, self._pause):
            if timer is not None:
                timer.cancel()
        os.close(self._out)
        os.close(self._in)

    def _resume(self) -> None:
        self._loop.add_reader(self._source, self._guarded, self._take)

    def _guarded(self, step: Callable[[], None]) -> None:
        try:
            step()
        except BlockingIOError:
            if step == self._take and self._due:  # the pipe may be full
                self._loop.remove_reader(self._source)
                self._pause = self._loop.call_later(_PACE_SECONDS, self._resume)
            elif step == self._deliver:
                self._loop.add_writer(self._target, self._guarded, self._deliver)
        except OSError:
            self._ended()

    def _take(self) -> None:
        count = os.splice(self._source.fileno(), self._in, self._piece, flags=os.SPLICE_F_NONBLOCK)
        now = self._loop.time()
        self._last = max(self._last, now) + count / self._rate
        self._due.append((self._last + self._seconds, count))
        self._loop.remove_reader(self._source)
        if count:
            self._pause = self._loop.call_at(self._last - _PACE_SECONDS, self._resume)
        if self._timer is None:
            self._wait()

    def _wait(self) -> None:
        self._timer = self._loop.call_at(self._due[0][0], self._guarded, self._deliver)

    def _deliver(self) -> None:
        self._loop.remove_writer(self._target)
        while self._due and (self._due[0][0] <= self._loop.time()):
            due, count = self._due[0]
            if not count:
                self._target.shutdown(socket.SHUT_WR)
                self._ended()
                return
            moved = os.splice(self._out, self._target.fileno(), count, flags=os.SPLICE_F_NONBLOCK)
            self._due[0] = due, count - moved
            if moved == count:
                self._due.popleft()
        self._timer = None
        if self._due:
            self._wait()


async def _serve(client: socket.socket, address: tuple[str, int], seconds: float, rate: float) -> None:
    """Serve one connection until both directions have ended, or one is lost."""
    loop = asyncio.get_running_loop()
    await asyncio.sleep(seconds)  # the handshake
    with client, socket.socket() as server, contextlib.suppress(OSError):
        for end in (client, server):
            end.setblocking(False)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await loop.sock_connect(server, address)
        over = asyncio.Event()
        ways = [
            Direction(source, target, seconds=seconds / 2, rate=rate, ended=over.set)
            for source, target in ((client, server), (server, client))
        ]
        try:
            await over.wait()
        finally:
            for way in ways:
                way.close()


async def main(host: str, port: int, milliseconds: float, rate: float) -> None:
    """Serve until standard input ends."""
    loop = asyncio.get_running_loop()
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    listener.setblocking(False)
    print(listener.getsockname()[1], flush=True)
    over = loop.run_in_executor(None, sys.stdin.read)
    serving = set[asyncio.Task[None]]()
    while not over.done():
        accepting = asyncio.ensure_future(loop.sock_accept(listener))
        await asyncio.wait({accepting, over}, return_when=asyncio.FIRST_COMPLETED)
        if accepting.done():
            task = asyncio.ensure_future(_serve(accepting.result()[0], (host, port), milliseconds / 1000, rate))
            serving.add(task)
            task.add_done_callback(serving.discard)


def _loop(milliseconds: float) -> asyncio.SelectorEventLoop:
    """Return a loop whose timers are exact enough: to microseconds with select, which serves few connections."""
    short = milliseconds < _SHORT_MILLISECONDS
    return asyncio.SelectorEventLoop(selectors.SelectSelector() if short else selectors.DefaultSelector())


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=lambda: _loop(float(sys.argv[3]))) as runner:
        runner.run(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4]) * 1e6))
