"""Garbage collection: deletes stored payloads that no readable message of a broker points at."""
