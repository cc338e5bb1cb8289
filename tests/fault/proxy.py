"""A line between client and server that breaks, waits, crawls and lies, at a byte that the test chooses."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Coroutine
from typing import Any

from tests.fault.lane import BrokenLineError, Lane

__all__ = ["Proxy"]

_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: what is closed forgets what it had still to send, and says so


class Proxy:
    """Passes bytes on, both ways, until it is told otherwise; a context manager.

    Args:
        host: Of the server.
        port: Of the server; may be changed by `lead`.
        resets_server: End the connections to the server with a reset, always: for a server that takes a request which
            ends early for complete.

    Attributes:
        port: Where it listens, on the loopback interface, while it is alive; may be chosen before.
        connections: How many there were.
        requests: The lane from clients to the server.
        answers: The lane back.
    """

    def __init__(self, host: str, port: int, *, resets_server: bool = False) -> None:
        self._target = (host, port)
        self._resets_server = resets_server
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._listener: socket.socket | None = None
        self._links: dict[asyncio.Task[None], _Link] = {}
        self.port = 0
        self.connections = 0
        self.requests = Lane()
        self.answers = Lane()

    def lead(self, port: int) -> None:
        """Connect to another port of the server from now on."""
        self._target = (self._target[0], port)

    @property
    def alive(self) -> bool:
        """Whether new connections are taken."""
        return self._listener is not None

    @property
    def live(self) -> int:
        """Connections that are there now."""
        return len(self._links)

    def cut(self) -> None:
        """End all connections that there are; new ones are made as before."""
        self._run(self._break(reset=False))

    def reset(self) -> None:
        """The same with a reset, as from a machine that lost its memory."""
        self._run(self._break(reset=True))

    def die(self) -> None:
        """End all connections and take no new ones, like a server that went down."""
        self._run(self._close())
        self.cut()

    def revive(self) -> None:
        """Take connections again, at the same port."""
        self._run(self._listen())

    def lose_answers(self) -> None:
        """Requests still arrive, but the line breaks instead of bringing an answer."""
        self.answers.break_after(0, times=None)

    def free(self) -> None:
        """Be a plain line from now on."""
        self.requests.free()
        self.answers.free()

    def __enter__(self) -> Proxy:
        self._thread.start()
        self.revive()
        return self

    def __exit__(self, *exc: Any) -> None:
        self.free()
        self.die()
        self._run(self._loop.shutdown_default_executor())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        """Have something done by the thread that knows the connections; it is done when this returns."""
        asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=30)

    async def _listen(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self._listener.setblocking(False)
        self.port = int(self._listener.getsockname()[1])
        self._loop.add_reader(self._listener, self._accept)

    async def _close(self) -> None:
        if self._listener is not None:
            self._loop.remove_reader(self._listener)
            self._listener.close()
            self._listener = None

    async def _break(self, *, reset: bool) -> None:
        links = dict(self._links)
        for task, link in links.items():
            link.resets = link.resets or reset
            task.cancel()
        await asyncio.gather(*links, return_exceptions=True)

    def _accept(self) -> None:
        assert self._listener is not None
        with contextlib.suppress(OSError):  # it changed its mind
            link = _Link(self._listener.accept()[0], self._resets_server)
            self.connections += 1
            task = self._loop.create_task(link.run(self._target, self.requests, self.answers))
            self._links[task] = link
            task.add_done_callback(self._hang_up)

    def _hang_up(self, task: asyncio.Task[None]) -> None:
        self._links.pop(task).close()
        if not task.cancelled():
            task.result()  # what went wrong with the proxy itself must show


class _Link:
    """One client's connection and ours to the server; whole, or none."""

    def __init__(self, client: socket.socket, resets_server: bool) -> None:
        self._client = client
        self._server = socket.socket()
        self._resets_server = resets_server
        self.resets = False
        for end in (self._client, self._server):
            end.setblocking(False)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else small answers would wait for 40 ms

    async def run(self, target: tuple[str, int], requests: Lane, answers: Lane) -> None:
        """Until one of them hangs up, or a lane breaks; a server that refuses us is a hang-up, too."""
        with contextlib.suppress(OSError):
            await asyncio.get_running_loop().sock_connect(self._server, target)
            pumps = (_pump(self._client, self._server, requests), _pump(self._server, self._client, answers))
            await self._first(*map(asyncio.ensure_future, pumps))

    async def _first(self, *pumps: asyncio.Future[None]) -> None:
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            ends = await asyncio.gather(*pumps, return_exceptions=True)
            self.resets = self.resets or any(isinstance(end, BrokenLineError) and end.reset for end in ends)

    def close(self) -> None:
        for end, resets in ((self._client, self.resets), (self._server, self.resets or self._resets_server)):
            if resets:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            end.close()


async def _pump(source: socket.socket, target: socket.socket, lane: Lane) -> None:
    loop = asyncio.get_running_loop()

    async def write(data: bytes) -> None:
        await loop.sock_sendall(target, data)

    while data := await loop.sock_recv(source, 1 << 16):
        await lane.carry(data, write)
