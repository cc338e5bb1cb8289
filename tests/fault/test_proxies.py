"""The tests of faults are worth what their proxies are: they break at the byte that was asked for, and nowhere else.

That they break, hold and change anything at all shows where they are used.
"""

import contextlib
import socket
import socketserver
import threading

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import IncompleteReadError, ResponseStreamingError

from tests.fault.http_proxy import HttpProxy
from tests.fault.proxy import Proxy

BODY = bytes(range(256)) * 4096
ANSWER = BODY[:102_400]
SIZE = len(ANSWER)


class Hearing(socketserver.BaseRequestHandler):
    """Writes down what it hears, and answers every line with a long one."""

    def handle(self):
        with contextlib.suppress(OSError):
            while data := self.request.recv(1 << 16):
                self.server.heard += data
                self.request.sendall(ANSWER * data.count(b"\n"))
        self.server.ended.set()


@pytest.fixture
def talker():
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Hearing) as server:
        server.daemon_threads, server.heard, server.ended = True, b"", threading.Event()
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def proxy(talker):
    with Proxy(*talker.server_address) as proxy:
        yield proxy


@pytest.fixture
def ask(proxy):
    """Asks through the proxy, by default on a new line; returns what was heard, and how that ended."""
    with contextlib.ExitStack() as lines:

        def ask(line=None, *, question=b"?\n", size=SIZE):
            line = line or lines.enter_context(socket.create_connection(("127.0.0.1", proxy.port), timeout=10))
            heard = b""
            try:
                line.sendall(question)
                while len(heard) < size and (data := line.recv(size - len(heard))):
                    heard += data
            except ConnectionResetError:
                return heard, "reset"
            return heard, "whole" if len(heard) == size else "cut"

        yield ask


@pytest.mark.parametrize("count", [1, 65_536, SIZE - 1])
@pytest.mark.parametrize("reset", [False, True])
def test_answers_break_at_the_byte_and_only_once(ask, proxy, talker, count, reset):
    ask()
    proxy.answers.break_after(count, reset=reset)

    heard, end = ask()
    assert (end, ANSWER.startswith(heard)) == ("reset" if reset else "cut", True)
    assert reset or len(heard) == count
    assert ask() == (ANSWER, "whole")
    assert (proxy.connections, talker.heard) == (3, b"?\n" * 3)


def test_requests_break_at_the_byte_or_are_heard_without_an_answer(ask, proxy, talker):
    proxy.requests.break_after(5)
    assert ask(question=b"0123456789\n")[0] == b""
    assert talker.ended.wait(5)
    assert talker.heard == b"01234"

    proxy.lose_answers()
    assert [ask() for _ in range(2)] == [(b"", "cut")] * 2
    assert talker.heard == b"01234?\n?\n"


def test_bytes_are_held_back_or_changed_where_that_is_said_and_nothing_happens_before_there_is_one(ask, proxy):
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as line:
        go = proxy.answers.hold(after=10)
        assert ask(line, size=10) == (ANSWER[:10], "whole")
        go.set()
        assert ask(line, question=b"", size=SIZE - 10) == (ANSWER[10:], "whole")

        asked = []
        for _ in range(50):  # told at once after an answer, when the proxy may still be busy with it
            proxy.answers.at(0, lambda: asked.append(proxy.requests.passed))
            assert ask(line) == (ANSWER, "whole")
        assert asked == list(range(4, 104, 2))

        proxy.answers.flip(70_000)
        heard, _ = ask(line)
        assert [i for i, (a, b) in enumerate(zip(heard, ANSWER, strict=True)) if a != b] == [70_000]


def test_answers_of_s3_break_at_the_byte_and_bytes_are_changed_where_that_is_said(s3_server, s3_bucket):
    checksums = dict.fromkeys(("request_checksum_calculation", "response_checksum_validation"), "when_required")
    config = Config(retries={"total_max_attempts": 1}, **checksums, s3={"payload_signing_enabled": False})
    place = {"Bucket": s3_bucket, "Key": "key"}
    with HttpProxy(*s3_server.endpoint_url.removeprefix("http://").split(":")) as gateway:
        s3 = boto3.client("s3", endpoint_url=gateway.url, config=config)
        gateway.fail("put", flip_request=70_000)
        s3.put_object(**place, Body=BODY)
        gateway.fail("get", flip_answer=100_000)
        heard = s3.get_object(**place)["Body"].read()
        assert [i for i, (a, b) in enumerate(zip(heard, BODY, strict=True)) if a != b] == [70_000, 100_000]

        for at, reset in ((0, False), (0, True), (60_000, False), (60_000, True), (len(BODY) - 1, False)):
            gateway.fail("get", break_answer=at, reset=reset)
            body, heard = s3.get_object(**place)["Body"], b""
            with pytest.raises(ResponseStreamingError if reset else IncompleteReadError):
                while piece := body.read(1000):
                    heard += piece
            assert len(heard) <= at if reset else len(heard) == at
            assert BODY[:70_000].startswith(heard[:70_000])
        s3.close()
