"""An S3 server, versitygw over a temporary folder, and Azurite, the emulator of Azure's blob storage."""

from __future__ import annotations

import base64
import contextlib
import datetime
import functools
import hmac
import http.client
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.real.process import Location, Server, accepts_connections, make_certificate, running

ACCESS_KEY = "test"
SECRET_KEY = "testsecret"


@dataclass(frozen=True)
class S3Server:
    """Address and credentials of an S3 server.

    Attributes:
        endpoint_url: For clients.
        access_key: Name of the account.
        secret_key: Its password.
        region: What clients sign requests for.
        server: The process, if the tests started it. A test may kill and restart its own; its data survives.
    """

    endpoint_url: str
    access_key: str = ACCESS_KEY
    secret_key: str = field(default=SECRET_KEY, repr=False)
    region: str = "us-east-1"
    server: Server | None = None


@contextlib.contextmanager
def s3(*, keep_alive: bool = False, prepare: Callable[[Path], None] = lambda folder: None) -> Iterator[S3Server]:
    """Run an S3 gateway over a temporary folder.

    Args:
        keep_alive: Whether it keeps connections, as Amazon's does; this one closes them by default.
        prepare: Fills the server's folder; what it serves is in ``root``.
    """
    environment = {"ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY}
    environment |= {"VGW_KEEP_ALIVE": "true"} if keep_alive else {}
    with running(_command, _answers, environment, prepare) as server:
        yield S3Server(f"http://127.0.0.1:{server.port}", server=server)


@contextlib.contextmanager
def s3_tls() -> Iterator[tuple[int, Path]]:
    """Run a gateway with TLS for ``localhost``; yields its port and the certificate of the authority."""
    environment = {"ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY}
    prepare = functools.partial(make_certificate, names="DNS:localhost")
    with running(_tls_command, accepts_connections, environment, prepare=prepare) as server:
        yield server.port, server.location.folder / "ca.crt"


def _tls_command(location: Location) -> list[str]:
    program, *arguments = _command(location)
    return [program, "--cert", f"{location.folder}/server.crt", "--key", f"{location.folder}/server.key", *arguments]


def _command(location: Location) -> list[str]:
    root, meta, accounts = (location.folder / name for name in ("root", "meta", "accounts"))
    for each in (root, meta, accounts):  # metadata may not be in the served tree
        each.mkdir(exist_ok=True)
    own = ["--port", f"127.0.0.1:{location.port}", "--iam-dir", str(accounts)]
    return ["versitygw", *own, "posix", "--sidecar", str(meta), str(root)]


def _answers(location: Location) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", location.port, timeout=1)
    try:
        connection.request("GET", "/")
        return connection.getresponse().status < 500  # it rejects the unsigned request, so it runs
    finally:
        connection.close()


# Azure ----------------------------------------------------------------------------------------------------------------


CONTAINER = "payloads"
_ACCOUNT = "devstoreaccount1"
# Published with the emulator; it opens nothing else.
_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="  # codespell:ignore


@contextlib.contextmanager
def azure() -> Iterator[tuple[str, dict[str, str]]]:
    """Run Azurite with a container; yields its address and the environment of its clients."""

    def command(location: Location) -> list[str]:
        return ["azurite-blob", "--blobHost", "127.0.0.1", "--blobPort", str(location.port), "--silent",
                "--location", str(location.folder), "--skipApiVersionCheck", "--disableTelemetry"]  # fmt: skip

    with running(command, accepts_connections) as server:
        url = f"http://127.0.0.1:{server.port}/{_ACCOUNT}"
        _create_container(url)
        yield url, {"AZURE_STORAGE_ACCOUNT_NAME": _ACCOUNT, "AZURE_STORAGE_ACCOUNT_KEY": _KEY}


def _create_container(url: str) -> None:
    """As the documentation of Azure's "Authorize with Shared Key" says."""
    date = datetime.datetime.now(datetime.UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
    headers = {"x-ms-date": date, "x-ms-version": "2021-08-06"}
    named = "".join(f"{name}:{value}\n" for name, value in headers.items())
    signed = "PUT" + "\n" * 12 + f"{named}/{_ACCOUNT}/{_ACCOUNT}/{CONTAINER}\nrestype:container"
    mac = hmac.digest(base64.b64decode(_KEY), signed.encode(), "sha256")
    headers["Authorization"] = f"SharedKey {_ACCOUNT}:{base64.b64encode(mac).decode()}"
    request = urllib.request.Request(f"{url}/{CONTAINER}?restype=container", headers=headers, method="PUT")
    urllib.request.urlopen(request, timeout=30).close()
