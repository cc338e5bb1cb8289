"""Requests to the broker's web service, if ``adminUrl`` names one."""

from __future__ import annotations

import ssl
import urllib.parse
from typing import Any

from claimcheck.errors import ConfigError, TransportError
from claimcheck.spark.sources._errors import AccessError
from claimcheck.spark.sources._pulsar.client import not_trusted, why
from claimcheck.spark.sources._pulsar.connection import Connection
from claimcheck.transports.pulsar._admin import AdminClient, AdminError, topic_path

__all__ = ["ask_limit", "check_topic"]


def check_topic(connection: Connection, topic: str) -> None:
    """Make sure that a topic is there, where a web service may be asked; clients would create it.

    Raises:
        ConfigError: It is not.
        AccessError: The web service refuses the token, or is not trusted.
        TransportError: It did not answer.
    """
    if connection.admin_url is None:
        return
    path = topic_path(topic)
    admin = _client(connection)
    try:
        metadata = admin.get(f"{path}/partitions")
        missing = metadata is None or (not metadata.get("partitions") and admin.get(f"{path}/stats") is None)
    except AdminError as error:
        raise _explained(connection, error) from error
    if missing:
        raise ConfigError(
            f"topic: found {topic}, which is not there, expected the name of a topic that is",
            path="topic",
            found=topic,
            expected="the name of a topic that is there",
        )


def ask_limit(connection: Connection, topic: str) -> int:
    """Ask the web service for the limit of one message: the broker's own, or the topic's if that is less.

    Raises:
        AccessError: It refuses the token, or is not trusted.
        TransportError: It did not answer.
    """
    try:
        return _client(connection).max_message_bytes(topic)
    except AdminError as error:
        raise _explained(connection, error) from error


def _client(connection: Connection) -> AdminClient:
    token, url = connection.token(), connection.admin_url or ""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return AdminClient(url, headers=headers, trust=connection.trust(None) if url.startswith("https:") else None)


def _explained(connection: Connection, error: AdminError) -> TransportError:
    text = f"adminUrl: {error}"
    reason: Any = getattr(error.__cause__, "reason", None)
    if isinstance(reason, ssl.SSLCertVerificationError):
        return not_trusted(
            urllib.parse.urlsplit(connection.admin_url or "").hostname or "", reason.verify_message, text
        )
    if error.status in (401, 403):  # 401 also for a valid token that lacks the permission
        forbidden = AccessError(f"{text}: the token's role lacks the permission. Without adminUrl no request is made")
        return why(connection, text) or forbidden
    return TransportError(text)
