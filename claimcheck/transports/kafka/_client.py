"""The client library confluent-kafka: imported at first use, and the methods that its clients have in common."""

from __future__ import annotations

from typing import Any

from claimcheck._registry import import_vendor
from claimcheck._validation import check_type
from claimcheck.transports._common.delegation import Closing

__all__ = ["NativeClient", "vendor", "within"]


def vendor() -> Any:
    """Return the client library.

    Raises:
        MissingDependencyError: It is not installed.
    """
    return import_vendor("confluent_kafka", extra="kafka")


def within(wrapper: Any, kind: str) -> Any:
    """Return the client that an object of `confluent_kafka.aio` wraps.

    Args:
        wrapper: The object.
        kind: ``Producer`` or ``Consumer``.

    Raises:
        ConfigError: It is of another type; also a `TypeError`.
    """
    aio = import_vendor("confluent_kafka.aio", extra="kafka")
    valid = type(wrapper) is getattr(aio, f"AIO{kind}")
    expected = f"a confluent_kafka.aio.AIO{kind}, not one that serializes or deserializes"
    check_type(kind.lower(), wrapper, valid=valid, expected=expected)
    return getattr(wrapper, f"_{kind.lower()}")


class NativeClient(Closing):
    """The methods of producers and consumers that are the client's own.

    Args:
        native: A `confluent_kafka.Producer` or `confluent_kafka.Consumer`.
    """

    def __init__(self, native: Any) -> None:
        self._native = native

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Any:
        """Return the cluster's metadata, of one topic or of all; see ``list_topics`` of the client."""
        return self._native.list_topics(*([] if topic is None else [topic]), timeout=timeout)

    def cluster_id(self, timeout: float = -1) -> Any:
        """Return the id of the cluster; see ``cluster_id`` of the client."""
        return self._native.cluster_id(timeout)

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Set the SASL credentials for new connections; see ``set_sasl_credentials`` of the client."""
        self._native.set_sasl_credentials(username, password)
