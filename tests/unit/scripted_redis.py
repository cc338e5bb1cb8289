"""A Redis that answers as a real one until a test writes an answer itself, byte by byte."""

from __future__ import annotations

import contextlib
import itertools
import socketserver
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from claimcheck import _threads
from claimcheck._threads import IoThreads

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
    request_queue_size = 50

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


class Medium:
    """The script of a Redis with these values, until told otherwise for a command with a key or value that ends so."""

    def __init__(self, values: dict[bytes, bytes]) -> None:
        self.values = values
        self._odd: dict[tuple[bytes, bytes], Iterator[Any]] = {}

    def answers(self, name: bytes, end: bytes, *odd: Any) -> None:
        """Give these answers in turn, and then the usual ones; ``None`` hangs up, a function gets the usual answer."""
        self._odd[name, end] = iter(odd)

    def always(self, name: bytes, end: bytes, odd: Any) -> None:
        self._odd[name, end] = itertools.repeat(odd)

    def __call__(self, conversation: Conversation, command: Command) -> bytes | None:
        for (name, end), answers in self._odd.items():
            if name == command[0] and any(part.endswith(end) for part in command[1:3]):
                for odd in answers:
                    answer: bytes | None = odd(conversation, self._usual(*command)) if callable(odd) else odd
                    return answer
        return self._usual(*command)

    def _usual(self, name: bytes, *arguments: bytes) -> bytes:
        found = self.values.get(arguments[0])
        match name:
            case b"SET":
                self.values[arguments[0]] = arguments[1]
                return b"+OK\r\n"
            case b"EXISTS":
                return b":%d\r\n" % sum(key in self.values for key in arguments)
            case b"STRLEN":
                return b":%d\r\n" % len(found or b"")
            case b"GETRANGE":
                return bulk((found or b"")[int(arguments[1]) : int(arguments[2]) + 1])
            case _:
                return b"$-1\r\n" if found is None else bulk(found)


@contextlib.contextmanager
def scripted_redis(script: Script) -> Iterator[ScriptedRedis]:
    with ScriptedRedis(script) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def bulk(data: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(data), data)


@contextlib.contextmanager
def busy_thread(patch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The only thread for calls of stores; it is busy until `go` is called, so that all calls wait at the same time."""
    pool, busy = IoThreads(1), threading.Event()
    patch.setattr(_threads, "_io", [pool])
    patch.setattr(_threads, "_PIPELINED_THREADS", 1)
    pool.submit(lambda: busy.wait(10))
    pool.go = busy.set  # type: ignore[attr-defined]
    yield pool
    busy.set()
    pool._executor.shutdown()
