"""A streaming query whose JVM is killed under its driver: ``spark_jvm_child.py FOLDER OPTIONS before|after N``.

The driver is left alone: it says which error it has noticed, and in which process the JVM was.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))  # at the end: the package is that of the environment

from tests.spark import sources_child

folder, options, stop = sys.argv[1:]
spark = sources_child.session()
bridge: Any = spark._jvm
jvm = bridge.java.lang.ProcessHandle.current().pid()


def kill_at(place: str, wanted: str) -> None:
    if place == wanted:
        os.kill(jvm, signal.SIGKILL)


sources_child.wait_at = kill_at
frame = spark.readStream.format("claimcheck_pulsar").options(**json.loads(options)).load()
try:
    sources_child.read(frame, Path(folder), stop)
    sources_child.say("nothing")
except Exception as error:
    sources_child.say(type(error).__name__)
os._exit(0)  # there is nobody to say goodbye to
