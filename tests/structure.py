"""Measures the size and the shape of the library, and compares them with what they may be.

    python tests/structure.py            # or: make structure

Each figure has a limit in structure_limits.json, which is what it was after the last change. Limits only fall:
tests/test_structure.py fails when a figure is above its limit, and when the limit could be lowered; ``--lower`` lowers
all of them. Everything is read from the source, except for the calls and the options, which are run.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import io
import json
import sys
import tempfile
import tokenize
import typing
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, is_dataclass
from graphlib import TopologicalSorter
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "claimcheck"
LIMITS = Path(__file__).with_name("structure_limits.json")

# Every module belongs to one room: the first whose prefix it has, without "claimcheck.".
ROOMS: dict[str, tuple[str, ...]] = {
    **{name: (name,) for name in ("transports", "stores", "spark", "cli", "testing")},
    **{name: (f"_{name}",) for name in ("operate", "content", "wire", "send", "receive", "store")},
    "base": ("errors", "hooks", "config", "_validation", "_registry", "_config_file", "_texts", "_threads"),
    "front": ("", "__main__", "_client", "strategies", "_opened", "telemetry"),
}


# Files and imports -----------------------------------------------------------------------------------------------


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


def imports(found: dict[str, Path]) -> dict[str, set[str]]:
    """Which modules of the library each module imports, for type hints too."""
    used: dict[str, set[str]] = {}
    for name, file in found.items():
        package = name if file.name == "__init__.py" else name.rpartition(".")[0]
        targets = {t for node in ast.walk(ast.parse(file.read_text())) for t in _imported(node, package)}
        used[name] = {target for target in targets if target in found and target != name}
    return used


def _imported(node: ast.AST, package: str) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            up = package.split(".")
            base = ".".join([*up[: len(up) - node.level + 1], *([node.module] if node.module else [])])
        names = [f"{base}.{alias.name}" for alias in node.names]
        yield from (base, *names)


def longest_chain(used: dict[str, set[str]]) -> int:
    """Modules on the longest way along imports. Raises `graphlib.CycleError` for a circle."""
    length: dict[str, int] = {}
    for name in TopologicalSorter(used).static_order():
        length[name] = 1 + max((length[other] for other in used[name]), default=0)
    return max(length.values())


def private_uses(found: dict[str, Path]) -> int:
    """How often a file uses a private attribute or method that it does not define itself."""
    return sum(_foreign_private(ast.parse(file.read_text())) for file in found.values())


def _foreign_private(tree: ast.Module) -> int:
    own, foreign = set[str](), list[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            own.add(node.name)
        elif isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
                own.add(node.attr)
            else:
                foreign.append(node.attr)
    return sum(name not in own for name in foreign)


def code_lines(file: Path) -> int:
    """Lines without imports, docstrings, comments, blank lines and ``__all__``."""
    text = file.read_text()
    left = {number for number, line in enumerate(text.splitlines(), 1) if line.strip()}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and token.line.strip().startswith("#"):
            left.discard(token.start[0])
    for node in ast.walk(ast.parse(text)):
        if _is_no_code(node):
            left -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))  # type: ignore[attr-defined]
    return len(left)


def _is_no_code(node: ast.AST) -> bool:
    if isinstance(node, ast.Assign):
        return any(isinstance(target, ast.Name) and target.id == "__all__" for target in node.targets)
    text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    return text or isinstance(node, ast.Import | ast.ImportFrom)


def room_of(module: str) -> str:
    """The room of a module."""
    name = module.removeprefix("claimcheck").removeprefix(".")
    for room, prefixes in ROOMS.items():
        if any(name == prefix or (prefix and name.startswith(prefix)) for prefix in prefixes):
            return room
    raise LookupError(f"{module} is in no room: add it to ROOMS in {__file__}")


# What runs -------------------------------------------------------------------------------------------------------


def calls(run: Callable[[], Any]) -> tuple[int, int]:
    """How many functions of the library a piece of work calls, and how many of its files they are in."""
    counted = traced(run)
    return sum(counted.values()), len({file for file, _ in counted})


def traced(run: Callable[[], Any]) -> Counter[tuple[str, str]]:
    """How often a piece of work calls each function of the library, by file and name."""
    counted, own = Counter[tuple[str, str]](), (str(PACKAGE), str(ROOT / "stores"))

    def profile(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(own):
            counted[code.co_filename, code.co_qualname] += 1

    sys.setprofile(profile)
    try:
        run()
    finally:
        sys.setprofile(None)
    return counted


def paths() -> dict[str, int]:
    """Calls, functions and files of one payload out (2 MB to a file) and in, when everything was used once."""
    import claimcheck

    sent: list[Any] = []
    with tempfile.TemporaryDirectory() as folder:
        store = {"type": "filesystem", "path": folder}
        with claimcheck.from_dict({"strategy": "external", "stores": {"disk": store}}) as cc:
            send = cc.offload(payload="value", destination="topic", key="key", headers="headers")(_publish(sent))
            found = dict[str, int]()
            works = {"decorator": lambda: send("o", bytes(2_000_000)), "resolve": lambda: cc.resolve(sent[-1])}
            for name, work in works.items():
                work()
                _make_folders(Path(folder))
                # The fewest calls: a payload may be the first one of a minute, or find a thread busy.
                counted = min((traced(work) for _ in range(3)), key=lambda each: sum(each.values()))
                found |= {f"{name}: calls": sum(counted.values()), f"{name}: functions": len(counted)}
                found[f"{name}: files"] = len({file for file, _ in counted})
    return found


def _make_folders(root: Path) -> None:
    """Create the folders that a store in use has, so that it does not depend on a key whether there is a new one."""
    for day in root.iterdir():
        for number in range(256):
            (day / f"{number:02x}").mkdir(exist_ok=True)


def _publish(sent: list[Any]) -> Callable[..., None]:
    def publish(topic: str, value: Any, key: Any = None, headers: Any = None) -> None:
        sent.append(value)

    return publish


def options() -> dict[str, int]:
    """How many options a user can set, by where."""
    from claimcheck._registry import KEY_PROVIDERS, STORES
    from claimcheck._validation import options_of
    from claimcheck.config import Config

    found = {"configuration": _leaves(Config)}
    found["stores and key providers"] = sum(
        len(options_of(getattr(importlib.import_module(module), name)))
        for module, _, name in (path.partition(":") for path in (*STORES.values(), *KEY_PROVIDERS.values()))
    )
    # Arguments of constructors beside the client and the ClaimCheck; ``**options`` are documented by another class.
    parameters = [list(_parameters(cls))[2:] for name in ("kafka", "pulsar", "local") for cls in _classes(name)]
    found["transports"] = sum(p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL) for each in parameters for p in each)
    spark = importlib.import_module("claimcheck.spark")
    functions = filter(inspect.isfunction, (getattr(spark, name) for name in spark.__all__))
    tree = ast.parse((PACKAGE / "spark" / "sources" / "_options.py").read_text())
    found["spark"] = sum(isinstance(node, ast.AnnAssign) for node in ast.walk(tree)) + sum(
        p.kind == p.KEYWORD_ONLY for function in functions for p in _parameters(function)
    )
    group = importlib.import_module("claimcheck.cli._commands").commands
    commands = [group, *(group.get_command(None, name) for name in group.list_commands(None))]
    names = [each.name for command in commands for each in command.params]
    return found | {"command line": sum(name not in ("help", "version", "debug") for name in names)}


def _leaves(cls: type) -> int:
    hints, count = typing.get_type_hints(cls), 0
    for each in fields(cls):
        inner = [part for part in (hints[each.name], *typing.get_args(hints[each.name])) if is_dataclass(part)]
        count += _leaves(typing.cast(type, inner[0])) if inner else 1
    return count


def _classes(transport: str) -> Iterator[type]:
    module = importlib.import_module(f"claimcheck.transports.{transport}")
    for cls in (getattr(module, name) for name in module.__all__):
        if inspect.isclass(cls) and not issubclass(cls, BaseException) and "__init__" in vars(cls):
            yield cls


def _parameters(target: Callable[..., Any]) -> Iterable[inspect.Parameter]:
    return inspect.signature(target).parameters.values()


# Figures ---------------------------------------------------------------------------------------------------------


def figures() -> dict[str, int]:
    """Everything that has a limit."""
    found = modules()
    lines = {name: file.read_text().count("\n") for name, file in found.items()}
    used = imports(found)
    importers = Counter(target for targets in used.values() for target in targets)
    rooms = Counter[str]()
    for name, count in lines.items():
        rooms[room_of(name)] += count
    return {
        "lines": sum(lines.values()),
        "files": len(found),
        "code lines": sum(map(code_lines, found.values())),
        "files over 500 lines": sum(count > 500 for count in lines.values()),
        "longest import chain": longest_chain(used),
        "modules with one importer": sum(count == 1 for count in importers.values()),
        "private names used elsewhere": private_uses(found),
        "options": sum(options().values()),
        **paths(),
        **{f"room {room}": rooms[room] for room in ROOMS},
    }


def main(arguments: list[str]) -> None:
    """Print the table; with ``--lower``, lower the limits."""
    found, limits = figures(), json.loads(LIMITS.read_text())
    print(f"{'':<32} {'now':>7} {'limit':>7}")
    for name, value in found.items():
        print(f"{name:<32} {value:>7,} {limits.get(name, value):>7,}")
    for place, count in options().items():
        print(f"  options of {place}: {count}")
    if "--lower" in arguments:
        lowered = {name: min(value, limits.get(name, value)) for name, value in found.items()}
        LIMITS.write_text(json.dumps(lowered, indent=1) + "\n")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main(sys.argv[1:])
