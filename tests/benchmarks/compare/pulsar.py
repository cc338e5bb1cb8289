"""Apache Pulsar as the broker under test: pulsar-client with its own chunking for ``native``, and the wrappers else."""

from __future__ import annotations

import contextlib
import json
import math
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from claimcheck.errors import ClaimCheckError, ConfigError
from claimcheck.transports.pulsar import PulsarConsumer, PulsarProducer
from claimcheck.transports.pulsar._message import _native as native_id
from claimcheck.transports.pulsar._message import natives
from claimcheck.transports.pulsar._queries import (
    MAX_MESSAGE_BYTES,
    AdminClient,
    AdminError,
    PulsarTarget,
    full_name,
    internal_stats,
    partitions_of,
    split_partition,
    topic_path,
    trusting,
    vendor,
)
from claimcheck.transports.pulsar._send import error_of
from tests.benchmarks.compare.broker import Broker, BrokerAddress, Done, Received, TopicSettings, received
from tests.benchmarks.compare.model import CompareError, Mode

if TYPE_CHECKING:
    from claimcheck._client import ClaimCheck

_MAX_PENDING_CHUNKS = 20_000
_SECONDS = 15.0
_POLL_SECONDS = 0.01
_ACKNOWLEDGE_SECONDS = 0.2  # the client sends acknowledgements every 100 ms
_QUEUE_BYTES = 16 << 20
_MAX_QUEUE = 1000
_MAX_TEXT = 200
_UNLOADING = {"NotConnected", "BrokerMetadataError", "ServiceUnitNotReady", "Disconnected"}


class _WebService(AdminClient):
    """The web service of a broker, with the requests that change something."""

    def send(self, method: str, path: str, body: object = None) -> bytes:
        """Send a request to a path below ``/admin/v2/``, with a body as JSON, and return the response."""
        url, data = f"{self._url}/admin/v2/{path}", None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", **self._headers}
        for _ in range(3):
            request = urllib.request.Request(url, data, headers, method=method)
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
                url, headers = error.headers["Location"], {"Content-Type": "application/json"}
            except OSError as error:
                raise AdminError(f"the web service did not answer {path}: {type(error).__name__}") from error
        raise AdminError(f"the web service did not answer {path}: too many redirects")


class PulsarBroker(Broker):
    """A connection to a Pulsar cluster and its web service.

    Args:
        address: Its options are ``token``, ``tls_trust_certs_file_path``, ``listener_name``, and the ``namespace`` of
            new topics, by default ``public/default``.
    """

    retention_source = "the message TTL of unread messages, which the broker applies on request"
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

    def create_topic(self, topic: str, settings: TopicSettings) -> None:
        """Create a topic.

        A limit is not needed, because the client's chunking splits larger messages. The retention is that of unread
        messages, Pulsar's message TTL, in whole seconds.
        """
        path, count = topic_path(self._full(topic)), settings.partitions
        with _explained(f"create topic {topic}"):
            if count == 1:
                self._admin.send("PUT", path)
            else:
                self._admin.send("PUT", f"{path}/partitions", count)
            if settings.retention_seconds is not None:
                self._set_expiry(path, max(1, math.ceil(settings.retention_seconds)))

    def _set_expiry(self, path: str, seconds: int) -> None:
        """Make the broker acknowledge messages after a time, and delete what is acknowledged; waits until it does."""
        self._admin.send("POST", f"{path}/messageTTL?messageTTL={seconds}")
        no_retention = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
        self._admin.send("POST", f"{path}/retention", no_retention)
        get, end = self._admin.get, time.monotonic() + _SECONDS
        while (get(f"{path}/messageTTL"), get(f"{path}/retention")) != (seconds, no_retention):
            if time.monotonic() > end:
                raise CompareError(f"the broker did not apply the expiry of a topic within {_SECONDS:g} s")
            time.sleep(_POLL_SECONDS)

    def delete_topic(self, topic: str) -> None:
        path = topic_path(self._full(topic))
        with _explained(f"delete topic {topic}", allowed=404):
            partitions = "/partitions" if len(self._partitions(topic)) > 1 else ""
            self._admin.send("DELETE", f"{path}{partitions}?force=true")

    def expire(self, topic: str) -> None:
        """Expire messages and delete them, which the broker otherwise does every few minutes.

        Only closed ledgers are deleted; the unloading closes the current one and disconnects clients for a moment.
        """
        seconds = self._admin.get(f"{topic_path(self._full(topic))}/messageTTL")
        for partition in self._partitions(topic):
            path, what = topic_path(partition), f"expire the messages of topic {topic}"
            with _explained(what, allowed=409):  # an expiry is in progress already
                if seconds:
                    self._admin.send("POST", f"{path}/all_subscription/expireMessages/{seconds}")
            with _explained(what):
                self._admin.send("PUT", f"{path}/unload")
                self._admin.send("POST", f"{path}/trim")

    # Contents --------------------------------------------------------------------------------------------------

    def topic_bytes(self, topic: str) -> list[int]:
        return [int(self._stats(name)["totalSize"]) for name in self._partitions(topic)]

    def readable_messages(self, topic: str) -> int:
        return sum(entries for name in self._partitions(topic) for _, entries in _ledgers_of(self._stats(name)))

    def positions(self, topic: str, partition: int) -> list[str]:
        names = self._partitions(topic)
        name, number = names[partition], partition if len(names) > 1 else -1
        return [
            _serialized(native_id(name, number, ledger, entry, -1))
            for ledger, entries in _ledgers_of(self._stats(name))
            for entry in range(entries)
        ]

    def _stats(self, name: str) -> dict[str, Any]:
        with _explained(f"describe topic {name}"):
            return dict(internal_stats(self._admin, name))

    def _partitions(self, topic: str) -> list[str]:
        with _explained(f"describe topic {topic}"):
            return partitions_of(self._admin, self._full(topic))

    def _full(self, topic: str) -> str:
        return full_name(topic if "/" in topic else f"{self._namespace}/{topic}")

    # Clients ---------------------------------------------------------------------------------------------------

    def producer(self, mode: Mode, topic: str, cc: ClaimCheck) -> _PulsarTestProducer:
        options: dict[str, Any] = {"block_if_queue_full": True}
        if mode == "native":  # with more chunks than pending messages, the client waits for itself and never returns
            options |= {"chunking_enabled": True, "max_pending_messages": _MAX_PENDING_CHUNKS}
        with _explained(f"connect a producer to topic {topic}"):
            client = self._client.create_producer(self._full(topic), **options)
        if mode != "native":
            client = PulsarProducer(client, cc, max_message_bytes=self.limit_bytes)
        return _PulsarTestProducer(client)

    def consumer(self, mode: Mode, topic: str, cc: ClaimCheck, *, group: str) -> _PulsarTestConsumer:
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
        client = native if mode == "native" else wrapped
        return _PulsarTestConsumer(client, self._partitions(topic))

    def close(self) -> None:
        self._client.close()


