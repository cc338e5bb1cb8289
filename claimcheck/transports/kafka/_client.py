"""The client library confluent-kafka: lazy import, type of records, errors, and methods that its clients share."""

from __future__ import annotations

import re
from types import ModuleType
from typing import TYPE_CHECKING, Any

from claimcheck._send.classification import classifier
from claimcheck._validation import check_type
from claimcheck.errors import TransportError, import_vendor
from claimcheck.transports._common.delegation import Closing, Delegated

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message

    class Record(Message[bytes, bytes]):
        """A message that came from a partition or was sent to one."""

        def topic(self) -> str: ...
        def partition(self) -> int: ...
        def offset(self) -> int: ...


class MissingReportError(TransportError):
    """A record has no delivery report, so the outcome of a chunk is unknown."""


class OffsetStoreError(TransportError):
    """The consumer itself stores the offset of every record it returns, including chunks of incomplete payloads."""


def vendor() -> ModuleType:
    return import_vendor("confluent_kafka", extra="kafka")


def native_client(wrapper: object, kind: str) -> Any:
    """Return the blocking client inside an object of `confluent_kafka.aio`."""
    aio = import_vendor("confluent_kafka.aio", extra="kafka")
    _check_client(kind.lower(), wrapper, getattr(aio, f"AIO{kind}"), f"confluent_kafka.aio.AIO{kind}")
    return getattr(wrapper, f"_{kind.lower()}")


def unwrapped(name: str, client: Any, kind: str) -> Any:
    """Check a client, a subclass or a proxy; returns it without a proxy of OpenTelemetry, which lacks most methods."""
    library = vendor()
    _check_client(name, client, (getattr(library, kind), getattr(library.cimpl, kind)), f"confluent_kafka.{kind}")
    return getattr(client, f"original_{kind.lower()}", lambda: client)()


def _check_client(name: str, client: object, kinds: Any, kind: str) -> None:
    """Check the type of a client; those of the vendor that convert values would get envelopes."""
    converts = any(re.match("Avro|(Async)?(S|Des)erializing", base.__name__) for base in type(client).__mro__)
    expected = f"a {kind} that neither serializes nor deserializes: an envelope is not a value of yours"
    check_type(name, client, valid=isinstance(client, kinds) and not converts, expected=expected)


# The producer's own calls and reports, where other codes are definite as well: the broker or the client rejected the
# record before storing it, observed on a broker of version 4.2 with librdkafka 2.16. Timeouts, lost connections and
# purges of records in flight are not in the list: the record may be in the topic.
_REJECTIONS = {
    "TOPIC_AUTHORIZATION_FAILED", "TOPIC_EXCEPTION", "_FATAL", "_INVALID_ARG", "_PURGE_QUEUE", "_STATE",
    "_UNKNOWN_PARTITION", "_UNKNOWN_TOPIC",
}  # fmt: skip
_REFUSED_CALLS = ("BufferError", "RuntimeError", "TypeError", "ValueError")

classify = classifier(
    {
        ("cimpl", "KafkaException"): frozenset(_REJECTIONS),
        **{("builtins", name): frozenset() for name in _REFUSED_CALLS},
    }
)


def exception_of(error: KafkaError) -> Exception:
    exception: Exception = vendor().KafkaException(error)
    return exception


class NativeClient(Delegated, Closing):
    """A wrapper of a client, with all of its methods."""

    delegated = frozenset({"cluster_id", "list_topics", "set_sasl_credentials"})
