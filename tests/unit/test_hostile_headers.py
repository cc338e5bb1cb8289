"""Headers are the sender's word: whatever they hold, a reader keeps little of it."""

from __future__ import annotations

import subprocess
import sys

import pytest

import claimcheck
from claimcheck._receive.resolver import Failed
from claimcheck._wire import envelope
from claimcheck._wire import headers as hints
from claimcheck.errors import IntegrityError

UUID = "00000000-0000-4000-8000-000000000000"

CHILD = """
import gc, uuid
import claimcheck
from claimcheck._wire import envelope

def rss():
    return int(open("/proc/self/statm").read().split()[1]) * 4096 >> 20

def headers(name, number):
    return [("claimcheck-type", b"chunk"), (name, b"%08d" % number + b"A" * 100_000)]

def settle(outcomes):
    for outcome in outcomes:
        resolver.settle(outcome, acked=True)

resolver = claimcheck.from_dict({{"strategy": "chunking"}}).resolver()
for number in range(10_000):
    if number == 100:
        gc.collect()
        before = rss()
    chunk = envelope.encode_chunk(str(uuid.uuid4()), 0, 1 if {whole} else 2, b"x")
    key = b"%08d" % number + b"K" * 10_000
    settle(resolver.feed("s", 2 * number, chunk, headers=headers("{name}", number), key=key))
    if not {whole}:
        abort = envelope.encode_abort(chunk[21:57].decode())
        settle(resolver.feed("s", 2 * number + 1, abort, headers=headers("{name}", number), key=key))
gc.collect()
assert resolver.safe_position("s") is None
print(rss() - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("name", ["claimcheck-checksum", "claimcheck-size"])
def test_acknowledged_payloads_leave_nothing_of_their_headers_in_memory(name, whole):
    code = CHILD.format(name=name, whole=whole)
    grown = int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
    assert grown < 32


@pytest.mark.parametrize(
    "claim", [("claimcheck-checksum", b"x:" + b"A" * 1000), ("claimcheck-checksum", "crc32:" + "0" * 1000)]
)
@pytest.mark.parametrize("kind", ["chunk", "pointer"])
def test_a_claim_that_is_too_long_never_matches_and_is_not_quoted_whole(claim, kind):
    if kind == "chunk":
        resolver, data = (
            claimcheck.from_dict({"strategy": "chunking"}).resolver(),
            envelope.encode_chunk(UUID, 0, 1, b"x"),
        )
    else:
        resolver, data = claimcheck.Resolver(lambda pointer: b"x"), envelope.encode_pointer(b"p")
    [outcome] = resolver.feed("s", 0, data, headers=[("claimcheck-type", kind), claim])
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, IntegrityError)
    assert len(str(outcome.error)) < 300
    assert len(outcome.error.expected) < 120


def test_a_checksum_of_a_kind_that_is_unknown_is_not_compared():
    claims = hints.declared({"claimcheck-type": "chunk", "claimcheck-checksum": "sha3:" + "0" * 64})
    hints.check(claims, size=1, checksum=lambda: "crc32:00000000")
