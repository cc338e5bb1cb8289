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
    if path != STDIO and os.path.lexists(path) and not _is_device(path):
        raise ClaimCheckError(f"{path} already exists: delete it first, or name another file")


@contextlib.contextmanager
def output(path: str) -> Iterator[BinaryIO]:
    """Return a file to write to. It appears under its name when the block succeeds, and is deleted when it fails."""
    check_output(path)
    folder, name = os.path.split(path)
    is_direct = path == STDIO or _is_device(path)
    draft = path if is_direct else os.path.join(folder, f".{name[:100]}.{uuid.uuid4().hex}.partial")
    try:
        with contextlib.nullcontext(sys.stdout.buffer) if path == STDIO else open(draft, "wb", opener=_private) as file:
            yield file
            file.flush()
        if not is_direct:
            _publish(draft, path)
    except BrokenPipeError:  # the reader ended
        raise
    except OSError as error:
        where = "standard output" if path == STDIO else path
        raise ClaimCheckError(f"cannot write {where}: {error.strerror or error}") from error
    finally:
        if not is_direct:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(draft)


def _publish(partial: str, path: str) -> None:
    try:
        os.link(partial, path)  # unlike a rename it never replaces
    except OSError:  # it came up meanwhile, or the file system has no hard links
        check_output(path)
        os.replace(partial, path)


def _is_device(path: str) -> bool:
    """Whether a path is a device or a pipe; links count in ``/dev`` only, such as ``/dev/stdout``."""
    return os.path.exists(path) and not os.path.isfile(path) and (path.startswith("/dev/") or not os.path.islink(path))


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


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
