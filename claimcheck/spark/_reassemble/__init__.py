"""Chunks in a DataFrame become payloads: ``df.transform(reassemble("value", config=...))``, batch and streaming."""

from claimcheck.spark._reassemble.reassemble import reassemble

__all__ = ["reassemble"]
