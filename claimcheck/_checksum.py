"""CRC-32 and hashes of content, by the fastest code that is installed.

`crc32` has the polynomial of zlib, of PNG and of S3's ``ChecksumCRC32`` (ISO 3309). ``isal`` computes it with the
processor's carry-less multiplication, several times faster than most builds of zlib; the values are the same.

`content_hash` is used like the hashes of hashlib, and gives 128 bits or more. It tells apart what nobody forges, such
as the results of two attempts. Its values are others where ``xxhash`` (XXH3) is missing: nothing may keep them.
"""

from __future__ import annotations

try:
    from isal.isal_zlib import crc32, crc32_combine
except ImportError:
    from zlib import crc32

    def crc32_combine(first: int, second: int, second_bytes: int, /) -> int:
        """Return the checksum of two parts in a row, from that of each and the length of the second."""
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


try:
    from xxhash import xxh3_128 as content_hash
except ImportError:
    from hashlib import sha256 as content_hash  # type: ignore[assignment]

__all__ = ["content_hash", "crc32", "crc32_combine"]
