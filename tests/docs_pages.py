"""The pages of the documentation as tests see them: code blocks, and the comments in front of them.

A page's YAML blocks whose first line is ``# <name>.yaml`` become files. Its Python blocks run from top to bottom in one
namespace. A comment in front of a block says more:

- ``<!-- needs: kafka redis -->``: the block runs in the tests of these servers (or of ``spark``), after all blocks that
  need nothing.
- ``<!-- run -->``: a shell block that is run, not only checked.
- ``<!-- pytest -->``: a Python block that is a test file. ``<!-- store -->``: one of the store example.
- ``<!-- fails: ErrorName -->``: a Python block that raises this error.
- ``<!-- not run: reason -->``.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *(ROOT / "docs").rglob("*.md")]
)
SERVERS = ("kafka", "pulsar", "redis", "s3", "spark")

_BLOCK = re.compile(
    r"(?:<!-- (?P<note>[^>]*?) -->\n+)?```(?P<language>\w+)[^\n]*\n(?P<code>.*?)^```", re.DOTALL | re.MULTILINE
)
_YAML_NAME = re.compile(r"# ([\w-]+\.yaml)\n")
# On servers that tests share, each run has names of its own.
_SHARED = re.compile(r"(?<![\w/.-])(invoices|orders|scans|bookkeeping|claims-bucket)\b(?=[\w-]*[\"',\s/}])")


@dataclass(frozen=True)
class Block:
    """One fenced block.

    Attributes:
        language: ``python``, ``yaml``, ``shell`` ...
        code: Its text.
        note: The comment in front of it.
        line: Where its code begins, from 1.
    """

    language: str
    code: str
    note: str
    line: int

    @property
    def needs(self) -> frozenset[str]:
        """The servers that it needs."""
        kind, _, names = self.note.partition(":")
        return frozenset(names.split()) if kind == "needs" else frozenset()

    @property
    def is_script(self) -> bool:
        """Whether it is Python that runs with the blocks before it."""
        return self.language == "python" and self.note.split(":")[0] in ("", "needs", "fails")


def blocks(page: str) -> list[Block]:
    """Return the blocks of a page, in order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [
        Block(match["language"], match["code"], match["note"] or "", text.count("\n", 0, match.start("code")) + 1)
        for match in _BLOCK.finditer(text)
    ]


def needs_of_pages() -> Iterator[tuple[str, frozenset[str]]]:
    """Yield each page with each set of servers that Python blocks of it need; the empty set for those without."""
    for page in PAGES:
        scripts = [block for block in blocks(page) if block.is_script]
        yield from ((page, needs) for needs in sorted({block.needs for block in scripts}, key=sorted))


def cases(*servers: str) -> list[Any]:
    """Return the parameters of a test: pages whose blocks need these servers, and possibly others but the brokers."""
    import pytest

    wanted = [(page, needs) for page, needs in needs_of_pages() if _belongs(needs, servers)]
    return [pytest.param(page, needs, id="-".join([page, *sorted(needs)])) for page, needs in wanted]


def _belongs(needs: frozenset[str], servers: tuple[str, ...]) -> bool:
    first = next((name for name in ("spark", "kafka", "pulsar", "redis", "s3") if name in needs), None)
    return first in servers if servers else first is None


def run(page: str, needs: frozenset[str], folder: Path, addresses: Mapping[str, str], **names: Any) -> dict[str, Any]:
    """Run the Python blocks that need nothing, and those that need just these servers; returns their namespace."""
    suffix = uuid.uuid4().hex[:8]
    chosen = [block for block in blocks(page) if block.is_script and block.needs in (frozenset(), needs)]
    write_yaml(page, folder, addresses, suffix, small="pulsar" in needs)
    namespace: dict[str, Any] = {"__name__": "__main__", **names}
    for block in chosen:
        code = _localized(block.code, folder, addresses, suffix)
        compiled = compile("\n" * (block.line - 1) + code, page, "exec", dont_inherit=True)
        _execute(block, compiled, namespace)
    return namespace


def write_yaml(page: str, folder: Path, addresses: Mapping[str, str], suffix: str = "", *, small: bool = False) -> None:
    """Write the page's YAML files.

    Args:
        page: The page.
        folder: Where.
        addresses: What is in the text, and what takes its place.
        suffix: For the names of topics.
        small: Whether the broker of the tests takes less than the page assumes.
    """
    for block in blocks(page):
        name = _YAML_NAME.match(block.code) if block.language == "yaml" else None
        if name:
            limit = "threshold_bytes: 100000\n" if small and "threshold_bytes" not in block.code else ""
            (folder / name[1]).write_text(limit + _localized(block.code, folder, addresses, suffix))


def _localized(code: str, folder: Path, addresses: Mapping[str, str], suffix: str) -> str:
    for there, here in addresses.items():
        code = code.replace(there, here)
    code = code.replace("/tmp/claimcheck", str(folder))
    code = code.replace("path: claims,", f"path: {folder}/claims,")  # Spark's workers run in another folder,
    code = code.replace('config="claimcheck.yaml"', f'config="{folder}/claimcheck.yaml"')  # and so do its planners
    return _SHARED.sub(rf"\1-{suffix}", code) if addresses else code


def _execute(block: Block, compiled: Any, namespace: dict[str, Any]) -> None:
    kind, _, error = block.note.partition(": ")
    if kind != "fails":
        exec(compiled, namespace)
        return
    try:
        exec(compiled, namespace)
    except Exception as raised:
        assert type(raised).__name__ == error, raised  # noqa: PT017 - the name is text on the page
    else:
        raise AssertionError(f"the block at line {block.line} did not raise {error}")
