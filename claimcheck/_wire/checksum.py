"""CRC-32, by the fastest implementation installed.

`crc32` is that of zlib, PNG and S3's ``ChecksumCRC32`` (ISO 3309). ``isal`` computes it with the processor's carry-less
multiplication, several times faster than most builds of zlib; the values are the same.
"""

from __future__ import annotations

try:
    from isal.isal_zlib import crc32, crc32_combine
except ImportError:
    from zlib import crc32

    def crc32_combine(first: int, second: int, second_bytes: int, /) -> int:
        """Return the checksum of two consecutive parts, from their checksums and the length of the second."""
        shift, power = 1 << 31, 1 << 23  # the polynomials 1 and x to the 8th: a byte shifts by that much
        while second_bytes:
            shift = _times(shift, power) if second_bytes & 1 else shift
            power, second_bytes = _times(power, power), second_bytes >> 1
        return _times(shift, first) ^ second

    def _times(a: int, b: int) -> int:
        """Multiply two polynomials modulo that of CRC-32; the highest bit is the lowest power."""
        product = 0
        for bit in range(31, -1, -1):
            product ^= b if a >> bit & 1 else 0
            b = b >> 1 ^ (0xEDB88320 if b & 1 else 0)
        return product


__all__ = ["crc32", "crc32_combine"]
