"""Emulators of Google Cloud Storage and of Azure's blob storage, which keep payloads in memory or in a folder."""

from __future__ import annotations

import base64
import contextlib
import datetime
import hmac
import json
import urllib.request
from collections.abc import Iterator

from tests.real.process import Location, accepts_connections, running

BUCKET = "payloads"
_ACCOUNT = "devstoreaccount1"
# Published with the emulator; it opens nothing else.
_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="  # codespell:ignore


@contextlib.contextmanager
def google() -> Iterator[tuple[str, dict[str, str]]]:
    """Run fake-gcs-server with a bucket; yields its address and the environment of its clients."""

    def command(location: Location) -> list[str]:
        url = f"http://127.0.0.1:{location.port}"
        return ["fake-gcs-server", "-scheme", "http", "-host", "127.0.0.1", "-port", str(location.port),
                "-external-url", url, "-public-host", f"127.0.0.1:{location.port}", "-backend", "memory"]  # fmt: skip

    with running(command, accepts_connections) as server:
        url = f"http://127.0.0.1:{server.port}"
        _request("POST", f"{url}/storage/v1/b", {"Content-Type": "application/json"}, {"name": BUCKET})
        account = {
            "gcs_base_url": url,
            "disable_oauth": True,
            "client_email": "",
            "private_key": "",
            "private_key_id": "",
        }
        key = server.location.folder / "account.json"
        key.write_text(json.dumps(account))
        yield url, {"GOOGLE_SERVICE_ACCOUNT": str(key)}


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
    signed = "PUT" + "\n" * 12 + f"{named}/{_ACCOUNT}/{_ACCOUNT}/{BUCKET}\nrestype:container"
    mac = hmac.digest(base64.b64decode(_KEY), signed.encode(), "sha256")
    headers["Authorization"] = f"SharedKey {_ACCOUNT}:{base64.b64encode(mac).decode()}"
    _request("PUT", f"{url}/{BUCKET}?restype=container", headers, None)


def _request(method: str, url: str, headers: dict[str, str], body: object) -> None:
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data, headers, method=method), timeout=30):
        pass
