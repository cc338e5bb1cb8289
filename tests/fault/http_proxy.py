"""A line to an S3 server that tells requests apart: any of them may be refused, broken, held or falsified."""

from __future__ import annotations

import http.client
import http.server
import socket
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import parse_qs, urlsplit

__all__ = ["HttpProxy"]

Operation = Literal["put", "begin", "part", "complete", "abort", "get", "delete"]

_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: what is closed forgets what it had still to send, and says so
_OF_ONE_LINE = {"connection", "keep-alive", "transfer-encoding", "expect"}  # not to be passed on
_PIECE = 1 << 16


@dataclass
class Fault:
    """What goes wrong with some requests; places are bytes of the body."""

    operation: str
    times: int | None
    after: int
    status: int = 0
    break_request: int | None = None
    break_answer: int | None = None
    lose_answer: bool = False
    reset: bool = True
    flip_request: int | None = None
    flip_answer: int | None = None

    def strikes(self, operation: str) -> bool:
        """Whether it is this one's turn; counts it."""
        if operation != self.operation or self.times == 0:
            return False
        if self.after:
            self.after -= 1
            return False
        self.times = None if self.times is None else self.times - 1
        return True


class HttpProxy:
    """A context manager; passes everything on until told otherwise.

    Attributes:
        url: The endpoint of a client.
    """

    def __init__(self, host: str, port: int) -> None:
        self.target = (host, port)
        self.lock = threading.Lock()
        self.faults: list[Fault] = []
        self._server = _Server(self)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), name="http-proxy")

    @property
    def live(self) -> int:
        """Connections of clients that are open now."""
        with self.lock:
            return len(self._server.lines)

    def fail(self, operation: Operation, *, times: int | None = 1, after: int = 0, **how: Any) -> None:
        """Let requests fail, a number of times or always, after some that go well.

        Args:
            operation: Which requests.
            times: How many of them; ``None`` for all that come.
            after: How many of them pass before.
            how: Fields of `Fault`: ``status`` for a refusal; ``break_request`` and ``break_answer`` for the number of
                bytes after which the connection is reset (or only ended, with ``reset=False``); ``lose_answer`` if
                the request shall still be done; ``flip_request`` and ``flip_answer`` for a byte to change.
        """
        self.faults.append(Fault(operation, times, after, **how))

    def free(self) -> None:
        """Forget all faults."""
        with self.lock:
            self.faults = []

    def next_fault(self, operation: str) -> Fault | None:
        """Return what is to happen to a request."""
        with self.lock:
            return next((fault for fault in self.faults if fault.strikes(operation)), None)

    def __enter__(self) -> HttpProxy:
        self._thread.start()
        return self

    def __exit__(self, *exc: Any) -> None:
        self.free()
        self._server.shutdown()
        self._thread.join()
        self._server.hang_up()
        self._server.server_close()  # waits for the threads of all connections


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = False

    def __init__(self, proxy: HttpProxy) -> None:
        self.proxy = proxy
        self.lines: set[socket.socket] = set()
        super().__init__(("127.0.0.1", 0), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self.proxy.lock:
            self.lines.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Without the orderly end that the base class would send before a reset."""
        with self.proxy.lock:
            self.lines.discard(request)
        self.close_request(request)

    def hang_up(self) -> None:
        with self.proxy.lock:
            for line in self.lines:
                line.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is none of our business."""


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else a head and its body would be 40 ms apart
    server: _Server

    def parse_request(self) -> bool:
        """Every method is the same to us."""
        good = super().parse_request()
        if good:
            setattr(self, f"do_{self.command}", self._pass_on)
        return good

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def _pass_on(self) -> None:
        fault = self.server.proxy.next_fault(_operation(self.command, self.path)) or Fault("", 0, 0)
        body = _flipped(self._body(fault.break_request), fault.flip_request)
        if fault.status:
            self._refuse(fault)
            return
        upstream = http.client.HTTPConnection(*self.server.proxy.target, timeout=60)
        try:
            self._ask(upstream, body)
            if fault.break_request is not None:  # with a reset: see `test_s3_lines.TestBareLine`
                upstream.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                self._break(fault)
                return
            self._answer(upstream.getresponse(), fault)
        finally:
            upstream.close()

    def _body(self, end: int | None) -> bytes:
        size = int(self.headers.get("Content-Length") or 0)
        return self.rfile.read(size if end is None else min(end, size))

    def _ask(self, upstream: http.client.HTTPConnection, body: bytes) -> None:
        upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() not in _OF_ONE_LINE:
                upstream.putheader(name, value)
        upstream.endheaders(body)

    def _answer(self, answer: http.client.HTTPResponse, fault: Fault) -> None:
        if fault.lose_answer:
            answer.read()
            self._break(fault)
            return
        self._head(answer)
        if self.command == "HEAD":
            return
        passed = 0
        for piece in _pieces(answer, fault.break_answer):
            if passed == fault.break_answer:
                self._break(fault)
                return
            self.wfile.write(_flipped(piece, None if fault.flip_answer is None else fault.flip_answer - passed))
            passed += len(piece)

    def _head(self, answer: http.client.HTTPResponse) -> None:
        if answer.length is None and self.command != "HEAD":  # of a length that is known only at its end
            answer.headers["Connection"] = "close"
            self.close_connection = True
        self.send_response_only(answer.status, answer.reason)
        for name, value in answer.headers.items():
            if name.lower() not in _OF_ONE_LINE:
                self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()

    def _refuse(self, fault: Fault) -> None:
        code = {503: "SlowDown", 403: "AccessDenied"}[fault.status]
        body = f"<Error><Code>{code}</Code><Message>as the test wants it</Message></Error>".encode()
        self.send_response_only(fault.status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(b"" if self.command == "HEAD" else body)

    def _break(self, fault: Fault) -> None:
        self.close_connection = True
        if fault.reset:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)


def _operation(method: str, path: str) -> str:
    asked = parse_qs(urlsplit(path).query, keep_blank_values=True)
    if method == "PUT":
        return "part" if "partNumber" in asked else "put"
    if method == "POST":
        return {"uploads": "begin", "uploadId": "complete"}.get(next(iter(asked), ""), "post")
    if method == "DELETE":
        return "abort" if "uploadId" in asked else "delete"
    return method.lower()


def _pieces(answer: http.client.HTTPResponse, place: int | None) -> Iterator[bytes]:
    """The body, in pieces that end where something is to happen; and an empty one, for what happens at its end."""
    passed = 0
    for end in (place or 0, 1 << 62):
        while passed < end and (piece := answer.read(min(_PIECE, end - passed))):
            passed += len(piece)
            yield piece
    yield b""


def _flipped(data: bytes, at: int | None) -> bytes:
    if at is None or not 0 <= at < len(data):
        return data
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
