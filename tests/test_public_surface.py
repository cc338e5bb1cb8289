"""The public names of the library: a change of this list is a change of the API."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

import claimcheck

PUBLIC = """
claimcheck: ArgumentTypeError CheckReport ChunkConflictError ChunkError ClaimCheck ClaimCheckError Config
    ConfigError Deletion Dropped Envelope EnvelopeError Failed Finding HEADER IncompletePayloadError
    IntegrityError KeyProvider KeyTakenError MissingDependencyError Outbound PartialSendError Payload
    PayloadError PayloadNotFoundError PayloadTooLargeError PayloadTypeError Pointer PointerRejectedError
    Resolution Resolved Resolver ScanNotSupportedError Store StoreEntry StoreError StoreUnavailableError
    Strategy SweepReport TransportError UnknownVersionError WireLimit from_dict load
claimcheck.cli:
claimcheck.config: ChunkingConfig CompressionConfig Config ENCRYPTION_KEY_BYTES EncryptionConfig
    EnvelopeConfig HybridConfig LimitsConfig MIN_KEY_BYTES SigningConfig StoreConfig encryption_key expand
    signing_key
claimcheck.errors: ArgumentTypeError ChunkConflictError ChunkError ClaimCheckError ConfigError EnvelopeError
    IncompletePayloadError IntegrityError KeyTakenError MissingDependencyError PartialSendError PayloadError
    PayloadNotFoundError PayloadTooLargeError PayloadTypeError PointerRejectedError ScanNotSupportedError
    StoreError StoreUnavailableError TransportError UnknownVersionError
claimcheck.hooks: AssembledEvent BreakerEvent DropEvent Event FallbackEvent Hook Hooks OperationEvent
    SendEvent SweepEvent
claimcheck.spark: DeadLetter GarbageDeletion GarbageReport Metrics ResultError collect_garbage ensure_java
    map_payloads offload pin progress reassemble repartition_by_payload resolve resolver
claimcheck.spark.sources: AccessError DataLossError ForeignMessageError SubscriptionBusyError register
claimcheck.stores:
claimcheck.stores.base: Deletion Payload PieceReader Pointer Reader Source Store StoreContext StoreEntry
claimcheck.stores.filesystem: FilesystemStore
claimcheck.stores.memory: MemoryStore
claimcheck.stores.obstore: ObstoreStore
claimcheck.stores.pulsar_topic: PulsarTopicStore
claimcheck.stores.redis: RedisStore
claimcheck.stores.s3: S3Store
claimcheck.strategies: Envelope Kind Message Outbound Strategy StrategyContext
claimcheck.testing: FaultyStore RecordedMessage RecordingBroker StoreConformance assert_inline
    assert_offloaded
claimcheck.transports:
claimcheck.transports.kafka: AsyncKafkaConsumer AsyncKafkaProducer KafkaConsumer KafkaMessage KafkaProducer
    OffsetStoreError last_offset
claimcheck.transports.local: BrokerBusyError BrokerClosedError BrokerCommitError BrokerStorageError
    GroupTakenOverError LocalBroker LocalConsumer LocalMessage LocalProducer MESSAGE_OVERHEAD_BYTES MessageId
    MessageTooLargeError ReceivedMessage TopicStats UnknownPartitionError UnknownTopicError
claimcheck.transports.pulsar: AsyncPulsarConsumer AsyncPulsarProducer AsyncPulsarReader ChunkArgumentError
    PulsarConsumer PulsarMessage PulsarProducer PulsarReader SendDeadlineError SharedSubscriptionError
    WholeMessageId ask_limit deserialize
"""
NAMES = {
    module: names.split()
    for module, _, names in (line.partition(":") for line in PUBLIC.replace("\n    ", " ").strip().splitlines())
}


def _modules() -> list[str]:
    """All modules of the library but those with an underscore in their name, or in that of a package above them."""
    found = (module.name for module in pkgutil.walk_packages(claimcheck.__path__, "claimcheck.", onerror=_fail))
    return ["claimcheck", *(name for name in found if not any(part.startswith("_") for part in name.split(".")))]


def _fail(name: str) -> None:
    pytest.fail(f"cannot import {name}")


@pytest.mark.parametrize("name", NAMES)
def test_public_names_of_a_module(name: str) -> None:
    module = importlib.import_module(name)
    names = getattr(module, "__all__", [])
    assert sorted(names) == NAMES[name]
    assert [each for each in names if not hasattr(module, each)] == []


def test_modules_without_an_underscore_are_on_the_list() -> None:
    assert sorted(_modules()) == sorted(NAMES)