class _PulsarTestProducer:
    """Sends to one topic with a `PulsarProducer`, or with the client's own producer."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._changed = threading.Condition()
        self._in_flight = 0

    def send(self, payload: bytes, *, done: Done) -> None:
        def sent(result: Any, message_id: Any) -> None:
            if result == vendor().Result.Ok:
                done(None, max(0, message_id.partition()))
            else:
                done(error_of(result), None)
            self._count(-1)

        self._count(1)
        try:
            self._client.send_async(payload, sent)
        except (ClaimCheckError, vendor().PulsarException) as error:
            done(error, None)
            self._count(-1)

    def flush(self, timeout: float) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: self._in_flight == 0, timeout):
                raise TimeoutError(f"{self._in_flight} payloads have no answer after {timeout:g} s")
        self._client.flush()  # also waits until failed payloads are rolled back

    def close(self) -> None:
        self._client.close()

    def _count(self, change: int) -> None:
        with self._changed:
            self._in_flight += change
            self._changed.notify_all()


class _PulsarTestConsumer:
    """Reads partitions of one topic with a `PulsarConsumer`, or with the client's own consumer."""

    def __init__(self, client: Any, names: list[str]) -> None:
        self._client, self._names = client, names

    def receive(self, timeout: float) -> Received | None:
        try:
            message = self._client.receive(int(timeout * 1000))
        except vendor().Timeout:
            return None
        # The position of a payload's first message; an id of the client's own chunking shows only the last chunk.
        first = message.message_id()
        if isinstance(self._client, PulsarConsumer):
            first = natives(first)[0]
        partition = max(0, split_partition(message.topic_name())[1])
        return received(message.data, partition, _serialized(first), message)

    def commit(self, received: Received) -> None:
        self._client.acknowledge(received.handle)
        time.sleep(_ACKNOWLEDGE_SECONDS)

    def seek(self, partition: int, position: int | str) -> None:
        target = vendor().MessageId.deserialize(bytes.fromhex(str(position)), topic=self._names[partition])
        end = time.monotonic() + _SECONDS
        while True:
            try:
                self._client.seek(target)
                return
            except vendor().PulsarException as error:
                if type(error).__name__ not in _UNLOADING or time.monotonic() > end:
                    raise
                time.sleep(_POLL_SECONDS)

    def close(self) -> None:
        self._client.close()


@contextlib.contextmanager
def _explained(what: str, *, allowed: int | None = None) -> Iterator[None]:
    """Raise `CompareError` for an error of the client or the web service, unless that has an allowed status."""
    try:
        yield
    except AdminError as error:
        if error.status is None or error.status != allowed:
            advice = "check --admin-url, and the token's permissions"
            if error.status == 405:
                advice = "enable topicLevelPoliciesEnabled on the broker"
            raise CompareError(f"the broker did not {what}: {error}: {advice}") from error
    except (ConfigError, vendor().PulsarException, ValueError, RuntimeError) as error:
        text = str(error) if isinstance(error, ConfigError) else type(error).__name__
        raise CompareError(
            f"the broker did not {what} ({text}): check its address, and the token's permissions"
        ) from error


def _serialized(message_id: Any) -> str:
    return bytes(message_id.serialize()).hex()


def _ledgers_of(stats: dict[str, Any]) -> list[tuple[int, int]]:
    """Return ids and numbers of entries; the list of ledgers does not count the entries of the open one."""
    found = [(int(each["ledgerId"]), int(each["entries"])) for each in stats.get("ledgers", ())]
    if found and not found[-1][1]:
        found[-1] = (found[-1][0], int(stats.get("currentLedgerEntries", 0)))
    return found


connect = PulsarBroker
