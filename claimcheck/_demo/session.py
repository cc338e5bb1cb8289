"""A Spark that says nothing unless it fails: its own words go to a file, whose end is shown when it cannot start."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from claimcheck._demo.files import DemoError
from claimcheck.spark import ensure_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["quiet_session"]

_SHOWN_LINES = 15
_ENDINGS = (signal.SIGINT, signal.SIGTERM)
_ERROR_LINE = re.compile(r"^(?:claimcheck\.[\w.]+|[A-Z]\w*Error): .+$", re.MULTILINE)


@contextmanager
def quiet_session(scratch: Path) -> Iterator[SparkSession]:
    """Start a Spark on all cores of this machine that listens on the loopback only, and stop it at the end.

    Args:
        scratch: Its folder for temporary files and for its log.

    Raises:
        DemoError: It did not start, with the end of its log; or a job failed, with what Python said.
        MissingDependencyError: There is no Java, and the extra that brings one is not installed.
    """
    ensure_java()
    log = scratch / "spark.log"
    with ExitStack() as stack:
        # The JVM inherits the file: no level of logging silences its own warnings.
        with _standard_error_to(log), _signals_later():
            session = _start(scratch, log)
            stack.callback(session.stop)
        try:
            yield session
        except Exception as error:
            raise _explained(error) from error


@contextmanager
def _signals_later() -> Iterator[None]:
    """Put off what would end this process: a JVM whose start was broken off would never end."""
    if threading.current_thread() is not threading.main_thread():  # signals reach no other
        yield
        return
    came: list[int] = []
    known = {number: signal.signal(number, lambda number, _: came.append(number)) for number in _ENDINGS}
    try:
        yield
    finally:
        for each, handler in known.items():
            signal.signal(each, handler)
        for number in came:
            signal.raise_signal(number)


def _start(scratch: Path, log: Path) -> SparkSession:
    from pyspark.sql import SparkSession

    options = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.local.dir": str(scratch / "spark"),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
    }
    builder = SparkSession.builder.master("local[*]").appName("claimcheck demo")
    for name, value in options.items():
        builder = builder.config(name, value)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    try:
        session = builder.getOrCreate()
    except Exception as error:
        raise DemoError(f"Spark did not start ({type(error).__name__}); its last words:\n{_tail(log)}") from error
    session.sparkContext.setLogLevel("ERROR")
    return session


def _explained(error: Exception) -> Exception:
    """A failed job in one line: Spark wraps what a worker said into pages of its own."""
    if not type(error).__module__.startswith(("py4j", "pyspark")):
        return error
    said = _ERROR_LINE.findall(str(error))
    return DemoError(f"the Spark job failed: {said[-1] if said else str(error).splitlines()[0]}")


@contextmanager
def _standard_error_to(path: Path) -> Iterator[None]:
    sys.stderr.flush()
    saved = os.dup(2)
    with path.open("wb") as log:
        os.dup2(log.fileno(), 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(saved, 2)
        os.close(saved)


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-_SHOWN_LINES:])
