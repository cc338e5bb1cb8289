"""Apache Pulsar as the broker under test: pulsar-client with its own chunking for ``native``, and the wrappers else."""

from __future__ import annotations

import contextlib
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from claimcheck.errors import ClaimCheckError, ConfigError
from claimcheck.transports.pulsar import PulsarConsumer, PulsarProducer
from claimcheck.transports.pulsar._message import natives
from claimcheck.transports.pulsar._queries import (
    MAX_MESSAGE_BYTES,
    AdminClient,
    AdminError,
    PulsarTarget,
    full_name,
    internal_stats,
    topic_path,
    trusting,
    vendor,
)
from claimcheck.transports.pulsar._send import error_of
from tests.benchmarks.compare.broker import Broker, BrokerAddress, CompareError, Done, Mode, Received, received

if TYPE_CHECKING:
    from claimcheck._client import ClaimCheck

_MAX_PENDING_CHUNKS = 20_000
_SECONDS = 15.0
_POLL_SECONDS = 0.01
_QUEUE_BYTES = 16 << 20
_MAX_QUEUE = 1000
_MAX_TEXT = 200
_CONNECTING = {"NotConnected", "BrokerMetadataError", "ServiceUnitNotReady", "Disconnected"}


class _WebService(AdminClient):
    """The web service of a broker, with the requests that change something."""

    def send(self, method: str, path: str) -> bytes:
        """Send a request to a path below ``/admin/v2/``, and return the response."""
        url, headers = f"{self._url}/admin/v2/{path}", self._headers
        for _ in range(3):
            request = urllib.request.Request(url, None, {"Content-Type": "application/json", **headers}, method=method)
            try:
                with self._opener.open(request, timeout=self._timeout_seconds) as response:
                    return bytes(response.read())
            except urllib.error.HTTPError as error:
                with error:
                    reason = " ".join(error.read().decode("utf-8", "replace").split())[:_MAX_TEXT]
                if error.code not in (307, 308):
                    text = f"the web service did not answer {path} ({error.code}): {reason}"
                    raise AdminError(text, status=error.code) from error
                # To the broker that owns the topic; urllib follows them for GET only.
                url, headers = error.headers["Location"], {}
            except OSError as error:
                raise AdminError(f"the web service did not answer {path}: {type(error).__name__}") from error
        raise AdminError(f"the web service did not answer {path}: too many redirects")


