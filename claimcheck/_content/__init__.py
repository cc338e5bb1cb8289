"""Encryption and compression: from bytes to bytes. No I/O."""
