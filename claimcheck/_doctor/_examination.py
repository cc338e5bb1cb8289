"""The whole examination: configuration, stores, topics."""

from __future__ import annotations

import time
from collections.abc import Callable, Container

from claimcheck._check import CheckReport, Finding
from claimcheck._client import ClaimCheck
from claimcheck._doctor._findings import explained, redacted
from claimcheck._doctor._kafka import examine_kafka
from claimcheck._doctor._pulsar import examine_pulsar
from claimcheck._doctor._stores import examine_stores
from claimcheck._doctor._topics import KafkaTarget, PulsarTarget
from claimcheck.errors import ConfigError, StoreUnavailableError


def examine(
    cc: ClaimCheck,
    *,
    kafka: KafkaTarget | None = None,
    pulsar: PulsarTarget | None = None,
    ignore: Container[str] = (),
    clock: Callable[[], float] = time.time,
) -> CheckReport:
    """Return what is wrong, or will go wrong, with a configuration, its stores and the topics it is used for."""
    checked = [each for each in cc.check(open=True).findings if not _is_superseded(cc, each)]
    failed = {each.path for each in checked if _is_out_of_reach(each)}
    findings = [*explained(checked), *examine_stores(cc, clock, failed)]
    if kafka is not None:
        findings += redacted(examine_kafka(cc, kafka, clock), kafka.secrets)
    if pulsar is not None:
        findings += redacted(examine_pulsar(cc, pulsar, clock), pulsar.secrets)
    return CheckReport.of(each for each in findings if each.id not in ignore)


def _is_out_of_reach(finding: Finding) -> bool:
    """Whether everything else about a store would fail for the same reason."""
    unreached = isinstance(finding.error, (StoreUnavailableError, ConfigError)) or "NoSuchBucket" in finding.message
    return finding.id == "store-invalid" or (finding.id == "store-failed" and unreached)


def _is_superseded(cc: ClaimCheck, finding: Finding) -> bool:
    """Whether the lifecycle rules of the bucket tell more than this finding of `claimcheck.ClaimCheck.check`."""
    types = {f"stores.{name}": store.type for name, store in cc.config.stores.items()}
    return finding.id == "store-no-expiry" and types[finding.path] == "s3"
