"""The kit must fail: each of these stores breaks one promise, and runs the checks that must catch it."""

import os
import subprocess
import sys
from pathlib import Path

import claimcheck

ROOT = Path(__file__).resolve().parents[2]

HEAD = """
import itertools, uuid
from dataclasses import replace
import pytest
from claimcheck._store.store import Store
from claimcheck.testing import StoreConformance
from tests.conformance.subsets import only

MEDIUM = {}

class Good(Store):
    segment_bytes = 10_000  # the medium does not care; the kit's payloads are smaller
    def _write(self, pointer, source):
        MEDIUM[pointer.key] = b"".join(source)
    def _read(self, pointer):
        if pointer.key not in MEDIUM:
            raise self.missing(pointer)
        yield MEDIUM[pointer.key]
    def _delete(self, pointer):
        MEDIUM.pop(pointer.key, None)

class Kit(StoreConformance):
    skip = {"test_large_payload_in_bounded_memory": "it rests in memory"}
    @pytest.fixture
    def options(self):
        return {"type": f"{__name__}:Bad"}
    def peek(self, pointer):
        return MEDIUM.get(pointer.key)
    def damage(self, pointer, payload):
        MEDIUM.pop(pointer.key, None)
        if payload is not None:
            MEDIUM[pointer.key] = payload
"""

BROKEN = {
    "keys by content": (
        "def _new_key(self, destination, unique): return 'always-the-same'",
        ["test_same_payload_twice_rests_twice"],
    ),
    "rollback keeps": (
        "def _delete(self, pointer): pass",
        ["test_rollback_leaves_nothing_and_may_be_repeated", "test_same_payload_twice_rests_twice"],
    ),
    "rollback once": (
        "def _delete(self, pointer): del MEDIUM[pointer.key]",
        ["test_rollback_leaves_nothing_and_may_be_repeated", "test_rollback_of_what_never_was_is_harmless"],
    ),
    "rollback all": (
        "def _delete(self, pointer): MEDIUM.clear()",
        ["test_same_payload_twice_rests_twice", "test_rollback_of_what_never_was_is_harmless"],
    ),
    "writes under the final name, and never undoes": (
        """
    def _write(self, pointer, source):
        MEDIUM[pointer.key] = b""
        for piece in source:
            MEDIUM[pointer.key] += piece
    def _wrote_nothing(self, error): return True
""",
        ["test_failed_write_leaves_nothing"],
    ),
    "follows anything": ("def check(self, pointer): pass", ["test_hostile_pointer_is_refused_before_any_io"]),
    "keeps the caller's buffer": (
        "def _write(self, pointer, source): MEDIUM[pointer.key] = source.take_all()",
        ["test_caller_may_reuse_the_buffer"],
    ),
    "gone is empty": (
        "def _read(self, pointer): yield MEDIUM.get(pointer.key, b'')",
        ["test_vanished_payload_is_not_found"],
    ),
    "destinations in keys": (
        "def _new_key(self, destination, unique): return f'{destination}-{unique}'",
        ["test_any_destination_makes_a_good_key"],
    ),
    "unverified": (
        """
    def read(self, pointer):
        self.check(pointer)
        return super().read(replace(pointer, checksum=None))
""",
        ["test_damaged_payload_is_an_error"],
    ),
    "opens nothing but its own": (
        """
    def __init__(self): self.uuid = uuid.uuid4()
    def _scope(self, pointer): return str(self.uuid)
    def _new_key(self, destination, unique): return f'{self.uuid}-{unique}'
""",
        ["test_close_keeps_payloads"],
    ),
    "close deletes": ("def close(self): MEDIUM.clear()", ["test_close_keeps_payloads"]),
    "tells its options": ("def __repr__(self): return 'Bad(hunter2)'", ["test_repr_names_the_store_and_no_secret"]),
}
CHECKS = {check for _, checks in BROKEN.values() for check in checks}


def test_each_broken_promise_is_noticed_and_a_good_store_passes(tmp_path):
    """All of them run in one process."""
    for number, (body, checks) in enumerate([*BROKEN.values(), ("pass", sorted(CHECKS))]):
        text = f"{HEAD}\nclass Bad(Good):\n    {body.strip()}\n\n@only(*{checks!r})\nclass Test{number}(Kit): pass\n"
        (tmp_path / f"test_{number}.py").write_text(text)
    path = os.pathsep.join(map(str, (tmp_path, Path(claimcheck.__file__).parents[1], ROOT)))
    command = [sys.executable, "-m", "pytest", "-q", "-rf", "--tb=no", "-p", "no:cacheprovider", "-c", os.devnull]
    command += ["--rootdir", str(tmp_path), str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    lines = [line.split("::") for line in done.stdout.splitlines() if line.startswith("FAILED")]
    failed = {(parts[1], parts[2].partition("[")[0].partition(" ")[0]) for parts in lines}
    expected = {(f"Test{n}", check) for n, (_, checks) in enumerate(BROKEN.values()) for check in checks}
    assert expected - failed == set()
    assert f"Test{len(BROKEN)}" not in {name for name, _ in failed}
