"""A Redis whose every answer a test can write, byte by byte; to everything that is not scripted it says OK."""

from __future__ import annotations

import contextlib
import socketserver
import threading
from collections.abc import Callable, Iterator

from claimcheck._store.contract import StoreContext
from claimcheck.stores.redis import RedisStore

Command = list[bytes]
Script = Callable[["Conversation", Command], "bytes | None"]


class Conversation(socketserver.StreamRequestHandler):
    """One connection: reads commands, sends what the script says, hangs up when it says nothing."""

    server: ScriptedRedis

    def handle(self) -> None:
        self.server.connections += 1
        with contextlib.suppress(OSError):
            while command := self._command():
                answer = self.server.answer(self, command)
                if answer is None:
                    return
                self.wfile.write(answer)

    def _command(self) -> Command:
        head = self.rfile.readline()
        return [self._argument() for _ in range(int(head[1:]))] if head else []

    def _argument(self) -> bytes:
        size = int(self.rfile.readline()[1:])
        return self.rfile.read(size + 2)[:-2]


class ScriptedRedis(socketserver.ThreadingTCPServer):
    """Counts connections and remembers the commands that the script was asked."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, script: Script) -> None:
        super().__init__(("127.0.0.1", 0), Conversation)
        self.script = script
        self.connections = 0
        self.asked: list[Command] = []

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.server_address[1]}/0?protocol=2"

    def answer(self, conversation: Conversation, command: Command) -> bytes | None:
        if command[0] in (b"CLIENT", b"INFO", b"UNLINK", b"HELLO", b"PING"):
            return b"+OK\r\n"
        self.asked.append(command)
        return self.script(conversation, command)


@contextlib.contextmanager
def scripted_redis(script: Script) -> Iterator[ScriptedRedis]:
    with ScriptedRedis(script) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def opened(url: str, *, timeout_seconds: float = 5) -> RedisStore:
    """Return a store that asks nothing but what the test has it do."""
    store = RedisStore(url=url, timeout_seconds=timeout_seconds)
    store.context = StoreContext(name="hot")
    return store


def bulk(data: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(data), data)
