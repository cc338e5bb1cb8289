"""The shape of the library: its size, which only falls, its layers, and its public names."""

from __future__ import annotations

import importlib
import json
import pkgutil
import subprocess
import sys

import pytest

import claimcheck
from tests import structure

ROOT = structure.ROOT
FIGURES = structure.figures()
LIMITS = json.loads(structure.LIMITS.read_text())
SLACK = 0.01  # a limit that is further away from its figure has to be lowered


# Size and layers -------------------------------------------------------------------------------------------------


def test_figures_only_fall():
    """They also have no circle of imports, for type hints either, which would raise an error."""
    assert FIGURES.keys() == LIMITS.keys()
    others = ("decorator", "resolve") if sys.version_info >= (3, 12) else ()  # newer interpreters make other calls
    same = {name: value for name, value in FIGURES.items() if not name.startswith(others)}
    over = {name: value for name, value in same.items() if value > LIMITS[name]}
    assert not over, "the house has a budget: take these lines from another room, or delete some"
    loose = [name for name, value in same.items() if LIMITS[name] > value * (1 + SLACK)]
    assert not loose, "now: python tests/structure.py --lower"


def test_import_contracts_are_kept():
    linter = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    command = [sys.executable, "-c", linter, "--config", str(ROOT / "pyproject.toml"), "--no-cache"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


# Public names: a change of this list is a change of the API --------------------------------------------------------

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
claimcheck.spark: DeadLetter GarbageDeletion GarbageReport Metrics ResultError as_file collect_garbage
    ensure_java map_payloads max_offsets offload pin progress reassemble register repartition_by_payload resolve
    resolver
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
claimcheck.telemetry: hook processing
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


def test_the_public_names_of_each_module_exist_and_are_on_the_list():
    """Of all modules but those with an underscore in their name, or in that of a package above them."""
    for name, expected in NAMES.items():
        module = importlib.import_module(name)
        names = getattr(module, "__all__", [])
        assert sorted(names) == expected, name
        assert [each for each in names if not hasattr(module, each)] == [], name
    found = (module.name for module in pkgutil.walk_packages(claimcheck.__path__, "claimcheck.", onerror=_fail))
    assert {"claimcheck", *(name for name in found if "._" not in name)} == {*NAMES}


def _fail(name: str) -> None:
    pytest.fail(f"cannot import {name}")
