"""Prints the size and the shape of the library: lines, files, functions, imports, and the path of one payload.

    python tests/structure.py            # or: make structure

Everything is read from the source, but for the last row, which runs `cc.offload` and counts what it called.
"""

from __future__ import annotations

import ast
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "claimcheck"
LONG = 40


def modules() -> dict[str, Path]:
    """Every module of the library by its dotted name."""
    found = {}
    for file in sorted(_files(PACKAGE)):
        parts = file.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def _files(folder: Path) -> Iterator[Path]:
    """Files below a folder; `Path.rglob` does not follow the link claimcheck/stores."""
    for entry in folder.iterdir():
        if entry.is_dir() and entry.name != "__pycache__":
            yield from _files(entry)
        elif entry.suffix == ".py":
            yield entry


def importers(found: dict[str, Path]) -> dict[str, set[str]]:
    """Which modules import each module, its own package's ``__init__`` included."""
    users: dict[str, set[str]] = {name: set() for name in found}
    for name, file in found.items():
        package = name if file.name == "__init__.py" else name.rpartition(".")[0]
        for node in ast.walk(ast.parse(file.read_text())):
            for target in _imported(node, package):
                if target in users and target != name:
                    users[target].add(name)
    return users


def _imported(node: ast.AST, package: str) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            up = package.split(".")
            base = ".".join([*up[: len(up) - node.level + 1], *([node.module] if node.module else [])])
        yield base
        yield from (f"{base}.{alias.name}" for alias in node.names)


def function_lengths(found: dict[str, Path]) -> list[int]:
    """Lines of each function, without its docstring."""
    lengths = []
    for file in found.values():
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                docstring = ast.get_docstring(node, clean=False) or ""
                lengths.append((node.end_lineno or 0) - node.lineno + 1 - len(docstring.splitlines()))
    return sorted(lengths)


def any_hints(found: dict[str, Path]) -> tuple[int, int]:
    """How many names in type hints are ``Any``, and how many there are in all."""
    loose = total = 0
    for file in found.values():
        for node in ast.walk(ast.parse(file.read_text())):
            hints: list[ast.expr | None] = []
            if isinstance(node, ast.arg | ast.AnnAssign):
                hints = [node.annotation]
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                hints = [node.returns]
            for hint in filter(None, hints):
                total += 1
                loose += any(isinstance(part, ast.Name) and part.id == "Any" for part in ast.walk(hint))
    return loose, total


def calls(run: Callable[[], Any]) -> tuple[int, int]:
    """How many functions of the library a piece of work calls, and how many of its files they are in."""
    count, files, own = 0, set(), (str(PACKAGE), str(ROOT / "stores"))

    def profile(frame: FrameType, event: str, _: Any) -> None:
        nonlocal count
        if event == "call" and frame.f_code.co_filename.startswith(own):
            count += 1
            files.add(frame.f_code.co_filename)

    sys.setprofile(profile)
    try:
        run()
    finally:
        sys.setprofile(None)
    return count, len(files)


def offload_calls() -> tuple[int, int]:
    """The same for `cc.offload` of 2 MB to a file, when everything has been used once."""
    import claimcheck

    with tempfile.TemporaryDirectory() as folder:
        store = {"type": "filesystem", "path": folder}
        with claimcheck.from_dict({"strategy": "external", "stores": {"disk": store}}) as cc:
            send = cc.offload(payload="value")(lambda value: None)
            send(bytes(2_000_000))
            return calls(lambda: send(bytes(2_000_000)))


def main() -> None:
    """Print the table."""
    found = modules()
    users, lengths = importers(found), function_lengths(found)
    lines = {name: file.read_text().count("\n") for name, file in found.items()}
    loose, hints = any_hints(found)
    median, longest_tenth = statistics.median(lengths), lengths[int(len(lengths) * 0.9)]
    rows: list[tuple[str, object]] = [
        ("lines in claimcheck and stores", f"{sum(lines.values()):,}"),
        ("files", len(found)),
        ("files over 600 lines", sum(count > 600 for count in lines.values())),
        ("modules with exactly one importer", sum(len(each) == 1 for each in users.values())),
    ]
    for package in ("transports.kafka", "transports.pulsar", "transports.local", "transports._common", "spark"):
        inside = [name for name in found if f"{name}.".startswith(f"claimcheck.{package}.")]
        rows.append((f"claimcheck.{package}: lines, files", f"{sum(lines[n] for n in inside):,}, {len(inside)}"))
    rows += [
        ("functions: number, median lines, 90th percentile", f"{len(lengths):,}, {median:g}, {longest_tenth}"),
        (f"functions over {LONG} lines", sum(length > LONG for length in lengths)),
        ("type hints with Any", f"{loose / hints:.1%} of {hints:,}"),
        ("cc.offload of 2 MB to a file: functions called, files", "{}, {}".format(*offload_calls())),
    ]
    width = max(len(label) for label, _ in rows)
    for label, value in rows:
        print(f"{label:<{width}}  {value}")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
