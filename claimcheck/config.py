"""The configuration as frozen dataclasses, and its placeholders and keys.

``${NAME}`` and ``${NAME:-default}`` in store options, signing keys and encryption keys are resolved by the process that
uses them (`expand`), so a pickled configuration carries names, not secrets.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal, NoReturn, TypeVar, dataclass_transform

from claimcheck._texts import HEADER as HEADER
from claimcheck._texts import MAX_POINTER_BYTES as MAX_POINTER_BYTES
from claimcheck._validation import SECRET, AutoBytes, ByteCount, Check, Count, Range, Seconds, Size, fail
from claimcheck.errors import ConfigError

__all__ = [
    "ChunkingConfig",
    "CompressionConfig",
    "Config",
    "EncryptionConfig",
    "ENCRYPTION_KEY_BYTES",
    "encryption_key",
    "EnvelopeConfig",
    "expand",
    "HybridConfig",
    "LimitsConfig",
    "MIN_KEY_BYTES",
    "signing_key",
    "SigningConfig",
    "StoreConfig",
]

VERSION = "0.2.0"
"""The version of this library. Workers may have no metadata of packages, and a test compares it with pyproject.toml."""

MIN_KEY_BYTES = 16
"""The minimum length of a signing key."""

ENCRYPTION_KEY_BYTES = 32
"""The length of an encryption key of ``provider: local``."""

T = TypeVar("T")

_HEADER = Check(lambda header: header.isascii() and 4 <= len(header) <= 64, "4 to 64 ASCII characters")

Action = Literal["redeliver", "dead_letter", "ack"]

_PARTITION = re.compile(r"-partition-\d+$")
_DEFAULT = "public/default/"
PLACEHOLDER = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def _section(kind: type[T]) -> type[T]:
    """Make a frozen dataclass that refuses to be unpickled by, or from, another version of this library."""

    def reduce(self: Any) -> tuple[object, ...]:
        return _unpickled, (VERSION, made, {each.name: getattr(self, each.name) for each in fields(self)})

    def set_state(self: Any, state: object) -> NoReturn:
        _refuse("0.1.0 or earlier")

    made = dataclass(frozen=True, slots=True)(kind)
    for name, method in (("__reduce__", reduce), ("__setstate__", set_state)):
        setattr(made, name, method)
    return made


def _unpickled(version: str, kind: type[Any], values: dict[str, Any]) -> Any:
    if version != VERSION:
        _refuse(version)
    if values.keys() != {each.name for each in fields(kind)}:
        _refuse(f"{version} with other options")
    return kind(**values)


def _refuse(version: str) -> NoReturn:
    raise ConfigError(
        f"the configuration was pickled by claimcheck {version}, and this process has claimcheck {VERSION}: install "
        "the same version everywhere, in Spark on the driver and on all workers",
        found=version,
        expected=VERSION,
    )


@_section
class StoreConfig:
    """One entry of ``stores``: its type and the options of that type, with unresolved placeholders."""

    type: Annotated[str, Check(bool, "a store type such as redis, s3, filesystem, memory or module:Class")]
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)


@_section
class ChunkingConfig:
    """How payloads travel as chunks, and how many incomplete ones a reader holds.

    Attributes:
        max_message_bytes: Size limit of a chunk's whole message on the wire, at least 200; ``auto`` uses the threshold.
        max_payload_bytes: Writers refuse larger payloads, and readers report them as errors.
        max_chunks: Writers refuse payloads of more chunks, and readers report them as errors.
        max_pending_payloads: Number of incomplete payloads that a reader holds at once.
        max_pending_bytes: Bytes of incomplete payloads that a reader holds at once; at least ``max_payload_bytes``.
        max_pending_messages: Messages of incomplete payloads that a reader holds at once, including duplicates; at
            least ``max_chunks``.
        expire_after_seconds: Time after its first chunk when an incomplete payload expires; 0 for never.
        on_expire: What a reader does with the chunks of an expired payload.
        on_evict: What a reader does with the chunks of a payload that it evicted to make room for others.
        max_redeliveries: How often the chunks of an incomplete payload are redelivered (``redeliver``), from 0. After
            that the application receives an `IncompletePayloadError`.
    """

    max_message_bytes: Annotated[int, Range(200)] | Literal["auto"] = "auto"
    max_payload_bytes: ByteCount = 256 << 20
    max_chunks: Count = 100_000
    max_pending_payloads: Count = 100
    max_pending_bytes: ByteCount = 256 << 20
    max_pending_messages: Count = 200_000
    expire_after_seconds: Seconds = 60
    on_expire: Action = "redeliver"
    on_evict: Action = "redeliver"
    max_redeliveries: Annotated[int, Range(0)] = 3


@_section
class HybridConfig:
    """When the hybrid strategy sends chunks instead of pointers.

    Attributes:
        chunk_below_bytes: Payloads over the threshold and up to this size are sent as chunks; 0 for none.
        retry_store_after_seconds: How long to avoid a store after it failed.
    """

    chunk_below_bytes: Size = 0
    retry_store_after_seconds: Seconds = 30


@_section
class CompressionConfig:
    """How payloads are compressed before they are stored or split into chunks. Readers need no configuration.

    Attributes:
        codec: Only ``zstd``.
        level: -7 to 19; lower ones are faster and save less. Level 3 takes twice the time of 1 to save a few percent.
        min_bytes: Smaller payloads are not compressed.
    """

    codec: Literal["zstd"] = "zstd"
    level: Annotated[int, Range(-7, 19)] = 1  # those above need windows that readers refuse
    min_bytes: Size = 16 << 10


@_section
class SigningConfig:
    """The secrets that sign and verify messages, and which signed messages readers accept.

    Attributes:
        key_id: The key that writers sign with; ``None`` for processes that only read.
        keys: Secrets by key id, with unresolved placeholders; each at least 16 bytes when resolved.
        require: Whether readers reject unsigned pointers of version 2, payloads in chunks, escaped payloads and abort
            envelopes; by default true if there are keys, else false. Pointers of version 1 have no signature and are
            rejected if there are keys.
        require_envelope: Whether readers reject plain messages, which have no signature. Writers then send every
            payload as a signed envelope, small ones, too. Tombstones stay plain.
        bind_destination: Whether readers accept a signed message only from the topic that it was sent to.
        accept_from: By pattern of the topic that readers read from: patterns of other topics whose signed or encrypted
            messages they accept there, for dead-letter topics, mirrors and forwarded messages.
        max_age_seconds: The age at which readers reject a signed message; ``None`` for no limit.
    """

    key_id: str | None = None
    keys: Mapping[str, str] = field(default_factory=dict, repr=False)
    require: bool | None = None
    require_envelope: bool = False
    bind_destination: bool = True
    accept_from: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    max_age_seconds: Seconds | None = None

    def __post_init__(self) -> None:
        if self.require is None:
            object.__setattr__(self, "require", bool(self.keys))


@_section
class EncryptionConfig:
    """The keys that encrypt and decrypt payloads.

    Each payload is encrypted with a data key, which is stored beside it, encrypted with a key of this section.

    Attributes:
        key_id: The key that writers use; ``None`` for processes that only read.
        keys: Keys by key id, with unresolved placeholders: 32 bytes in base64 for ``local``, the ARN or alias of a key
            for ``aws-kms``, and what the class expects for ``module:Class``. Readers accept only these.
        require: Whether readers reject payloads that are not encrypted; by default true if there are keys, else false.
        inline: Whether payloads that stay in their messages are encrypted, too.
        provider: ``local``, ``aws-kms``, the name of an entry point, or ``module:Class`` of a `claimcheck.KeyProvider`.
        options: Options of the provider, with unresolved placeholders.
    """

    key_id: str | None = None
    keys: Mapping[str, str] = field(default_factory=dict, repr=False)
    require: bool | None = None
    inline: bool = False
    provider: str = "local"
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if self.require is None:
            object.__setattr__(self, "require", bool(self.keys))


@_section
class LimitsConfig:
    """Size limits that are checked before any I/O.

    Attributes:
        max_payload_bytes: The largest payload that is written or read.
        max_pointer_bytes: The largest pointer that readers decode, at least 512.
    """

    max_payload_bytes: ByteCount = 5 << 30
    max_pointer_bytes: Annotated[int, Range(512)] = MAX_POINTER_BYTES


@_section
class EnvelopeConfig:
    """The header of envelopes.

    Attributes:
        header: 4 to 64 ASCII characters that every envelope begins with. Writers and readers must agree.
    """

    header: Annotated[str, _HEADER] = HEADER.decode()


@_section
class Config:
    """The configuration of a `ClaimCheck`. Holds no secrets except those written out in the file.

    Can be pickled, for processes with the same version of this library; another version raises a `ConfigError`.

    Attributes:
        strategy: ``external``, ``chunking``, ``hybrid``, ``inline``, the name of an entry point, or ``module:Class``.
        threshold_bytes: Payloads are offloaded if their message would be larger than this on the wire; ``auto`` uses
            the limit of the producer.
        store: The store that writers use; by default the only one.
        stores: All stores by name.
        reads_from: Names of the stores that readers accept in pointers; ``None`` for all. A destination's must be among
            those of the top level, and applies to readers that know where a message came from.
        chunking: Payloads in chunks; see `ChunkingConfig`.
        hybrid: The hybrid strategy; see `HybridConfig`.
        checksum: The algorithm of the checksums that writers add to pointers and chunks: ``crc32``, ``sha256`` or
            ``xxh3-128``. By default ``sha256`` if there are signing keys, so that a signed pointer names exactly one
            content, else ``crc32``. Readers verify all of them. If signatures are required, signed pointers must have
            a checksum by ``sha256`` or by the algorithm that is set here. Encrypted payloads have none: their
            encryption authenticates them.
        signing: Signatures of messages; see `SigningConfig`.
        encryption: Encryption of payloads; see `EncryptionConfig`.
        limits: Size limits; see `LimitsConfig`.
        compression: Compression of payloads; see `CompressionConfig`. ``None`` for none.
        envelope: The format of envelopes; see `EnvelopeConfig`.
        destinations: Overrides by destination pattern, in the order of the file; the first match applies.
    """

    strategy: str = "external"
    threshold_bytes: AutoBytes = "auto"
    store: str | None = None
    stores: Mapping[str, StoreConfig] = field(default_factory=dict)
    reads_from: tuple[str, ...] | None = None
    chunking: ChunkingConfig = field(default_factory=ChunkingConfig)
    hybrid: HybridConfig = field(default_factory=HybridConfig)
    checksum: Literal["crc32", "sha256", "xxh3-128"] | None = None
    signing: Annotated[SigningConfig, SECRET] = field(default_factory=SigningConfig)
    encryption: Annotated[EncryptionConfig, SECRET] = field(default_factory=EncryptionConfig)
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    compression: CompressionConfig | None = None
    envelope: EnvelopeConfig = field(default_factory=EnvelopeConfig)
    destinations: tuple[tuple[str, Config], ...] = ()

    @property
    def header(self) -> bytes:
        """The first bytes of every envelope."""
        return self.envelope.header.encode()

    @property
    def content_checksum(self) -> str:
        """The algorithm of the checksums that writers add to pointers and chunks."""
        return self.checksum or ("sha256" if self.signing.keys else "crc32")

    @property
    def chunks(self) -> ChunkingConfig:
        """``chunking`` for readers: with the lower ``max_payload_bytes`` of ``chunking`` and ``limits``."""
        limit = min(self.chunking.max_payload_bytes, self.limits.max_payload_bytes)
        return replace(self.chunking, max_payload_bytes=limit)

    @property
    def readable(self) -> tuple[str, ...]:
        """The names of the stores that pointers may name."""
        return tuple(self.stores) if self.reads_from is None else self.reads_from

    def readable_from(self, destination: str | None) -> tuple[str, ...]:
        """Return the names of the stores that pointers may name in messages from a destination, under any name."""
        names = () if destination is None else (destination, canonical(destination))
        for pattern, config in self.destinations:
            if any(fnmatchcase(name, pattern) for name in names):
                return config.readable
        return self.readable

    def for_destination(self, destination: str) -> Config:
        """Return the configuration of the first matching pattern, else this one."""
        for pattern, config in self.destinations:
            if fnmatchcase(destination, pattern):
                return config
        return self


def canonical(destination: str) -> str:
    """Return the one name of a topic by which it is signed and compared, whichever name a client uses for it."""
    scheme, separator, rest = destination.partition("://")
    if not separator:
        return destination.removeprefix(_DEFAULT)
    topic = _PARTITION.sub("", rest)
    return topic.removeprefix(_DEFAULT) if scheme == "persistent" else f"{scheme}://{topic}"


def expand(value: Any, *, path: str, environ: Mapping[str, str] | None = None) -> Any:
    """Resolve ``${NAME}`` and ``${NAME:-default}`` in text; other values are returned unchanged.

    Raises:
        ConfigError: A variable is not set and has no default.
    """
    if not isinstance(value, str):
        return value
    known = os.environ if environ is None else environ

    def lookup(match: re.Match[str]) -> str:
        name, default = match.groups()
        if name not in known and default is None:
            fail(path, found=f"${{{name}}}, which is not set", expected=f"the environment variable {name}")
        return known.get(name) or default or ""

    return PLACEHOLDER.sub(lookup, value)


def signing_key(text: str, *, path: str, environ: Mapping[str, str] | None = None) -> bytes:
    """Resolve a signing key and return its bytes.

    Raises:
        ConfigError: A variable is not set, or the key has fewer than 16 bytes or cannot be encoded as UTF-8. The error
            does not quote the key.
    """
    try:
        secret: bytes = expand(text, path=path, environ=environ).encode("utf-8", "surrogateescape")  # as os.environ
    except UnicodeEncodeError:
        secret = b""
    if len(secret) < MIN_KEY_BYTES:
        fail(path, found="a secret that is too short", expected=f"at least {MIN_KEY_BYTES} bytes of text")
    return secret


def encryption_key(text: str, *, path: str, environ: Mapping[str, str] | None = None) -> bytes:
    """Resolve an encryption key of ``provider: local`` and return its bytes.

    Raises:
        ConfigError: A variable is not set, or the text is not 32 bytes in base64. The error does not quote the key.
    """
    try:
        key = base64.b64decode(expand(text, path=path, environ=environ).strip(), validate=True)
    except (ValueError, binascii.Error):
        key = b""
    if len(key) != ENCRYPTION_KEY_BYTES:
        expected = f"{ENCRYPTION_KEY_BYTES} random bytes in base64, as `openssl rand -base64 {ENCRYPTION_KEY_BYTES}`"
        fail(path, found="another text", expected=f"{expected} prints them")
    return key
