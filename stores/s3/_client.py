"""The boto3 client that the store uses, set up to do nothing with payloads but send them."""

from __future__ import annotations

import functools
import threading
from typing import Any

from claimcheck._registry import import_vendor
from claimcheck.stores.s3._upload import attach

__all__ = ["connect"]

_SESSION_LOCK = threading.Lock()  # clients may be used by several threads, sessions may not


def connect(place: dict[str, str | None], timeouts: dict[str, float], *, connections: int) -> Any:
    """Make a client.

    Args:
        place: ``endpoint_url``, ``region_name`` and ``verify``, a file of certificates.
        timeouts: ``connect_timeout`` and ``read_timeout``.
        connections: To keep for the next use.
    """
    config = import_vendor("botocore.config", extra="s3").Config(
        # We bring our own checksum, or check one; the SDK's would be a second pass in Python over every payload.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        s3={"payload_signing_enabled": False},
        retries={"mode": "standard", "total_max_attempts": 3},
        parameter_validation=False,  # of arguments that are all our own
        user_agent=_user_agent(),
        max_pool_connections=connections,
        tcp_keepalive=True,
        **timeouts,
    )
    with _SESSION_LOCK:
        client = session().client("s3", config=config, **place)
    attach(client)
    return client


@functools.cache
def session() -> Any:
    """One for the process: it reads a long description of S3, which is most of the time that a client takes to make."""
    return import_vendor("boto3", extra="s3").session.Session()


def _user_agent() -> str:
    """What the SDK would otherwise put together anew for each request, from forty pieces."""
    return f"claimcheck Boto3/{import_vendor('boto3', extra='s3').__version__}"
