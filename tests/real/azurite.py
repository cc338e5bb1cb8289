"""Azurite, the emulator of Azure's blob storage."""

from __future__ import annotations

import base64
import contextlib
import datetime
import hmac
import urllib.request
from collections.abc import Iterator

from tests.real.process import Location, accepts_connections, running

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
