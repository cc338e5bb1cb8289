"""A client for the web service of a Pulsar broker (the admin REST API)."""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from http.client import HTTPMessage
from pathlib import Path
from typing import IO, Any

from claimcheck._validation import fail
from claimcheck.errors import TransportError

MAX_MESSAGE_BYTES = 5 << 20
"""The broker's default, 5 MiB."""

_SECONDS = 10.0
_MAX_BYTES = 16 << 20
_MAX_TEXT = 2000


class AdminError(TransportError):
    """The web service did not answer a request, or refused it."""

    def __init__(self, text: str, *, status: int | None = None, reason: str = "") -> None:
        super().__init__(text)
        self.status = status
        self.reason = reason


class AdminClient:
    """Requests to one web service. Certificates and host names are verified."""

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        trust: ssl.SSLContext | None = None,
        timeout_seconds: float = _SECONDS,
    ) -> None:
        try:
            parts = urllib.parse.urlsplit(url)
        except ValueError as error:
            raise AdminError(f"admin_url is not a URL: {error}") from error
        if parts.scheme not in ("http", "https"):
            raise AdminError("admin_url must begin with http:// or https://")
        if "@" in parts.netloc:  # urllib takes them for a host, and its errors quote them
            raise AdminError("admin_url must have no credentials: use the headers")
        self._url = url.rstrip("/")
        self._headers = dict(headers or {})
        self._timeout_seconds = timeout_seconds
        self.date: str | None = None
        """The ``Date`` header of the last response."""
        secure = urllib.request.HTTPSHandler(context=trust or ssl.create_default_context())
        self._opener = urllib.request.build_opener(secure, _Redirects())

    def __repr__(self) -> str:
        return f"<AdminClient of {urllib.parse.urlsplit(self._url).hostname}>"

    def get(self, path: str) -> Any:
        """Return the decoded JSON at a path below ``/admin/v2/``; ``None`` for an empty response or a 404."""
        try:
            body = self.send("GET", path)
            return json.loads(body) if body.strip() else None
        except AdminError as error:
            if error.status == 404:
                return None
            raise
        except ValueError as error:
            raise AdminError(f"the web service did not answer {path}: {type(error).__name__}") from error

    def send(self, method: str, path: str, body: object = None) -> bytes:
        """Send a request to a path below ``/admin/v2/``, with a body as JSON, and return the response."""
        data = None if body is None else json.dumps(body).encode()
        headers = self._headers if method == "GET" else {"Content-Type": "application/json", **self._headers}
        request = urllib.request.Request(f"{self._url}/admin/v2/{path}", data, headers, method=method)
        try:
            with self._opener.open(request, timeout=self._timeout_seconds) as response:
                self.date = response.headers["Date"]
                return bytes(response.read(_MAX_BYTES))
        except urllib.error.HTTPError as error:
            with error:
                self.date = error.headers["Date"]
                reason = _reason(error)
            raise AdminError(self._refused(path, error), status=error.code, reason=reason) from error
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise AdminError(f"the web service did not answer {path}: {type(error).__name__}") from error

    def max_message_bytes(self, topic: str) -> int:
        """Return the limit of one message: the broker's, or the topic's if that is less. Raises as `get`."""
        path = "brokers/configuration/runtime"
        settings = self.get(path)
        if settings is None:
            raise AdminError(f"the web service did not answer {path} (404)", status=404)
        broker = int(settings["maxMessageSize"])
        return min(broker, int(self.get(f"{topic_path(topic)}/maxMessageSize") or broker))

    def retention(self, topic: str) -> dict[str, int]:
        """Return the retention policy of a topic, else of its namespace; empty if neither has one. Raises as `get`."""
        path = topic_path(topic)
        namespace = "/".join(path.split("/")[1:3])
        return self.get(f"{path}/retention") or self.get(f"namespaces/{namespace}/retention") or {}

    def cluster(self) -> str:
        """Return the name of the broker's cluster, with ``pulsar:`` before it. Raises as `get`."""
        names = [name for name in self.get("clusters") or () if name != "global"]
        if len(names) != 1:
            settings = self.get("brokers/configuration/runtime") or {}
            names = [name for name in (settings.get("clusterName"),) if name]
        if not names:
            raise AdminError("the web service does not name its cluster")
        return f"pulsar:{names[0]}"

    def _refused(self, path: str, error: urllib.error.HTTPError) -> str:
        text = f"the web service did not answer {path} ({error.code})"
        if self._headers and _origin(error.url) != _origin(self._url):
            host = urllib.parse.urlsplit(error.url).hostname
            text += f": it redirected to {host}, where the headers (a token, for example) are not sent"
        return text


def ask_limit(
    admin_url: str, topic: str, *, headers: Mapping[str, str] | None = None, ca_file: str | None = None
) -> int:
    """Return a broker's limit for one message: its own, or the topic's if that is less. Verifies certificates.

    Args:
        admin_url: The web service, for example ``http://localhost:8080``.
        topic: With or without its ``persistent://tenant/namespace/``.
        headers: Sent with the request, for example ``{"Authorization": "Bearer ..."}``; never to another host, even if
            the web service redirects there.
        ca_file: CA certificates (PEM) to trust; by default the system's.

    Raises:
        TransportError: The broker did not answer, or refused the request.
        ConfigError: ``ca_file`` cannot be used.
    """
    trust = trusting(ca_file, option="ca_file")
    return AdminClient(admin_url, headers=headers, trust=trust).max_message_bytes(topic)


def full_name(topic: str) -> str:
    """Return the complete name of a topic: ``orders`` is ``persistent://public/default/orders``."""
    if "://" in topic:
        return topic
    return f"persistent://{topic}" if topic.count("/") == 2 else f"persistent://public/default/{topic}"


def topic_path(topic: str) -> str:
    """Return the path of a topic in the web service."""
    return urllib.parse.quote(full_name(topic).replace("://", "/"))


def trusting(ca_file: str | Path | None, *, option: str) -> ssl.SSLContext:
    """Return an SSL context that verifies certificates and host names."""
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:  # includes SSLError
        found = f"a file without readable certificates ({type(error).__name__})"
        fail(option, found=found, expected="the path of a PEM file with certificates")


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects, but not from https to http, and without the caller's headers to another origin."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> urllib.request.Request | None:
        allowed = ("https",) if req.full_url.startswith("https:") else ("http", "https")
        if urllib.parse.urlsplit(newurl).scheme not in allowed:
            raise urllib.error.HTTPError(req.full_url, code, "redirected from https to http", headers, fp)
        redirected: urllib.request.Request | None
        if code in (307, 308):  # to the broker that owns the topic; urllib follows them for GET only
            redirected = urllib.request.Request(newurl, req.data, dict(req.headers), method=req.get_method())
        else:
            redirected = super().redirect_request(req, fp, code, msg, headers, newurl)
        if redirected is not None and _origin(newurl) != _origin(req.full_url):
            redirected.headers = {name: text for name, text in redirected.headers.items() if name == "Content-type"}
        return redirected


def _reason(error: urllib.error.HTTPError) -> str:
    """Return the reason in an error's body, which is usually JSON."""
    body = b""
    with contextlib.suppress(OSError, http.client.HTTPException):
        body = error.read(_MAX_TEXT)
    with contextlib.suppress(ValueError, TypeError, KeyError):
        return str(json.loads(body)["reason"])
    return body.decode("utf-8", "replace").strip() or "no reason given"


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urllib.parse.urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)
