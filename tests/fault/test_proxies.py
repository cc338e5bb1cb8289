"""The tests of faults are worth what their proxies are: they break at the byte that was asked for, and nowhere else."""

import contextlib
import socket
import socketserver
import threading
import time

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError, ConnectionClosedError, IncompleteReadError, ResponseStreamingError

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


def test_requests_break_at_the_byte_or_are_heard_without_an_answer_or_find_nobody(ask, proxy, talker):
    proxy.requests.break_after(5)
    assert ask(question=b"0123456789\n")[0] == b""
    assert talker.ended.wait(5)
    assert talker.heard == b"01234"

    proxy.lose_answers()
    assert [ask() for _ in range(2)] == [(b"", "cut")] * 2
    assert talker.heard == b"01234?\n?\n"
    proxy.free()

    port = proxy.port
    for end, how in ((proxy.cut, "cut"), (proxy.reset, "reset"), (proxy.die, "cut")):
        with socket.create_connection(("127.0.0.1", port), timeout=10) as line:
            ask(line)
            end()
            assert ask(line, question=b"") == (b"", how)
    with pytest.raises(ConnectionRefusedError):
        ask()
    proxy.revive()
    assert proxy.port == port
    assert ask() == (ANSWER, "whole")


def test_answers_are_held_back_changed_or_slow_and_nothing_happens_before_there_is_a_byte(ask, proxy):
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=0.2) as line:
        go = proxy.answers.hold(after=10)
        assert ask(line, size=10) == (ANSWER[:10], "whole")
        with pytest.raises(TimeoutError):
            line.recv(1)
        go.set()
        line.settimeout(10)
        assert ask(line, question=b"", size=SIZE - 10) == (ANSWER[10:], "whole")

        asked = []
        for _ in range(50):  # told at once after an answer, when the proxy may still be busy with it
            proxy.answers.at(0, lambda: asked.append(proxy.requests.passed))
            assert ask(line) == (ANSWER, "whole")
        assert asked == list(range(4, 104, 2))

        proxy.answers.flip(70_000)
        heard, _ = ask(line)
        assert [i for i, (a, b) in enumerate(zip(heard, ANSWER, strict=True)) if a != b] == [70_000]
        proxy.answers.throttle(500_000)
        began = time.monotonic()
        assert ask(line) == (ANSWER, "whole")
        assert time.monotonic() - began >= 0.2


def test_requests_to_s3_are_told_apart_broken_at_a_byte_refused_or_changed(s3_server, s3_bucket):
    checksums = dict.fromkeys(("request_checksum_calculation", "response_checksum_validation"), "when_required")
    config = Config(retries={"total_max_attempts": 1}, **checksums, s3={"payload_signing_enabled": False})
    place = {"Bucket": s3_bucket, "Key": "key"}
    with HttpProxy(*s3_server.endpoint_url.removeprefix("http://").split(":")) as gateway:
        s3 = boto3.client("s3", endpoint_url=gateway.url, config=config)

        def get():
            return s3.get_object(**place)["Body"].read()

        upload = {**place, "UploadId": s3.create_multipart_upload(**place)["UploadId"]}
        part = s3.upload_part(**upload, PartNumber=1, Body=b"before")
        s3.complete_multipart_upload(**upload, MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]})
        s3.abort_multipart_upload(**place, UploadId=s3.create_multipart_upload(**place)["UploadId"])
        s3.head_object(**place)
        for how, expected in (({"break_request": 1000}, b"before"), ({"lose_answer": True}, BODY)):
            gateway.fail("put", **how)
            with pytest.raises(ConnectionClosedError):
                s3.put_object(**place, Body=BODY)
            assert get() == expected
        requests = ["begin", "part", "complete", "begin", "abort", "head", "put", "get", "put", "get"]
        assert gateway.seen == requests

        for at, reset in ((0, False), (0, True), (100_000, False), (100_000, True), (len(BODY) - 1, False)):
            gateway.fail("get", break_answer=at, reset=reset)
            body, heard = s3.get_object(**place)["Body"], b""
            with pytest.raises(ResponseStreamingError if reset else IncompleteReadError):
                while piece := body.read(1000):
                    heard += piece
            assert len(heard) <= at if reset else len(heard) == at
            assert BODY.startswith(heard)

        gateway.fail("put", flip_request=70_000)
        s3.put_object(**place, Body=BODY)
        gateway.fail("get", flip_answer=100_000, after=2)
        gateway.fail("get", status=503, times=2)
        for _ in range(2):
            with pytest.raises(ClientError, match="SlowDown"):
                get()
        assert [i for i, (a, b) in enumerate(zip(get(), BODY, strict=True)) if a != b] == [70_000, 100_000]
        s3.close()
