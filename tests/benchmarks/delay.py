"""A line that is some milliseconds long, in a process of its own: what is sent arrives later, however much it is.

    python delay.py HOST PORT MILLISECONDS

Prints the port on which it listens, and ends with its standard input. A request waits for one round trip, a new
connection for one more; bytes that follow each other wait together.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys

_PIECE_BYTES = 1 << 18


async def main(host: str, port: int, milliseconds: float) -> None:
    """Serve until standard input ends."""
    loop, seconds = asyncio.get_running_loop(), milliseconds / 1000

    async def serve(client: socket.socket) -> None:
        await asyncio.sleep(seconds)  # the handshake
        with client, socket.socket() as server, contextlib.suppress(OSError):
            for end in (client, server):
                end.setblocking(False)
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await loop.sock_connect(server, (host, port))
            pumps = [
                asyncio.ensure_future(_pump(client, server, seconds)),
                asyncio.ensure_future(_pump(server, client, 0.0)),
            ]
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    listener.setblocking(False)
    print(listener.getsockname()[1], flush=True)
    over = loop.run_in_executor(None, sys.stdin.read)
    serving = set[asyncio.Task[None]]()
    while not over.done():
        with contextlib.suppress(TimeoutError):
            client, _ = await asyncio.wait_for(loop.sock_accept(listener), 0.5)
            task = asyncio.ensure_future(serve(client))
            serving.add(task)
            task.add_done_callback(serving.discard)


async def _pump(source: socket.socket, target: socket.socket, seconds: float) -> None:
    """Pass on what comes, each piece ``seconds`` after it came."""
    loop = asyncio.get_running_loop()
    pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(maxsize=4096)

    async def deliver() -> None:
        while True:
            due, piece = await pieces.get()
            if not piece:
                return
            if (left := due - loop.time()) > 0:
                await asyncio.sleep(left)
            await loop.sock_sendall(target, piece)

    delivering = asyncio.ensure_future(deliver())
    try:
        piece = b"-"
        while piece:
            piece = await loop.sock_recv(source, _PIECE_BYTES)
            await pieces.put((loop.time() + seconds, piece))
        await delivering
    finally:
        delivering.cancel()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
