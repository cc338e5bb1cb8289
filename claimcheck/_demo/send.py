"""The input files, and the producer process that sends each of them through one decorated function."""

from __future__ import annotations

import hashlib
import itertools
import os
import stat
import struct
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import claimcheck
from claimcheck._envelope import decode
from claimcheck.errors import ClaimCheckError
from claimcheck.transports.local import LocalBroker, MessageId

MAX_FILE_BYTES = 256 << 20
"""Larger files are skipped: a payload is one value in a Spark row, and chunking has the same default limit."""


class DemoError(ClaimCheckError):
    """The demo failed; its temporary files were deleted."""


class FolderError(DemoError):
    """The folder cannot be used; name another one."""


@dataclass(frozen=True, slots=True)
class Folder:
    """The files below a folder."""

    root: Path
    sizes: dict[str, int] = field(repr=False)
    skipped: dict[str, str] = field(repr=False)

    @property
    def total_bytes(self) -> int:
        """The total size of the files."""
        return sum(self.sizes.values())


def find(root: Path) -> Folder:
    """Return every file below a folder and its subfolders; links to folders are not followed."""
    _check_folder(root)
    skipped: dict[str, str] = {}
    sizes = {name: size for name in sorted(_names(root, skipped)) if (size := _size(root, name, skipped)) is not None}
    if not sizes:
        why = "; ".join(f"{name}: {reason}" for name, reason in list(skipped.items())[:3])
        raise FolderError(f"nothing below {root} can be sent" + (f" ({why})" if why else ": it holds no files"))
    return Folder(root, sizes, skipped)


def _check_folder(root: Path) -> None:
    try:
        if stat.S_ISDIR(root.stat().st_mode):
            return
    except FileNotFoundError:
        raise FolderError(f"{root} is not a folder: name another one with --dir") from None
    except (OSError, ValueError) as error:
        raise FolderError(f"{root} cannot be used: {error}") from error
    raise FolderError(f"{root} is a file, not a folder: name the folder that contains it")


def read_file(path: Path) -> bytes:
    """Return the content of a file."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise DemoError(_reason(error)) from error
    if len(content) > MAX_FILE_BYTES:
        raise DemoError(_TOO_LARGE)
    return content


def _names(root: Path, skipped: dict[str, str]) -> Iterator[str]:
    def unreadable(error: OSError) -> None:
        skipped[os.path.relpath(error.filename, root)] = _reason(error)

    for folder, _, names in os.walk(root, onerror=unreadable):
        yield from (os.path.relpath(os.path.join(folder, name), root) for name in names)


def _size(root: Path, name: str, skipped: dict[str, str]) -> int | None:
    try:
        status = (root / name).stat()
    except OSError as error:
        skipped[name] = "a broken link" if (root / name).is_symlink() else _reason(error)
        return None
    if not stat.S_ISREG(status.st_mode):  # reading a pipe or a device could block forever
        skipped[name] = "not a regular file"
    elif status.st_size > MAX_FILE_BYTES:
        skipped[name] = _TOO_LARGE
    elif not os.access(root / name, os.R_OK):
        skipped[name] = "permission denied"
    return None if name in skipped else status.st_size


_TOO_LARGE = f"larger than the demo's limit ({MAX_FILE_BYTES >> 20} MiB)"


def _reason(error: OSError) -> str:
    return "vanished" if isinstance(error, FileNotFoundError) else (error.strerror or str(error)).lower()


_ENTRY = struct.Struct(">q")


@dataclass(frozen=True, slots=True)
class FileCounter:
    """Counts files and bytes in a file that several processes append to; pickles as its path."""

    path: Path

    def add(self, size: int) -> None:
        """Count one file of ``size`` bytes."""
        with self.path.open("ab", buffering=0) as file:
            file.write(_ENTRY.pack(size))

    def total(self) -> tuple[int, int]:
        """Return the number of files and their bytes."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return 0, 0
        whole = content[: len(content) // _ENTRY.size * _ENTRY.size]
        sizes = [size for (size,) in _ENTRY.iter_unpack(whole)]
        return len(sizes), sum(sizes)

    def reset(self) -> None:
        """Start again from 0."""
        self.path.unlink(missing_ok=True)


# The producer --------------------------------------------------------------------------------------------------

BROKER_LIMIT_BYTES = 1 << 20
"""The broker's limit for one message."""

TOPIC = "files"
PARTITIONS = 4

_KINDS = {"PointerData": "pointer", "Chunk": "chunk", "Literal": "literal", "Plain": "plain", "Abort": "abort"}


@dataclass(frozen=True, slots=True)
class Order:
    """The arguments of the producer process."""

    config: Mapping[str, object]
    broker: Path
    root: Path
    names: list[str] = field(repr=False)
    counter: FileCounter
    stop: Path


@dataclass(frozen=True, slots=True)
class Sent:
    """The results of the producer process."""

    digests: dict[bytes, str] = field(repr=False)
    sizes: dict[bytes, int] = field(repr=False)
    skipped: dict[str, str]
    envelopes: dict[str, int]
    seconds: float
    broker_bytes: int


def produce(order: Order) -> Sent:
    """Send every file, and skip those that cannot be read."""
    cc = claimcheck.from_dict(order.config)
    broker = LocalBroker(order.broker, max_message_bytes=BROKER_LIMIT_BYTES)
    envelopes: Counter[str] = Counter()

    @cc.offload(payload="value", destination="topic", key="key", headers="headers")
    def publish(topic: str, value: bytes, key: bytes, headers: dict[str, str] | None = None) -> MessageId:
        envelopes[_KINDS[type(decode(value)).__name__]] += 1
        return broker.append(topic, value, key=key, headers=headers)

    digests, sizes, skipped, seconds = dict[bytes, str](), dict[bytes, int](), dict[str, str](), 0.0
    with cc, broker:
        for name in itertools.takewhile(lambda _: not order.stop.exists(), order.names):
            try:
                payload = read_file(order.root / name)
            except DemoError as error:
                skipped[name] = str(error)
                continue
            key = os.fsencode(name)
            begin = time.perf_counter()
            publish(TOPIC, payload, key)
            seconds += time.perf_counter() - begin
            digests[key], sizes[key] = hashlib.sha256(payload).hexdigest(), len(payload)
            order.counter.add(len(payload))
        return Sent(digests, sizes, skipped, dict(envelopes), seconds, broker.stats(TOPIC).bytes)
