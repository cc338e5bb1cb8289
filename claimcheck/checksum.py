"""CRC-32, by the fastest code that is installed.

The polynomial of zlib, of PNG and of S3's ``ChecksumCRC32`` (ISO 3309). ``isal`` computes it with the processor's
carry-less multiplication, several times faster than most builds of zlib; the values are the same.
"""

from __future__ import annotations

try:
    from isal.isal_zlib import crc32
except ImportError:
    from zlib import crc32

__all__ = ["crc32"]
