"""Places in Pulsar topics: whole entries, of whole ledgers, of partitions; what a checkpoint keeps of them. No I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

__all__ = ["NOTHING", "Offsets", "Position", "from_json", "split_name", "to_json"]

Position = tuple[int, int]
"""Ledger and entry, both from 0. A batch is one entry: it is read as a whole."""

Offsets = dict[str, Position]
"""From the full name of a partition to the last entry that was read; of one that is not named nothing was."""

NOTHING: Position = (-1, -1)
"""Before everything."""

_PARTITION = re.compile(r"(.+)-partition-(\d+)")


def from_json(value: Mapping[str, Any]) -> Offsets:
    """Read what a checkpoint holds."""
    return {name: (int(ledger), int(entry)) for name, (ledger, entry) in value.items()}


def to_json(offsets: Offsets) -> dict[str, list[int]]:
    """Write it, always in the same order: Spark compares texts."""
    return {name: list(offsets[name]) for name in sorted(offsets)}


def split_name(partition: str) -> tuple[str, int]:
    """Take the name of a partition apart: the user's topic, and the partition's number, -1 where there is none."""
    found = _PARTITION.fullmatch(partition)
    return (found[1], int(found[2])) if found else (partition, -1)
