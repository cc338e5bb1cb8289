"""Files and pipes of the command line: output appears when it is complete, and terminals show what happens."""

from __future__ import annotations

import contextlib
import os
import sys
import uuid
from collections.abc import Callable, Iterator
from typing import BinaryIO, TextIO

from claimcheck.errors import ClaimCheckError, EnvelopeError

STDIO = "-"
"""The path of standard input and output."""

_LARGEST_MESSAGE = 64 << 20
_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)  # not on Windows


def read_message(path: str) -> bytes:
    where = "standard input" if path == STDIO else path
    if path == STDIO and sys.stdin is None:
        raise ClaimCheckError("standard input is closed: name a file")
    with contextlib.nullcontext(sys.stdin.buffer) if path == STDIO else open(path, "rb") as file:
        message = file.read(_LARGEST_MESSAGE + 1)
    if not message:
        raise EnvelopeError(f"{where} is empty, not an envelope")
    if len(message) > _LARGEST_MESSAGE:
        raise EnvelopeError(f"{where} is not a message: it is larger than {_LARGEST_MESSAGE >> 20} MiB")
    return message


def check_output(path: str) -> None:
    """Check an output path before the work begins; `output` checks it again."""
    if path == STDIO and sys.stdout is None:
        raise ClaimCheckError("standard output is closed: use -o FILE")
    if path == STDIO or _is_device(path):
        return
    if os.path.islink(path):  # its author would choose the file that is written
        raise ClaimCheckError(f"{path} is a symbolic link: name the file itself")
    if os.path.exists(path):
        raise ClaimCheckError(f"{path} already exists: delete it first, or name another file")
    directory = _directory(path)
    if not os.path.isdir(directory):
        raise ClaimCheckError(f"the directory {directory} does not exist")
    if not os.access(directory, os.W_OK):
        raise ClaimCheckError(f"the directory {directory} is not writable")


@contextlib.contextmanager
def output(path: str) -> Iterator[BinaryIO]:
    """Return a file to write to. It appears under its name when the block succeeds, and is deleted when it fails."""
    check_output(path)
    try:
        with _writable(path) as file:
            yield file
    except BrokenPipeError:  # the reader ended
        raise
    except OSError as error:
        where = "standard output" if path == STDIO else path
        raise ClaimCheckError(f"cannot write {where}: {error.strerror or error}") from error


def _writable(path: str) -> contextlib.AbstractContextManager[BinaryIO]:
    if path == STDIO:
        return _flushed(sys.stdout.buffer)
    return open(path, "wb") if _is_device(path) else _growing(path)


@contextlib.contextmanager
def _flushed(file: BinaryIO) -> Iterator[BinaryIO]:
    yield file
    file.flush()


@contextlib.contextmanager
def _growing(path: str) -> Iterator[BinaryIO]:
    path = os.path.join(_directory(path), os.path.basename(path))
    partial = os.path.join(_directory(path), f".{os.path.basename(path)[:100]}.{uuid.uuid4().hex}.partial")
    try:
        with open(partial, "xb", opener=_open_private) as file:
            yield file
        _publish(partial, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(partial)


def _publish(partial: str, path: str) -> None:
    try:
        os.link(partial, path)  # unlike a rename it never replaces
    except FileExistsError:
        raise ClaimCheckError(f"{path} was created by another process: delete it, or name another file") from None
    except OSError:  # a file system without hard links
        check_output(path)
        os.replace(partial, path)


def _directory(path: str) -> str:
    return os.path.realpath(os.path.dirname(path) or os.curdir)


def _is_device(path: str) -> bool:
    """Whether a path is a device or a pipe; links count in ``/dev`` only, such as ``/dev/stdout``."""
    return os.path.exists(path) and not os.path.isfile(path) and (path.startswith("/dev/") or not os.path.islink(path))


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags | _NOFOLLOW, 0o600)


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a standard stream is a terminal; ``None`` is a closed one."""
    return stream is not None and stream.isatty()


@contextlib.contextmanager
def reported(first: str, show: Callable[[BaseException | None], None]) -> Iterator[Callable[[str], None]]:
    """Yield a function that shows the state on a terminal; the result is shown even after an error."""
    problem: BaseException | None = None
    try:
        show_state(first)
        yield show_state
    except BaseException as error:
        problem = error
        raise
    finally:
        show_state("")
        show(problem)


def show_state(text: str) -> None:
    """Replace the line that a terminal shows."""
    if is_terminal(sys.stderr):
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()


def note(text: str) -> None:
    """Write a result for people to the terminal. Scripts have the exit code, and cron mails any output."""
    if is_terminal(sys.stderr):
        sys.stderr.write(f"{text}\n")
