"""The record on disk of what a run has created, so that the next run can remove what an interrupted one left."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.benchmarks.compare.broker import BrokerAddress
from tests.benchmarks.compare.model import CompareError

_LOCKED = "another comparison uses this broker: wait until it has finished"


def state_folder() -> Path:
    """Return the folder for journals: ``claimcheck`` in ``XDG_STATE_HOME``, by default ``~/.local/state``.

    A relative path in the variable is ignored, as the XDG specification requires.
    """
    base = os.environ.get("XDG_STATE_HOME", "")
    if os.path.isabs(base):
        return Path(base, "claimcheck")
    try:
        return Path.home() / ".local" / "state" / "claimcheck"
    except RuntimeError as error:
        raise CompareError("there is no home directory: name a folder for the state with XDG_STATE_HOME") from error


@dataclass(slots=True)
class Journal:
    """A JSON file that is written after every change. It contains no address and no setting of a store.

    Attributes:
        path: The file.
        run: Identifies the run, in names of topics and keys.
        topics: Topics that exist.
        folders: Temporary folders that exist.
        stored: Whether there may be payloads in the store.
    """

    path: Path
    run: str = field(default_factory=lambda: secrets.token_hex(4))
    topics: list[str] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    stored: bool = False

    @classmethod
    def of(cls, folder: Path, address: BrokerAddress) -> Path:
        """Return the path for a broker; its name contains a digest of the address."""
        digest = hashlib.sha256(f"{address.kind} {address.url}".encode()).hexdigest()[:16]
        return folder / f"compare-{address.kind}-{digest}.json"

    @classmethod
    def read(cls, path: Path) -> Journal | None:
        """Return the journal of an interrupted run; ``None`` if there is none."""
        if not path.exists():
            return None
        try:
            values = json.loads(path.read_text())
            return cls(path=path, **values)
        except (ValueError, TypeError) as error:
            text = f"{path}, the record of an interrupted run, cannot be read: delete it and its topics ({error})"
            raise CompareError(text) from error

    def write(self) -> None:
        """Replace the file."""
        names = ("run", "topics", "folders", "stored")
        values = {name: getattr(self, name) for name in names}
        partial = self.path.with_suffix(".partial")
        with _usable(self.path.parent):
            partial.write_text(json.dumps(values))
            os.replace(partial, self.path)

    def remove(self) -> None:
        """Delete the file: nothing is left to clean up."""
        self.path.unlink(missing_ok=True)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a journal; the operating system releases it when the process ends."""
    lock = path.with_suffix(".lock")
    with _usable(path.parent):
        file = open(lock, "w")  # noqa: SIM115 - closed below
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise CompareError(_LOCKED) from error
        if not os.fstat(file.fileno()).st_nlink:  # its holder deleted it meanwhile: another process may lock a new one
            raise CompareError(_LOCKED)
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                lock.unlink()


@contextlib.contextmanager
def _usable(folder: Path) -> Iterator[None]:
    """Create the folder for a block that writes to it; an error describes what it is for, and how to choose another."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        yield
    except OSError as error:
        what = "the folder in which a comparison records what it creates"
        how = "choose another with the environment variable XDG_STATE_HOME"
        raise CompareError(f"{folder}, {what}, cannot be used ({error.strerror or error}): {how}") from error
