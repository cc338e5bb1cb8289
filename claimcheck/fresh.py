"""Memory for a payload that is yet to come, handed out as ``bytes`` without a copy."""

from __future__ import annotations

import contextlib
import functools
import io
import mmap
from collections.abc import Callable

__all__ = ["FreshBytes"]

_HUGE_FROM_BYTES = 32 << 20  # from here on every allocation is new to the process, and its pages are touched one by one


class FreshBytes:
    """Room for exactly one payload; a context manager around its filling.

    ``bytes(n)`` is zero pages that cost nothing before they are touched, `io.BytesIO` adopts it because nobody else
    knows it, and gives it back as it is: one payload of memory at the peak, and no pass over it but the filling.

    Attributes:
        view: Where the payload goes; released when the block is left.
    """

    def __init__(self, size: int) -> None:
        self._box = io.BytesIO(bytes(size))
        self.view = self._box.getbuffer()
        if size >= _HUGE_FROM_BYTES:
            _ask_for_huge_pages(self.view)

    @property
    def payload(self) -> bytes:
        """What was filled in; only after the block."""
        return self._box.getvalue()

    def __enter__(self) -> FreshBytes:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.view.release()
        if error is not None:  # which may live long, and knows of this object
            self._box = io.BytesIO()


def _ask_for_huge_pages(view: memoryview) -> None:
    """A hint: to touch new memory in steps of 2 MiB is two to three times as fast as page by page (madvise(2))."""
    with contextlib.suppress(Exception):  # another system, another interpreter: then it is only slower
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
