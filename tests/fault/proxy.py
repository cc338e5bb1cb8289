"""A line between client and server that breaks, waits, crawls and lies, at a byte that the test chooses."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: what is closed forgets what it had still to send, and says so
_TICKS_PER_SECOND = 50  # how often something passes on a lane that is slow


class BrokenLineError(ConnectionError):
    """The connection that was about to carry a byte ends instead."""

    def __init__(self, *, reset: bool) -> None:
        super().__init__("reset" if reset else "cut")
        self.reset = reset


class Lane:
    """Incidents happen at a byte: everything before it arrives, nothing after it does until the incident is over.

    All counts begin at the moment of the call and run on over connections. A lane may be told things from any thread
    while nothing passes.

    Attributes:
        passed: Bytes since the lane was made.
    """

    def __init__(self) -> None:
        self.passed = 0
        self._incidents: list[tuple[int, int, Callable[[], object]]] = []
        self._flips: set[int] = set()
        self._held: list[threading.Event] = []
        self._rate: int | None = None

    def at(self, count: int, action: Callable[[], object]) -> None:
        """After so many bytes, and not before there is a byte, call something that may take its time or raise."""
        self._incidents.append((self.passed + count, count, action))
        self._incidents.sort(key=lambda incident: incident[0])

    def break_after(self, count: int, *, reset: bool = False, times: int | None = 1) -> None:
        """Break the connection after so many bytes; again after as many more, until it was done so many times."""

        def broken() -> None:
            left = None if times is None else times - 1
            if left != 0:
                self.break_after(count, reset=reset, times=left)
            raise BrokenLineError(reset=reset)

        self.at(count, broken)

    def hold(self, after: int = 0) -> threading.Event:
        """Hold back all bytes after so many, until the event that is returned is set."""
        event = threading.Event()
        self._held.append(event)
        self.at(after, event.wait)
        return event

    def flip(self, offset: int) -> None:
        """Change the byte that passes after so many others."""
        self._flips.add(self.passed + offset)

    def throttle(self, bytes_per_second: int | None) -> None:
        """Let no more than this pass from now on; ``None`` for as much as there is."""
        self._rate = bytes_per_second

    def free(self) -> None:
        """Forget everything that was to happen, and release what is held."""
        self._incidents.clear()
        self._flips.clear()
        self._rate = None
        for event in self._held:
            event.set()

    async def carry(self, data: bytes, write: Callable[[bytes], Awaitable[None]]) -> None:
        """Pass bytes on.

        Raises:
            BrokenLineError: It was to happen here; what comes before was passed on.
        """
        data = self._falsified(data)
        while data:
            await self._happen(0)
            piece, data = data[: self._room()], data[self._room() :]
            self.passed += len(piece)
            if self._rate:
                await asyncio.sleep(len(piece) / self._rate)
            await write(piece)
            await self._happen(1)

    async def _happen(self, least: int) -> None:
        """What is due; after a byte, nothing that was told since and is to wait for the next one."""
        while self._incidents and self._incidents[0][0] <= self.passed and self._incidents[0][1] >= least:
            *_, action = self._incidents.pop(0)
            await asyncio.to_thread(action)

    def _room(self) -> int:
        room = self._incidents[0][0] - self.passed if self._incidents else 1 << 30
        return min(room, max(1, self._rate // _TICKS_PER_SECOND)) if self._rate else room

    def _falsified(self, data: bytes) -> bytes:
        here = [offset - self.passed for offset in self._flips if 0 <= offset - self.passed < len(data)]
        changed = bytearray(data)
        for offset in here:
            changed[offset] ^= 1
        return bytes(changed) if here else data


# The proxy ------------------------------------------------------------------------------------------------------------


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
