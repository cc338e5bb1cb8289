"""The findings of `claimcheck.ClaimCheck.check` and of the command of the same name, and why each of them matters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from claimcheck._validation import without_secrets
from claimcheck.errors import ClaimCheckError, ConfigError, StoreUnavailableError, TransportError

Severity = Literal["error", "warning", "info"]

_GONE = "A consumer that reads the message later gets PayloadNotFoundError."
_UNKNOWN = "This part was not examined, so a problem there would not be reported."

WHY: dict[str, str] = {
    # The configuration, and whether its keys and stores work.
    "config-invalid": "The configuration cannot be loaded, so no producer and no consumer starts.",
    "package-missing": "Payloads cannot be sent with this setting, or received.",
    "reads-from-own-store": "This process cannot read the messages that it writes itself.",
    "signing-off": "A hostile message can make a reader deliver another payload of the same store.",
    "signing-optional": "A hostile writer can simply omit the signature.",
    "signing-unbound": "A message of one topic can be replayed on another one.",
    "signing-weak-checksum": "Who can write to a store can replace a payload by another one with the same checksum.",
    "signing-key-missing": "No pointer can be signed or verified with this key.",
    "encryption-optional": "Anyone who can write to a store can replace a payload by one that is not encrypted.",
    "encryption-small-plain": "Anyone who can read the topic can read them.",
    "encryption-key-failed": "No payload can be encrypted or decrypted with this key.",
    "encryption-works": "",
    "secret-in-file": "Anyone who can read the file or its history has the secret.",
    "secret-reused": "Who obtains it can do what both keys are for, and replacing one key has no effect.",
    "secret-default": "If the variable is missing on one machine, that machine trusts what anyone can create.",
    "secret-weak": "Who guesses it can forge messages, or read payloads.",
    "encryption-without-signing": "Encryption does not show who sent a message, and when.",
    "secret-on-command-line": "Anyone who can list processes or read the shell's history has the secret.",
    "store-memory": "Other processes cannot read these payloads, and neither can this one after a restart.",
    "lifetime-short": _GONE,
    "lifetime-none": "The store grows until it is full, and leftovers of failed sends stay.",
    "store-no-expiry": "The store grows until it is full, unless something else deletes old payloads.",
    "connection-plain": "Anyone on the network path can read payloads and credentials.",
    "certificate-unverified": "Anyone on the network path can pretend to be the server.",
    "hostname-unverified": "Anyone with a valid certificate can pretend to be the server.",
    "filesystem-temporary": _GONE,
    "filesystem-relative": "Readers look for payloads where writers did not put them.",
    "store-works": "",
    "store-failed": "Large payloads cannot be sent or received.",
    "store-invalid": "A process with this configuration and environment cannot open the store.",
    # Of every store.
    "store-not-listable": "Expired payloads and leftovers cannot be found, so nothing removes them.",
    "store-not-swept": "The store grows until it is full.",
    "clock-skew": "Payloads expire earlier or later than their pointers say.",
    # Redis.
    "redis-not-examined": _UNKNOWN,
    "redis-version": "The server does not support SET with PXAT, so every write fails.",
    "redis-eviction": "When its memory is full, the server deletes payloads that messages still point at.",
    "redis-no-persistence": "A restart of the server deletes all payloads, even those that messages still point at.",
    "redis-memory-unlimited": "Without maxmemory, the operating system kills the server when its memory is used up.",
    "redis-replication-unsafe": "A failover loses payloads that the new master had not received yet.",
    # S3.
    "s3-not-examined": _UNKNOWN,
    "s3-no-expiry": "Payloads stay in the bucket forever, and you keep paying for them.",
    "s3-expiry-early": _GONE,
    "s3-archived": "An archived object cannot be read until it is restored.",
    "s3-no-abort": "Parts of interrupted uploads stay in the bucket: listings do not show them, but you pay for them.",
    "s3-versioning": "A deleted payload stays in the bucket as a noncurrent version, and you keep paying for it.",
    # Other stores of objects, and the filesystem.
    "filesystem-not-examined": _UNKNOWN,
    "filesystem-permissions": "Payloads may be confidential, and a changed or deleted one cannot be delivered.",
    # Kafka.
    "kafka-not-examined": _UNKNOWN,
    "kafka-settings-invalid": "Nothing about the topics was examined.",
    "kafka-unreachable": "Nothing about the topics was examined.",
    "kafka-topic-missing": "Nothing about this topic was examined.",
    "kafka-retention": _GONE,
    "kafka-compacted": "The last message of each key stays forever, its payload does not; chunks are removed.",
    "kafka-limit": "The broker refuses these messages, and the whole batch that contains them.",
    "kafka-group-unknown": "Its lag was not examined.",
    "kafka-group-lag": _GONE,
    "kafka-pointer-rejected": "A consumer with this configuration gets an error in place of the payload.",
    "kafka-payload-missing": "A consumer with this configuration gets PayloadNotFoundError.",
    "kafka-group-lost": "The group never reads these messages.",
    "kafka-dead-letters": "A dead letter cannot be read or sent back after its payload has expired.",
    # Pulsar.
    "pulsar-not-examined": _UNKNOWN,
    "pulsar-unreachable": "Nothing about the topics was examined.",
    "pulsar-topic-missing": "Nothing about this topic was examined.",
    "pulsar-retention": "A reader or a seek that goes back finds messages whose payloads have expired.",
    "pulsar-message-ttl": _GONE,
    "pulsar-backlog-eviction": "The broker drops unread messages; the remaining chunks of a payload are then useless.",
    "pulsar-limit": "The broker refuses these messages.",
    "pulsar-topic-limit": "The client retries a message above the topic's own limit forever, and reports no error.",
    "pulsar-shared-chunks": "The chunks of one payload go to different consumers, and none can assemble it.",
    "pulsar-subscription-unknown": "Its backlog was not examined.",
    "pulsar-backlog": "If the message is a pointer, a consumer that reads it later gets PayloadNotFoundError.",
    "pulsar-dead-letters": "A dead letter cannot be read or sent back after its payload has expired.",
    "pulsar-dead-letters-dropped": "Pulsar deletes dead letters as soon as they arrive.",
}
"""Why a finding matters, by its id. An id never changes its meaning: CI jobs ignore findings by id."""

_SHORT = 3  # characters: a text with so little hidden would be unreadable


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of `claimcheck.ClaimCheck.check`.

    Attributes:
        severity: ``error``: it does not work. ``warning``: it works, but is insecure or unwise. ``info``: good to know.
        path: The key in the configuration, for example ``stores.hot.url``.
        message: The result in one sentence, without secrets.
        fix: What to do about it; may be empty.
        error: The exception behind an ``error``, if there was one.
        id: A stable name of this kind of finding, for example ``connection-plain``; the same in every release.
        why: What happens if nothing is done; may be empty.
    """

    severity: Literal["error", "warning", "info"]
    path: str
    message: str
    fix: str = ""
    error: Exception | None = field(default=None, repr=False, compare=False)
    id: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The result of `claimcheck.ClaimCheck.check`.

    Attributes:
        findings: Errors first, then warnings, then the rest.
    """

    findings: tuple[Finding, ...]

    @classmethod
    def of(cls, findings: Iterable[Finding]) -> CheckReport:
        """Return a report of these findings, the most severe first."""
        return cls(tuple(sorted(findings, key=lambda finding: ("error", "warning", "info").index(finding.severity))))

    @classmethod
    def of_error(cls, error: ConfigError) -> CheckReport:
        """Return a report of a configuration that cannot be loaded."""
        findings = []
        for problem in error.problems:
            expected, _, hint = (problem.expected or "").partition("; did you mean ")
            message = f"found {problem.found}, expected {expected}" if problem.expected else str(problem)
            fix = f"Did you mean {hint}" if hint else "" if problem.path else "Correct the file."
            findings.append(finding("error", "config-invalid", problem.path, message, fix, error=error))
        return cls(tuple(findings))

    @property
    def ok(self) -> bool:
        """Whether there is no error; there may be warnings."""
        return all(finding.severity != "error" for finding in self.findings)


def finding(
    severity: Severity,
    id: str,  # noqa: A002 - the name of the field
    path: str,
    message: str,
    fix: str = "",
    *,
    error: Exception | None = None,
) -> Finding:
    """Return a finding with the reason why it matters."""
    return Finding(severity, path, message, fix, error, id=id, why=WHY[id])


def examined(vendor: str, path: str, what: str, look: Callable[[], Iterable[Finding]]) -> list[Finding]:
    """Return the findings of one look, and one that names what could not be seen if it fails."""
    found: list[Finding] = []
    try:
        found.extend(look())
    except Exception as error:
        text = f"could not examine {what}: {reason_of(error).removeprefix('unexpected ')}"
        fix = "Grant the permission to read it, or look at it with the server's own tools."
        if isinstance(error, (ConnectionError, TimeoutError, StoreUnavailableError, TransportError)):
            fix = "Check that the server runs and can be reached, and run it again."
        found.append(finding("info", f"{vendor}-not-examined", path, text, fix))
    return found


def redacted(findings: Iterable[Finding], secrets: Iterable[str]) -> Iterator[Finding]:
    """Yield findings whose texts, which may be those of clients and servers, contain no secrets."""
    known = list(secrets)
    for each in findings:
        yield replace(each, message=hidden(each.message, known), fix=hidden(each.fix, known))


def hidden(text: str, secrets: Iterable[str]) -> str:
    """Return a text without these secrets, and without those that can be recognized in addresses."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) > _SHORT:
            text = text.replace(secret, "***")
    return without_secrets(text)


def reason_of(error: Exception) -> str:
    """Return the text of an error in one line, without secrets; it names the type of an unexpected error."""
    words = str(error) if isinstance(error, ConfigError) else without_secrets(str(error))  # ours quote no secrets
    text = " ".join(words.split())
    return text if isinstance(error, ClaimCheckError) else f"unexpected {type(error).__name__}: {text}"
