"""A temporary file for payloads that can be read only once; imported when the first one comes."""

from __future__ import annotations

from tempfile import SpooledTemporaryFile

__all__ = ["Spool"]


class Spool(SpooledTemporaryFile[bytes]):
    """In memory up to 8 MiB, on disk beyond; removed with the last reference, whatever became of the payload."""

    def __init__(self) -> None:
        super().__init__(max_size=8 << 20)

    def __del__(self) -> None:
        self.close()
