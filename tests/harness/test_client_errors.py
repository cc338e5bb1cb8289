"""After an error of any client, a payload is deleted only if its message is definitely not in the topic.

`all_errors` yields one instance of each exception class of the clients below, and one for each code where a class has
codes. `mistakes` raises an error through claimcheck after the message has reached the topic, in each way of sending,
and compares what happened to the stored payload with `DEFINITE`, which is written by hand and independent of the
library.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import importlib
import inspect
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka as kafka
import grpc
import pulsar.asyncio
import pytest
from botocore.exceptions import ClientError
from confluent_kafka.error import KeySerializationError, ValueSerializationError

from claimcheck.transports.kafka import _client as kafka_wrapper
from claimcheck.transports.pulsar import _send as pulsar_wrapper
from tests.produce_rig import BIG, Rig

# Where the clients define what a send may raise.
CLIENTS = {
    "confluent-kafka": ("confluent_kafka.error", "confluent_kafka.serialization", "confluent_kafka"),
    "kafka-python": ("kafka.errors",),
    "aiokafka": ("aiokafka.errors",),
    "pulsar-client": ("_pulsar", "pulsar.asyncio"),
    "pika": ("pika.exceptions",),
    "aiormq": ("aiormq.exceptions",),
    "botocore": ("botocore.exceptions",),
    "httpx": ("httpx",),
    "requests": ("requests.exceptions",),
    "google-api-core": ("google.api_core.exceptions",),
    "grpc": ("grpc", "grpc.aio"),
    "azure-servicebus": ("azure.servicebus.exceptions", "azure.core.exceptions"),
    "nats": ("nats.errors", "nats.js.errors"),
    "python": ("builtins", "asyncio.exceptions", "concurrent.futures", "socket", "ssl", "json", "zlib", "struct"),
}

# The errors after which the payload has to be deleted: the client or the broker refused this very message.
DEFINITE = {
    "confluent-kafka": {
        "KafkaException MSG_SIZE_TOO_LARGE",
        "KafkaException RECORD_LIST_TOO_LARGE",
        "KafkaException INVALID_RECORD",
        "KafkaException _QUEUE_FULL",
        "KafkaException _KEY_SERIALIZATION",
        "KafkaException _VALUE_SERIALIZATION",
        "KeySerializationError",
        "ValueSerializationError",
        "SerializationError",
        "BufferError queue full",
    },
    "kafka-python": {"InvalidRecordError", "MessageSizeTooLargeError", "RecordListTooLargeError"},
    "aiokafka": {"MessageSizeTooLargeError", "RecordListTooLargeError", "RecordTooLargeError"},
    "pulsar-client": {
        f"{prefix}{name}"
        for prefix in ("", "PulsarException ")
        for name in ("InvalidMessage", "MemoryBufferIsFull", "MessageTooBig", "ProducerQueueIsFull")
    },
    "pika": {"BodyTooLongError", "UnroutableError"},
    "aiormq": {"PublishError"},
    "botocore": {"ClientError InvalidMessageContents"},
    "azure-servicebus": {"MessageSizeExceededError"},
    "nats": {"MaxPayloadError"},
}

# What the wrappers call definite besides: their own calls of the client raise nothing else before it has the message.
WRAPPERS = {
    "confluent-kafka": {
        "BufferError of a buffer",
        "ConcurrentModificationException",  # these two are RuntimeErrors, of consumers
        "IllegalStateException",
        *(
            f"KafkaException {name}"
            for name in (
                "TOPIC_AUTHORIZATION_FAILED", "TOPIC_EXCEPTION", "_FATAL", "_INVALID_ARG", "_PURGE_QUEUE", "_STATE",
                "_UNKNOWN_PARTITION", "_UNKNOWN_TOPIC",
            )
        ),
    },
    "pulsar-client": {
        f"{prefix}{name}"
        for prefix in ("", "PulsarException ")
        for name in (
            "AuthenticationError", "AuthorizationError", "CryptoError", "IncompatibleSchema", "InvalidConfiguration",
            "InvalidTopicName", "InvalidUrl", "NotAllowedError", "OperationNotSupported",
            "ProducerBlockedQuotaExceededError", "ProducerBlockedQuotaExceededException", "ProducerNotInitialized",
            "TopicNotFound", "TopicTerminated", "UnsupportedVersionError",
        )
    },
}  # fmt: skip

AWS_CODES = (
    "InternalError", "InternalFailure", "ServiceUnavailable", "RequestTimeout", "RequestExpired", "ThrottlingException",
    "AccessDenied", "ExpiredToken", "ValidationException", "InvalidParameterValue", "InvalidMessageContents",
)  # fmt: skip


def all_errors(client: str) -> Iterator[tuple[str, BaseException]]:
    """One error of each class of a client, and of each code, with a name for the report."""
    for module in CLIENTS[client]:
        with warnings.catch_warnings(action="ignore"):  # kafka-python reads its own files in a way that is deprecated
            members = vars(importlib.import_module(module))
        for name, cls in members.items():
            if inspect.isclass(cls) and issubclass(cls, BaseException) and not issubclass(cls, Warning):
                yield name, _bare(cls)
    yield from _WITH_CODES.get(client, lambda: ())()


def _bare(cls: type[BaseException]) -> BaseException:
    """An instance without the arguments that only the client itself can pass."""
    if issubclass(cls, BaseExceptionGroup):
        return cls("simulated", [ValueError()])
    try:
        return cls("simulated")
    except Exception:
        return cls.__new__(cls)


def _kafka() -> Iterator[tuple[str, BaseException]]:
    for name, code in vars(kafka.KafkaError).items():
        if isinstance(code, int) and code:
            yield f"KafkaException {name}", kafka.KafkaException(kafka.KafkaError(code))
    yield "KeySerializationError", KeySerializationError()
    yield "ValueSerializationError", ValueSerializationError()
    yield "BufferError queue full", BufferError("Local: Queue full")
    yield "BufferError of a buffer", BufferError("Existing exports of data: object cannot be re-sized")


def _pulsar() -> Iterator[tuple[str, BaseException]]:
    for name, result in pulsar.Result.__members__.items():
        yield f"PulsarException {name}", pulsar.asyncio.PulsarException(result)


def _botocore() -> Iterator[tuple[str, BaseException]]:
    for code in AWS_CODES:
        yield f"ClientError {code}", ClientError({"Error": {"Code": code, "Message": "simulated"}}, "SendMessage")


def _grpc() -> Iterator[tuple[str, BaseException]]:
    for code in grpc.StatusCode:
        yield f"AioRpcError {code.name}", grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata())


_WITH_CODES: dict[str, Callable[[], Any]] = {
    "confluent-kafka": _kafka,
    "pulsar-client": _pulsar,
    "botocore": _botocore,
    "grpc": _grpc,
}


# Ways of sending -------------------------------------------------------------------------------------------------


def by_function(rig: Rig, error: BaseException) -> None:
    @rig.cc.offload(payload="value", destination="topic")
    def publish(topic, value):
        rig.sent.append((topic, value, None, None))
        raise error

    publish("orders", BIG)


def by_coroutine(rig: Rig, error: BaseException) -> None:
    @rig.cc.offload(payload="value", destination="topic")
    async def publish(topic, value):
        rig.sent.append((topic, value, None, None))
        raise error

    with contextlib.closing(asyncio.new_event_loop()) as loop:
        loop.run_until_complete(publish("orders", BIG))


def by_future(rig: Rig, error: BaseException) -> None:
    @rig.cc.offload(payload="value", destination="topic")
    def publish(topic, value):
        rig.sent.append((topic, value, None, None))
        future: concurrent.futures.Future[None] = concurrent.futures.Future()
        future.set_exception(error)
        return future

    publish("orders", BIG).result()


def by_block(rig: Rig, error: BaseException) -> None:
    with rig.cc.outbound(BIG, destination="orders") as out:
        for envelope in out.envelopes:
            rig.sent.append(("orders", envelope.data, envelope.key, envelope.headers))
            raise error


WAYS = (by_function, by_coroutine, by_future, by_block)


def mistakes(client: str) -> Iterator[str]:
    """Send with every error in every way; yield what happened to a stored payload that should not have."""
    definite = DEFINITE.get(client, set())
    met = set()
    rig = Rig()
    for name, error in all_errors(client):
        met.add(name)
        for send in WAYS:
            found = _kept(rig, send, error)
            if found is not (name not in definite):
                yield f"{client} {name} {send.__name__}: {'kept' if found else 'deleted'}"
    yield from (f"{client} has no {name}" for name in definite - met)


def _kept(rig: Rig, send: Callable[[Rig, BaseException], None], error: BaseException) -> bool:
    """Whether a reader of the topic still gets the payload."""
    rig.sent.clear()
    rig.cc.store("hot")._payloads.clear()
    try:
        send(rig, error)
    except BaseException as raised:
        if raised is not error and not isinstance(raised, RuntimeError):  # Python replaces StopIteration
            raise
    (_, value, _, headers) = rig.sent[0]
    if not rig.stored:
        return False
    assert rig.cc.resolve(value, destination="orders", headers=headers) == BIG
    return True


# What has to hold -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("client", CLIENTS)
def test_only_a_refusal_of_the_message_itself_deletes_its_payload(client):
    assert list(mistakes(client)) == []


@pytest.mark.parametrize(("client", "wrapper"), [("confluent-kafka", kafka_wrapper), ("pulsar-client", pulsar_wrapper)])
def test_a_wrapper_knows_more_codes_of_its_own_client(client, wrapper):
    expected = dict.fromkeys(DEFINITE[client] | WRAPPERS[client], "failed")
    verdicts = [(name, wrapper.classify(error)) for name, error in all_errors(client)]
    assert [each for each in verdicts if each[1] != expected.get(each[0], "unknown")] == []


def test_the_harness_raises_what_clients_really_have():
    counts = {client: len(list(all_errors(client))) for client in CLIENTS}
    assert min(counts.values()) >= 10, counts
    assert sum(counts.values()) > 800, counts
