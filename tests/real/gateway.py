"""An S3 server: versitygw over a folder."""

from __future__ import annotations

import contextlib
import functools
import http.client
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.real.authority import make_certificate
from tests.real.process import Spot, running

ACCESS_KEY = "test"
SECRET_KEY = "testsecret"


@dataclass(frozen=True)
class S3Server:
    """Where a test finds its S3 server, and who it may say it is."""

    endpoint_url: str
    access_key: str = ACCESS_KEY
    secret_key: str = field(default=SECRET_KEY, repr=False)
    region: str = "us-east-1"


@contextlib.contextmanager
def s3() -> Iterator[S3Server]:
    """Run an S3 gateway over a temporary folder."""
    environment = {"ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY}
    with running(_command, _answers, environment) as server:
        yield S3Server(f"http://127.0.0.1:{server.port}")


@contextlib.contextmanager
def s3_tls() -> Iterator[tuple[int, Path]]:
    """Run one with TLS, with a certificate for ``localhost``; gives its port and the certificate of the authority."""
    environment = {"ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY}
    prepare = functools.partial(make_certificate, names="DNS:localhost")
    with running(_tls_command, _listens, environment, prepare=prepare) as server:
        yield server.port, server.spot.folder / "ca.crt"


def _tls_command(spot: Spot) -> list[str]:
    program, *arguments = _command(spot)
    return [program, "--cert", f"{spot.folder}/server.crt", "--key", f"{spot.folder}/server.key", *arguments]


def _listens(spot: Spot) -> bool:
    with socket.create_connection(("127.0.0.1", spot.port), timeout=1):
        return True


def _command(spot: Spot) -> list[str]:
    root, meta = spot.folder / "root", spot.folder / "meta"  # its notes may not lie in the tree that it serves
    root.mkdir(exist_ok=True)
    meta.mkdir(exist_ok=True)
    return ["versitygw", "--port", f"127.0.0.1:{spot.port}", "posix", "--sidecar", str(meta), str(root)]


def _answers(spot: Spot) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", spot.port, timeout=1)
    try:
        connection.request("GET", "/")
        return connection.getresponse().status < 500  # an unsigned request is refused: that is an answer
    finally:
        connection.close()