class PulsarBroker(Broker):
    """A connection to a Pulsar cluster and its web service.

    Args:
        address: Its options are ``token``, ``tls_trust_certs_file_path``, ``listener_name``, and the ``namespace`` of
            new topics, by default ``public/default``.
    """

    bytes_source = "the broker's statistics"

    def __init__(self, address: BrokerAddress) -> None:
        self.address = address
        options = dict(address.options)
        self._namespace = options.pop("namespace", "public/default")
        ca_file = options.pop("tls_trust_certs_file_path", None)
        with _explained("answer"):
            target = PulsarTarget(
                address.url,
                admin_url=address.admin_url or "",
                topics=(),
                ca_file=ca_file,
                **options,  # type: ignore[arg-type]
            )
            trust = trusting(ca_file, option="tls_trust_certs_file_path")
            self._admin = _WebService(
                target.admin_url or "", headers=target.headers, trust=trust, timeout_seconds=_SECONDS
            )
            if self._admin.get(f"persistent/{self._namespace}") is None:
                raise CompareError(f"there is no namespace {self._namespace}: create it, or use another one")
            self._client = target.client(seconds=int(_SECONDS))
            nothing = self._full("claimcheck-compare-nothing")
            with contextlib.suppress(vendor().TopicNotFound):  # asking creates nothing
                self._client.get_topic_partitions(nothing)
        self.limit_bytes, version = MAX_MESSAGE_BYTES, ""
        with contextlib.suppress(AdminError):  # this token may not read it
            self.limit_bytes = self._admin.max_message_bytes(nothing)
            version = self._admin.send("GET", "brokers/version").decode("ascii", "replace").strip('" \n')[:40]
        self.label = f"Pulsar {version}".rstrip() + f" (pulsar-client {vendor().__version__})"

    # Topics ----------------------------------------------------------------------------------------------------

    def create_topic(self, topic: str, limit: int | None = None) -> None:
        """Create a topic; a limit is not needed, because the client's chunking splits larger messages."""
        with _explained(f"create topic {topic}"):
            self._admin.send("PUT", topic_path(self._full(topic)))

    def delete_topic(self, topic: str) -> None:
        with _explained(f"delete topic {topic}", allowed=404):
            self._admin.send("DELETE", f"{topic_path(self._full(topic))}?force=true")

    def topic_bytes(self, topic: str) -> int:
        with _explained(f"describe topic {topic}"):
            return int(internal_stats(self._admin, self._full(topic))["totalSize"])

    def close(self) -> None:
        self._client.close()

    def _full(self, topic: str) -> str:
        return full_name(f"{self._namespace}/{topic}")

    # Clients ---------------------------------------------------------------------------------------------------

    def producer(self, mode: Mode, topic: str, cc: ClaimCheck) -> _Producer:
        options: dict[str, Any] = {"block_if_queue_full": True}
        if mode == "native":  # with more chunks than pending messages, the client waits for itself and never returns
            options |= {"chunking_enabled": True, "max_pending_messages": _MAX_PENDING_CHUNKS}
        with _explained(f"connect a producer to topic {topic}"):
            client = self._client.create_producer(self._full(topic), **options)
        if mode != "native":
            client = PulsarProducer(client, cc, max_message_bytes=self.limit_bytes)
        return _Producer(client)

    def consumer(self, mode: Mode, topic: str, cc: ClaimCheck, *, group: str) -> _Consumer:
        kind = vendor().ConsumerType.Failover
        # So many messages of the largest size may wait: the client's default of 1,000 takes 5 GB.
        queue = max(1, min(_MAX_QUEUE, _QUEUE_BYTES // self.limit_bytes))
        with _explained(f"connect a consumer to topic {topic}"):
            native = self._client.subscribe(
                self._full(topic),
                group,
                consumer_type=kind,
                initial_position=vendor().InitialPosition.Earliest,
                start_message_id_inclusive=True,
                receiver_queue_size=queue,
            )
        wrapped = PulsarConsumer(native, cc, consumer_type=kind, start_message_id_inclusive=True)
        return _Consumer(native if mode == "native" else wrapped, self._full(topic))


class _Producer:
    """Sends to one topic with a `PulsarProducer`, or with the client's own producer."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._changed = threading.Condition()
        self._in_flight = 0
        self.close = client.close

    def send(self, payload: bytes, *, done: Done) -> None:
        def ended(error: Exception | None) -> None:
            done(error)
            self._count(-1)

        self._count(1)
        try:
            self._client.send_async(
                payload, lambda result, _: ended(None if result == vendor().Result.Ok else error_of(result))
            )
        except (ClaimCheckError, vendor().PulsarException) as error:
            ended(error)

    def flush(self, timeout: float) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: self._in_flight == 0, timeout):
                raise TimeoutError(f"{self._in_flight} payloads have no answer after {timeout:g} s")
        self._client.flush()  # also waits until failed payloads are rolled back

    def _count(self, change: int) -> None:
        with self._changed:
            self._in_flight += change
            self._changed.notify_all()


class _Consumer:
    """Reads one topic with a `PulsarConsumer`, or with the client's own consumer."""

    def __init__(self, client: Any, topic: str) -> None:
        self._client, self._topic = client, topic
        self.close = client.close

    def receive(self, timeout: float) -> Received | None:
        try:
            message = self._client.receive(int(timeout * 1000))
        except vendor().Timeout:
            return None
        # The position of a payload's first message; an id of the client's own chunking shows only the last chunk.
        first = message.message_id()
        if isinstance(self._client, PulsarConsumer):
            first = natives(first)[0]
        return received(message.data, bytes(first.serialize()).hex(), message)

    def commit(self, received: Received) -> None:
        self._client.acknowledge(received.handle)

    def seek(self, position: int | str) -> None:
        target = vendor().MessageId.deserialize(bytes.fromhex(str(position)), topic=self._topic)
        end = time.monotonic() + _SECONDS
        while True:
            try:
                self._client.seek(target)
                return
            except vendor().PulsarException as error:  # it connects again after each seek
                if type(error).__name__ not in _CONNECTING or time.monotonic() > end:
                    raise
                time.sleep(_POLL_SECONDS)


@contextlib.contextmanager
def _explained(what: str, *, allowed: int | None = None) -> Iterator[None]:
    """Raise `CompareError` for an error of the client or the web service, unless that has an allowed status."""
    try:
        yield
    except AdminError as error:
        if error.status is None or error.status != allowed:
            advice = "check --admin-url, and the token's permissions"
            raise CompareError(f"the broker did not {what}: {error}: {advice}") from error
    except (ConfigError, vendor().PulsarException, ValueError, RuntimeError) as error:
        text = str(error) if isinstance(error, ConfigError) else type(error).__name__
        raise CompareError(
            f"the broker did not {what} ({text}): check its address, and the token's permissions"
        ) from error


connect = PulsarBroker
