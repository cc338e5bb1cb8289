"""The other side of peer_child.py: a library that is told what to do, round by round."""

from __future__ import annotations

import contextlib
import json
import selectors
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.benchmarks.lab import HERE

PATIENCE_SECONDS = 120.0


class PeerError(RuntimeError):
    """The library failed, or did not answer."""


class PeerProcess(contextlib.AbstractContextManager["PeerProcess"]):
    """A child that works for one library, from its start to the end of the block.

    Args:
        python: Of the environment that holds the library.
        name: Of its adapter.
        environment: Names the servers.
        log: Gets what the library prints.
    """

    def __init__(self, python: Path, name: str, environment: Mapping[str, str], log: Path) -> None:
        command = [str(python), str(HERE / "peer_child.py"), name]
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
                start_new_session=True,
            )

    def __exit__(self, *exc: object) -> None:
        self._process.kill()
        with self._process:  # closes its pipes, then waits
            pass

    def version(self) -> str:
        """Wait until it is ready, and give the library's version."""
        return str(self._answer()["version"])

    def round(self, size: int, number: int) -> dict[str, Any]:
        """Have one payload put and got."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"size": size, "number": number}).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise PeerError("its process ended") from error
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(PATIENCE_SECONDS):
                raise PeerError(f"no answer in {PATIENCE_SECONDS:.0f} s")
        line = self._process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"error": "its process ended"}
        if "error" in answer:
            raise PeerError(answer["error"])
        return answer
