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

# A line --------------------------------------------------------------------------------------------------------------

ANSWER = bytes(range(256)) * 400
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
def call(proxy):
    """Connects through the proxy."""
    with contextlib.ExitStack() as lines:
        yield lambda: lines.enter_context(socket.create_connection(("127.0.0.1", proxy.port), timeout=10))


def hear(line, size=SIZE):
    """Everything that comes, up to a size or to the end of the connection; and how it ended."""
    heard = b""
    try:
        while len(heard) < size and (data := line.recv(size - len(heard))):
            heard += data
    except ConnectionResetError:
        return heard, "reset"
    return heard, "whole" if len(heard) == size else "cut"


def ask(line, size=SIZE):
    line.sendall(b"?\n")
    return hear(line, size)


@pytest.mark.parametrize("count", [1, 65_536, SIZE - 1])
@pytest.mark.parametrize("reset", [False, True])
def test_answers_break_at_the_byte_and_only_once(call, proxy, talker, count, reset):
    ask(call())
    proxy.answers.break_after(count, reset=reset)

    heard, end = ask(call())
    assert (end, ANSWER.startswith(heard)) == ("reset" if reset else "cut", True)
    assert reset or len(heard) == count
    assert ask(call()) == (ANSWER, "whole")
    assert (proxy.connections, talker.heard) == (3, b"?\n" * 3)


def test_requests_break_at_the_byte_or_are_heard_without_an_answer(call, proxy, talker):
    proxy.requests.break_after(5)
    line = call()
    line.sendall(b"0123456789\n")

    assert hear(line)[0] == b""
    assert talker.ended.wait(5)
    assert talker.heard == b"01234"

    proxy.lose_answers()
    assert [ask(call()) for _ in range(2)] == [(b"", "cut")] * 2
    assert talker.heard == b"01234?\n?\n"


def test_all_lines_are_cut_or_reset_or_dead_on_demand(call, proxy):
    port = proxy.port
    for end, how in ((proxy.cut, "cut"), (proxy.reset, "reset"), (proxy.die, "cut")):
        first, second = call(), call()
        ask(first), ask(second)
        end()
        assert (hear(first), hear(second)) == ((b"", how), (b"", how))

    with pytest.raises(ConnectionRefusedError):
        call()
    proxy.revive()
    assert proxy.port == port
    assert ask(call()) == (ANSWER, "whole")


def test_answers_are_held_back(call, proxy):
    go = proxy.answers.hold(after=10)
    line = call()
    line.settimeout(0.2)
    line.sendall(b"?\n")

    assert hear(line, 10) == (ANSWER[:10], "whole")
    with pytest.raises(TimeoutError):
        line.recv(1)

    go.set()
    line.settimeout(10)
    assert hear(line, SIZE - 10) == (ANSWER[10:], "whole")


def test_nothing_happens_before_there_is_a_byte(call, proxy):
    """Told at once after an answer, when the proxy may still be busy with it."""
    line, asked = call(), []
    for _ in range(50):
        proxy.answers.at(0, lambda: asked.append(proxy.requests.passed))
        assert ask(line) == (ANSWER, "whole")

    assert asked == list(range(2, 102, 2))


def test_one_byte_is_changed_and_a_slow_lane_is_slow(call, proxy):
    ask(call())
    proxy.answers.flip(70_000)

    heard, _ = ask(call())

    assert [i for i, (a, b) in enumerate(zip(heard, ANSWER, strict=True)) if a != b] == [70_000]

    proxy.answers.throttle(500_000)
    began = time.monotonic()
    assert ask(call()) == (ANSWER, "whole")
    assert time.monotonic() - began >= 0.2


# Requests to S3 ------------------------------------------------------------------------------------------------------

MIB = 1 << 20
BODY = bytes(range(256)) * 4096


@pytest.fixture
def gateway(s3_server):
    with HttpProxy(*s3_server.endpoint_url.removeprefix("http://").split(":")) as gateway:
        yield gateway


@pytest.fixture
def s3(gateway):
    """A client that tries once only."""
    checksums = dict.fromkeys(("request_checksum_calculation", "response_checksum_validation"), "when_required")
    settings = {**checksums, "s3": {"payload_signing_enabled": False}}
    config = Config(retries={"total_max_attempts": 1}, **settings)
    client = boto3.client("s3", endpoint_url=gateway.url, config=config)
    yield client
    client.close()


@pytest.fixture
def put(s3, s3_bucket):
    return lambda body=BODY: s3.put_object(Bucket=s3_bucket, Key="key", Body=body)


@pytest.fixture
def get(s3, s3_bucket):
    return lambda: s3.get_object(Bucket=s3_bucket, Key="key")["Body"].read()


def test_requests_are_told_apart(put, get, s3, s3_bucket, gateway):
    put()
    upload = s3.create_multipart_upload(Bucket=s3_bucket, Key="large")["UploadId"]
    place = {"Bucket": s3_bucket, "Key": "large", "UploadId": upload}
    parts = [s3.upload_part(**place, PartNumber=i, Body=bytes(5 * MIB)) for i in (1, 2)]
    done = [{"PartNumber": i, "ETag": part["ETag"]} for i, part in enumerate(parts, 1)]
    s3.complete_multipart_upload(**place, MultipartUpload={"Parts": done})
    other = s3.create_multipart_upload(Bucket=s3_bucket, Key="other")["UploadId"]
    s3.abort_multipart_upload(Bucket=s3_bucket, Key="other", UploadId=other)

    assert get() == BODY
    assert s3.head_object(Bucket=s3_bucket, Key="large")["ContentLength"] == 10 * MIB
    s3.delete_object(Bucket=s3_bucket, Key="large")
    assert gateway.seen == ["put", "begin", "part", "part", "complete", "begin", "abort", "get", "head", "delete"]


@pytest.mark.parametrize(("how", "stored"), [({"break_request": 1000}, b"before"), ({"lose_answer": True}, BODY)])
def test_a_request_that_breaks_is_not_done_and_one_without_an_answer_is(put, get, gateway, how, stored):
    put(b"before")
    gateway.fail("put", **how)

    with pytest.raises(ConnectionClosedError):
        put()

    assert get() == stored


@pytest.mark.parametrize("at", [0, 100_000, len(BODY) - 1])
@pytest.mark.parametrize("reset", [False, True])
def test_an_answer_breaks_at_a_byte(put, s3, s3_bucket, gateway, at, reset):
    put()
    gateway.fail("get", break_answer=at, reset=reset)
    body = s3.get_object(Bucket=s3_bucket, Key="key")["Body"]

    heard = bytearray()
    with pytest.raises(ResponseStreamingError if reset else IncompleteReadError):
        while piece := body.read(1000):
            heard += piece

    assert len(heard) <= at if reset else len(heard) == at
    assert heard == BODY[: len(heard)]


def test_refusals_are_counted_and_bytes_changed(put, get, gateway):
    gateway.fail("put", flip_request=70_000)
    put()
    gateway.fail("get", flip_answer=100_000, after=2)
    gateway.fail("get", status=503, times=2)

    for _ in range(2):
        with pytest.raises(ClientError, match="SlowDown"):
            get()
    assert [i for i, (a, b) in enumerate(zip(get(), BODY, strict=True)) if a != b] == [70_000, 100_000]
