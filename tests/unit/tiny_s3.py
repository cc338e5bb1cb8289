"""As much of an S3 server as a test needs: remembers every request, and answers wrongly when it is told to."""

from __future__ import annotations

import base64
import contextlib
import http.server
import re
import socket
import struct
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from claimcheck._store.contract import StoreContext
from claimcheck.stores.obstore import ObstoreStore
from claimcheck.stores.s3 import S3Store
from tests.parts import divided

ENGINES = {
    "s3": lambda **options: S3Store(bucket="b", prefix="claims", **options),
    "obstore": lambda **options: ObstoreStore(url="s3://b/claims", **options),
}


@contextlib.contextmanager
def opened(engine: str, server: TinyS3, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """A function that opens a store on this server, without the SDK's pauses between tries."""
    monkeypatch.setattr("botocore.endpoint.time.sleep", lambda seconds: None)
    with contextlib.ExitStack() as stores:

        def open_store(**options: Any) -> Any:
            place = {"endpoint_url": server.url, "region_name": "eu-west-1"}
            store = stores.enter_context(divided(ENGINES[engine], **{**place, **options}))
            store.context = StoreContext(name="cold")
            return store

        yield open_store


@dataclass
class Request:
    """What came over the line."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes


@dataclass
class Answer:
    """What goes back; without a status nothing does: the server hangs up, or breaks the line."""

    status: int = 0
    code: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    hang_up_after: int | None = None
    reset: bool = False


class TinyS3:
    """A context manager.

    Attributes:
        url: For clients.
        requests: All that came.
        objects: By path.
        answers: What the next requests get, whatever they ask for; popped from the front.
    """

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.objects: dict[str, bytes] = {}
        self.parts: dict[int, bytes] = {}
        self.answers: list[Answer] = []
        self.connections = 0
        self.page_keys = 1000
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.daemon_threads = True
        self._server.tiny = self  # type: ignore[attr-defined]
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def said(self, name: str) -> list[str | None]:
        """A header of all requests."""
        return [request.headers.get(name) for request in self.requests]

    def __enter__(self) -> TinyS3:
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()
        return self

    def __exit__(self, *exc: Any) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def answer(self, request: Request) -> Answer:
        """Do what is asked for."""
        if self.answers:
            return self.answers.pop(0)
        return getattr(self, f"_{request.method.lower()}")(request)  # type: ignore[no-any-return]

    def _put(self, request: Request) -> Answer:
        if request.headers.get("if-none-match") == "*" and request.path in self.objects:
            return Answer(412, "PreconditionFailed")
        body, headers = request.body, {"ETag": '"e"'}
        if request.headers.get("x-amz-checksum-crc32") not in (None, crc32_of(body)):
            return Answer(400, "BadDigest")
        if "partNumber" in request.query:
            self.parts[int(request.query["partNumber"])] = body
        else:
            self.objects[request.path] = body
        return Answer(200, headers=headers)

    def _post(self, request: Request) -> Answer:
        if "delete" in request.query:
            for key in re.findall(b"<Key>([^<]+)</Key>", request.body):
                self.objects.pop(f"{request.path}/{key.decode()}", None)
            return Answer(200, body=b"<DeleteResult/>")
        if "uploads" in request.query:
            return Answer(
                200, body=b"<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>"
            )
        self.objects[request.path] = b"".join(part for _, part in sorted(self.parts.items()))
        return Answer(200, body=b"<CompleteMultipartUploadResult><ETag>e</ETag></CompleteMultipartUploadResult>")

    def _list(self, request: Request) -> Answer:
        """Pages as S3 has them; there are no unfinished uploads."""
        after = max(request.query.get("start-after", ""), request.query.get("continuation-token", ""))
        keys = sorted(path.removeprefix(f"{request.path}/") for path in self.objects)
        keys = [key for key in keys if key.startswith(request.query.get("prefix", "")) and key > after]
        page = keys[: int(request.query.get("max-keys", self.page_keys))]
        modified = "<LastModified>2026-01-01T00:00:00.000Z</LastModified>"
        sizes = [len(self.objects[f"{request.path}/{key}"]) for key in page]
        found = "".join(
            f"<Contents><Key>{key}</Key><Size>{size}</Size>{modified}</Contents>"
            for key, size in zip(page, sizes, strict=True)
        )
        if page != keys:
            found += f"<IsTruncated>true</IsTruncated><NextContinuationToken>{page[-1]}</NextContinuationToken>"
        return Answer(200, body=f"<L>{found}</L>".encode())

    def _get(self, request: Request) -> Answer:
        if "uploads" in request.query or "list-type" in request.query:
            return self._list(request) if "list-type" in request.query else Answer(200, body=b"<L/>")
        if request.path not in self.objects:
            return Answer(404, "NoSuchKey")
        body = self.objects[request.path]
        headers = {"ETag": '"e"', "Last-Modified": formatdate(usegmt=True)}
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers.get("range", ""))
        if asked is None:
            return Answer(200, headers=headers, body=body)
        first, last = int(asked[1]), min(int(asked[2]), len(body) - 1)
        if first > last:
            return Answer(416, "InvalidRange")
        headers["Content-Range"] = f"bytes {first}-{last}/{len(body)}"
        return Answer(206, headers=headers, body=body[first : last + 1])

    _head = _get

    def _delete(self, request: Request) -> Answer:
        if "uploadId" not in request.query:
            self.objects.pop(request.path, None)
        return Answer(204)


class _Server(http.server.ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients hang up when they please."""


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # headers and body are two packets; the second would wait 40 ms for an ACK

    def setup(self) -> None:
        super().setup()
        self.tiny: TinyS3 = self.server.tiny  # type: ignore[attr-defined]
        self.tiny.connections += 1

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        size = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(size)
        if len(body) < size:  # the client hung up
            self.close_connection = True
            return
        query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = Request(self.command, unquote(parts.path), query, headers, body)
        self.tiny.requests.append(request)
        self._give(self.tiny.answer(request))

    do_PUT = do_POST = do_DELETE = do_HEAD = do_GET  # noqa: N815

    def _give(self, answer: Answer) -> None:
        if not answer.status:
            self.close_connection = True
            if answer.reset:
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.connection.close()
            return
        body = answer.body or (f"<Error><Code>{answer.code}</Code></Error>".encode() if answer.code else b"")
        self.send_response_only(answer.status)
        for name, value in {"Content-Length": str(len(body)), **answer.headers}.items():
            if answer.status != 204 or name != "Content-Length":
                self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[: answer.hang_up_after])
        self.close_connection = self.close_connection or answer.hang_up_after is not None

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


def crc32_of(body: bytes) -> str:
    """The checksum as S3 writes it."""
    return base64.b64encode(zlib.crc32(body).to_bytes(4, "big")).decode()
