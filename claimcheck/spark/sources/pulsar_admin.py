"""What the broker's web service is asked, where it may be."""

from __future__ import annotations

import http.client
import json
import ssl
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

from claimcheck.errors import ConfigError, TransportError
from claimcheck.spark.sources.errors import AccessError
from claimcheck.spark.sources.pulsar_access import not_trusted, why
from claimcheck.spark.sources.pulsar_connection import Connection
from claimcheck.spark.sources.pulsar_offsets import full_name

__all__ = ["ask_limit", "check_topic"]

_ADMIN_SECONDS = 10


def check_topic(connection: Connection, topic: str) -> None:
    """Make sure that a topic is there, where a web service may be asked; clients would create it.

    Raises:
        ConfigError: It is not.
        AccessError: The web service refuses the token, or is not trusted.
        TransportError: It did not answer.
    """
    if connection.admin_url is None:
        return
    path = _path(topic)
    metadata = _ask(connection, f"{path}/partitions")
    if metadata is None or (not metadata.get("partitions") and _ask(connection, f"{path}/stats") is None):
        raise ConfigError(
            f"topic: found {topic}, which is not there, expected the name of a topic that is",
            path="topic",
            found=topic,
            expected="the name of a topic that is there",
        )


def ask_limit(connection: Connection, topic: str) -> int:
    """Ask the web service how large a message may be: the broker's own limit, or the topic's where that is less.

    Raises:
        AccessError: It refuses the token, or is not trusted.
        TransportError: It did not answer.
    """
    settings = _ask(connection, "brokers/configuration/runtime")
    if settings is None:
        raise TransportError("adminUrl: the web service does not know its brokers' settings")
    broker = int(settings["maxMessageSize"])
    return min(broker, int(_ask(connection, f"{_path(topic)}/maxMessageSize") or broker))


def _path(topic: str) -> str:
    return urllib.parse.quote(full_name(topic).replace("://", "/"))


def _ask(connection: Connection, path: str) -> Any:
    """What the web service says, ``None`` for what is not there."""
    token = connection.token()
    url = (connection.admin_url or "").rstrip("/")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(f"{url}/admin/v2/{path}", headers=headers)
    tls = connection.trust(None) if url.startswith("https:") else None
    try:
        opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=tls), _SameSecrecy())
        with opener.open(request, timeout=_ADMIN_SECONDS) as response:
            body = response.read()
        return json.loads(body) if body.strip() else None
    except (OSError, ValueError, http.client.HTTPException) as error:
        if isinstance(error, urllib.error.HTTPError) and error.code == 404:
            return None
        raise _unanswered(connection, f"adminUrl: the web service did not tell {path}", error) from error


class _SameSecrecy(urllib.request.HTTPRedirectHandler):
    """Follows a broker to another one, but never out of TLS: the token goes along."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        if req.full_url.startswith("https:") and not newurl.startswith("https:"):
            raise urllib.error.HTTPError(req.full_url, code, "leads out of TLS", headers, fp)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _unanswered(connection: Connection, text: str, error: Exception) -> TransportError:
    where = urllib.parse.urlsplit(connection.admin_url or "").hostname or ""
    reason = getattr(error, "reason", None)
    if isinstance(reason, ssl.SSLCertVerificationError):
        return not_trusted(where, reason.verify_message, text)
    code = getattr(error, "code", None)
    if code in (401, 403):  # the first of them for people whom it knows, too
        may_not = AccessError(f"{text}: who the token is for may not ask. Without adminUrl nobody is asked")
        return why(connection, text) or may_not
    return TransportError(f"{text}{f' ({code})' if code else ''}: {type(error).__name__}")
