"""Memory for one payload, which becomes the caller's ``bytes`` without a copy."""

from __future__ import annotations

import contextlib
import functools
import io
import mmap
import sys
from collections.abc import Callable
from typing import Any

_ZEROED_BELOW_BYTES = 256 << 10  # zeroing them takes no longer than the call through ctypes
_HUGE_FROM_BYTES = 32 << 20  # from here on every allocation is new to the process, and its pages are touched one by one
_HUGE_UP_TO_BYTES = 128 << 20  # a virtual machine may have to ask its host for more, which 2 MiB at a time make slower


class _Memory(io.BytesIO):
    """Stays open while views of it exist: from Python 3.13 on, the garbage collector reports an error otherwise."""

    def close(self) -> None:
        with contextlib.suppress(BufferError):
            super().close()


_new_memory = _Memory if sys.version_info >= (3, 13) else io.BytesIO  # which takes a microsecond less


class FreshBytes:
    """Preallocated memory for exactly one payload; a context manager around filling it."""

    def __init__(self, size: int, *, huge_pages: bool = True) -> None:
        self._box = _new_memory(bytes(size) if size < _ZEROED_BELOW_BYTES else _allocator()(None, size))
        self.view = self._box.getbuffer()
        if huge_pages and _HUGE_FROM_BYTES <= size <= _HUGE_UP_TO_BYTES:
            _advise_huge_pages(self.view)

    @property
    def payload(self) -> bytes:
        """The filled bytes; only after the block."""
        return self._box.getvalue()

    def __enter__(self) -> FreshBytes:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.view.release()
        if error is not None:  # its traceback refers to this object, and may live long
            self._box = _new_memory()


@functools.cache
def _allocator() -> Callable[[None, int], bytes]:
    """Return the interpreter's function for new bytes; ``bytes(n)`` zeroes memory that the process has used before."""
    import ctypes

    create = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_ssize_t)
    try:
        allocate: Any = create(("PyBytes_FromStringAndSize", ctypes.pythonapi))
    except AttributeError:  # not CPython
        return lambda _, size: bytes(size)
    return allocate  # type: ignore[no-any-return]


def _advise_huge_pages(view: memoryview) -> None:
    """Make touching new memory two to three times as fast, in steps of 2 MiB instead of pages; see madvise(2)."""
    with contextlib.suppress(Exception):  # only an optimization: not on every system or interpreter
        import ctypes

        first = ctypes.addressof(ctypes.c_char.from_buffer(view))
        begin = -(-first // mmap.PAGESIZE) * mmap.PAGESIZE
        _madvise()(begin, (first + len(view) - begin) // mmap.PAGESIZE * mmap.PAGESIZE, mmap.MADV_HUGEPAGE)


@functools.cache
def _madvise() -> Callable[[int, int, int], int]:
    import ctypes

    call = ctypes.CDLL(None).madvise
    call.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    madvise: Callable[[int, int, int], int] = call
    return madvise
