"""Reads the golden vectors."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent / "golden"
UUID = "6ba7b810-9dad-11d1-80b4-00c04fd430c8"


def golden(name: str) -> bytes:
    """The bytes of one vector (see tests/golden/README.md)."""
    parts = []
    for line in (FOLDER / f"{name}.golden").read_text().splitlines():
        if line.startswith('"'):
            parts.append(line[1 : line.index('"', 1)].encode())
        else:
            parts.append(bytes.fromhex(line.partition("#")[0]))
    return b"".join(parts)


def names() -> list[str]:
    """All vectors."""
    return sorted(path.stem for path in FOLDER.glob("*.golden"))
