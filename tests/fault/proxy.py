"""A line between client and server that can be cut, at a moment that the test chooses."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Any


class Proxy:
    """Passes bytes on, both ways, until it is told otherwise; a context manager."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self._deaf = False
        self.port = int(self._listener.getsockname()[1])
        self.connections = 0

    def cut(self) -> None:
        """Break all connections that there are; new ones are made as before."""
        for side in self._sockets:
            with contextlib.suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)

    def die(self) -> None:
        """Break all connections and take no new ones, like a server that went down."""
        with contextlib.suppress(OSError):  # wakes the thread that waits for a connection
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def lose_answers(self) -> None:
        """Requests still arrive, but the line breaks instead of bringing an answer."""
        self._deaf = True

    def __enter__(self) -> Proxy:
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()
        return self

    def __exit__(self, *exc: Any) -> None:
        self.die()
        self._accepting.join()
        for side in self._sockets:
            side.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
                self._sockets += [client, server]
                self.connections += 1
                threading.Thread(target=self._pump, args=(client, server, False), daemon=True).start()
                threading.Thread(target=self._pump, args=(server, client, True), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, answers: bool) -> None:
        with contextlib.suppress(OSError):
            while (data := source.recv(1 << 16)) and not (answers and self._deaf):
                target.sendall(data)
        for side in (source, target):
            with contextlib.suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)
