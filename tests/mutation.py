"""Change the library in one place at a time, and run the tests that execute this place: at least one has to fail.

    python -m tests.mutation [--only claimcheck/_wire] [--most 500] [--seed 1] [--tests tests/unit tests/property]

Each change is made in a process of its own, forked after all tests have passed once: the code of one function is
replaced there. Prints the changes that no test notices, and how many were noticed. Changes of texts, types and
module-level values are not made, nor of the argument ``strict`` and in the functions of `ONLY_COSTS`.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import gc
import inspect
import os
import random
import signal
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import accumulate
from operator import attrgetter
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any, NamedTuple

import pytest
from _pytest.runner import runtestprotocol

ROOT = Path(__file__).resolve().parents[1]
DEFAULT = ["claimcheck/_wire", "claimcheck/_send", "claimcheck/_receive"]
TESTS = ["tests/unit", "tests/property", "tests/conformance", "tests/harness", "tests/integration"]
SECONDS = 30.0  # a change with which a test does not end counts as noticed
MOST_SECONDS = 60.0  # for one change, as measured with a trace: tests that noticed others first, then the fastest
ONLY_COSTS = ("_advise_huge_pages", "_allocator", "_await_oldest", "_hash", "spooled")
"""Functions in which most changes cost time or memory, and do nothing else; the tests of bounds are not run here."""
_IMPOSSIBLE = 3  # exit status: the code that a closure has now needs other variables

_COMPARE = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_BINARY = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.LShift: ast.RShift}


class Mutant(NamedTuple):
    """A change: where, what it was and is, and the code of the outermost function that has it."""

    file: str
    line: int
    before: str
    after: str
    code: CodeType

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.before}  ->  {self.after}"


# The changes -----------------------------------------------------------------------------------------------------


def mutants(path: Path) -> Iterator[Mutant]:
    """Yield every change of a file."""
    tree, name = ast.parse(path.read_text()), str(path.relative_to(ROOT))
    for function in filter(lambda each: each.name not in ONLY_COSTS, _outermost(tree)):
        checks = {
            id(each.value) for each in ast.walk(function) if isinstance(each, ast.keyword) and each.arg == "strict"
        }
        begin = min([function.lineno, *(each.lineno for each in function.decorator_list)])
        for node in [each for statement in function.body for each in ast.walk(statement)]:
            if not hasattr(node, "lineno") or id(node) in checks:
                continue
            for before, after in _changes(node):
                undo = copy.copy(node.__dict__)
                node.__dict__.update(after.__dict__)
                node.__class__, kept = after.__class__, node.__class__
                ast.fix_missing_locations(tree)
                text, code = ast.unparse(node), _code_of(compile(tree, str(path), "exec"), begin)
                node.__class__ = kept
                node.__dict__.clear()
                node.__dict__.update(undo)
                if code is not None:
                    yield Mutant(name, node.lineno, before, text, code)


def _outermost(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
        elif isinstance(node, ast.ClassDef):
            yield from _outermost(node)


def _changes(node: Any) -> Iterator[tuple[str, Any]]:  # noqa: C901 - a table
    """Yield what the node says now, and each node that may take its place."""
    before = ast.unparse(node).partition("\n")[0][:80]
    match node:
        case ast.Compare(ops=[op]) if type(op) in _COMPARE:
            yield before, ast.Compare(node.left, [_COMPARE[type(op)]()], node.comparators)
        case ast.BoolOp():
            yield before, ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
        case ast.UnaryOp(op=ast.Not()):
            yield before, ast.Call(ast.Name("bool", ast.Load()), [node.operand], [])
        case ast.BinOp() if type(node.op) in _BINARY and not _has_text(node):
            yield before, ast.BinOp(node.left, _BINARY[type(node.op)](), node.right)
        case ast.Constant(value=bool()):
            yield before, ast.Constant(not node.value)
        case ast.Constant(value=int(number) | float(number)):
            yield before, ast.Constant(number + 1)
        case ast.Return(value=ast.expr()):
            if not (isinstance(node.value, ast.Constant) and isinstance(node.value.value, bool | None)):
                yield before, ast.Return(ast.Constant(None))
        case ast.Expr(value=ast.Call()) | ast.Raise() | ast.Delete():
            yield before, ast.Pass()
        case ast.AugAssign():
            yield before, ast.Assign([node.target], node.value)
        case ast.Continue():
            yield before, ast.Break()
        case ast.Break():
            yield before, ast.Continue()


def _has_text(node: ast.BinOp) -> bool:
    return any(isinstance(each, ast.JoinedStr | ast.Constant) and not isinstance(getattr(each, "value", ""), int)
               for each in (node.left, node.right))  # fmt: skip


def _code_of(code: CodeType, line: int) -> CodeType | None:
    """Return the code of the function that begins, with its decorators, in a line."""
    inner = [each for each in code.co_consts if isinstance(each, CodeType)]
    found = [each for each in inner if each.co_firstlineno == line and each.co_flags & inspect.CO_OPTIMIZED]
    return next(iter(found or filter(None, (_code_of(each, line) for each in inner))), None)


def replace(mutant: Mutant) -> bool:
    """Replace the code of every function that exists now, and of those inside; returns whether there was one."""
    where = attrgetter("co_filename", "co_qualname", "co_firstlineno")
    codes, left, replaced = {}, [mutant.code], False
    while left:
        code = left.pop()
        codes[where(code)] = code
        left += [each for each in code.co_consts if isinstance(each, CodeType)]
    for each in [each for each in gc.get_objects() if isinstance(each, FunctionType)]:
        if where(each.__code__) in codes:
            with contextlib.suppress(ValueError):  # a closure with other variables
                each.__code__ = codes[where(each.__code__)]
                replaced = True
    return replaced


# The run ---------------------------------------------------------------------------------------------------------


class Mutation:
    """A plugin of pytest that runs all tests once, and then some of them for each change."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._files = {str(file) for only in options.only for file in (ROOT / only).rglob("*.py")}
        self._files |= {str(ROOT / only) for only in options.only if only.endswith(".py")}
        self._covering: dict[tuple[str, int], set[int]] = defaultdict(set)
        self._seconds: dict[int, float] = {}
        self._noticed: Counter[tuple[str, int]] = Counter()  # by file and test
        self._current = 0
        self.survived: list[Mutant] = []
        self.killed = 0
        self.unreached: list[Mutant] = []

    def pytest_sessionstart(self) -> None:
        """Let Hypothesis take the same examples each time, and not look for a smaller one after a failure."""
        from hypothesis import Phase, settings  # after pytest's plugin of it

        fast, phases = settings.get_profile("fast"), (Phase.explicit, Phase.generate)
        settings.register_profile("fast", fast, derandomize=True, database=None, phases=phases)
        settings.load_profile("fast")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run everything once, then the changes."""
        for number, item in enumerate(session.items):
            self._current = number
            begin = time.perf_counter()
            sys.settrace(self._trace)
            threading.settrace(self._trace)
            reports = runtestprotocol(item, log=False, nextitem=None)
            sys.settrace(None)
            threading.settrace(None)
            self._seconds[number] = time.perf_counter() - begin
            if any(report.failed for report in reports):
                print(f"fails without a change, and is left out: {item.nodeid}", flush=True)
                self._seconds[number] = float("inf")
        found = [each for file in sorted(self._files) for each in mutants(Path(file))]
        random.Random(self._options.seed).shuffle(found)
        for number, mutant in enumerate(found[: self._options.most]):
            self._try(session, mutant)
            if number % 20 == 19:
                print(f"{number + 1} changes, {self.killed} noticed", file=sys.stderr, flush=True)
        return True

    def _trace(self, frame: FrameType, event: str, arg: object) -> Any:
        if frame.f_code.co_filename not in self._files:
            return None
        self._covering[frame.f_code.co_filename, frame.f_lineno].add(self._current)
        return self._trace

    def _try(self, session: pytest.Session, mutant: Mutant) -> None:
        file = str(ROOT / mutant.file)
        chosen = sorted(
            (each for each in self._covering.get((file, mutant.line), set()) if self._seconds[each] < SECONDS),
            key=lambda each: (-self._noticed[file, each], self._seconds[each]),
        )
        ends = accumulate(self._seconds[each] for each in chosen)
        chosen = [each for each, seconds in zip(chosen, ends, strict=True) if seconds < MOST_SECONDS]
        if not chosen:
            self.unreached.append(mutant)
            return
        receiving, sending = os.pipe()
        child = os.fork()
        if not child:
            for descriptor in (1, 2):
                os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
            if not replace(mutant):
                os._exit(_IMPOSSIBLE)
            noticing = self._noticing(session, chosen)
            os.write(sending, b"" if noticing is None else str(noticing).encode())
            os._exit(noticing is not None)
        os.close(sending)
        _, status = os.waitpid(child, 0)
        with open(receiving) as pipe:
            number = pipe.read()
        if os.waitstatus_to_exitcode(status) == _IMPOSSIBLE:
            return
        if status == 0:
            self.survived.append(mutant)
            print(f"not noticed by {len(chosen)} tests: {mutant}", flush=True)
            return
        self.killed += 1
        if number:
            self._noticed[file, int(number)] += 1

    def _noticing(self, session: pytest.Session, chosen: list[int]) -> int | None:
        """Return the first test that fails. The alarm ends this process in one that does not end."""
        for number in chosen:
            item: Any = session.items[number]
            item._initrequest()
            signal.alarm(int(SECONDS))
            if any(report.failed for report in runtestprotocol(item, log=False, nextitem=None)):
                return number
        return None


def main(arguments: list[str]) -> int:
    """Run, and print the result; fails if fewer than 90 % were noticed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", default=DEFAULT, help="files or folders of the library")
    parser.add_argument("--tests", nargs="+", default=TESTS)
    parser.add_argument("--most", type=int, default=1_000_000, help="changes, chosen at random")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    run = Mutation(options)
    pytest.main([*options.tests, "-q", "-m", "fast", "-p", "no:xdist", "-p", "no:cacheprovider", "-p", "no:randomly",
                 "--tb=native"], plugins=[run])  # fmt: skip
    tried = run.killed + len(run.survived)
    print(*(f"reached by no test: {each}" for each in run.unreached), sep="\n")
    share = run.killed / max(1, tried + len(run.unreached))
    print(f"{run.killed} of {tried + len(run.unreached)} changes were noticed: {share:.1%}")
    return share < 0.9


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
