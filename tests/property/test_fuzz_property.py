"""Random and mutated bytes for everything that parses what others wrote: errors of claimcheck, never other exceptions.

CLAIMCHECK_FUZZ_INPUTS=5000000 pytest tests/property/test_fuzz_property.py
"""

from __future__ import annotations

import json
import logging
import os
import random
import resource
import sys
from collections.abc import Callable, Iterator

import pytest

import claimcheck
from claimcheck import ClaimCheckError, Failed, Resolved
from claimcheck._content.header import ContentHeader, Damaged, read_header
from claimcheck._wire import envelope as envelopes
from claimcheck._wire import pointer as pointers
from claimcheck._wire.buffers import PieceReader
from claimcheck._wire.signing import Seal
from claimcheck.errors import EnvelopeError
from tests.content_oracle import HEADER, PAYLOAD, VECTORS
from tests.hypothesis_examples import examples
from tests.unit.test_content import KEYS
from tests.vectors import golden, names

pytest.importorskip("cryptography")
pytest.importorskip("zstandard")

INPUTS = int(os.environ.get("CLAIMCHECK_FUZZ_INPUTS", 0)) or examples(120_000).max_examples
SIGNING = {"key_id": "s1", "keys": {"s1": "signing key " * 4}}
CONTENT = [bytes.fromhex(text) for text in json.loads(VECTORS.read_text()).values()]
MESSAGES = [golden(name) for name in names()] + [HEADER + b"\x04" + each for each in CONTENT]
TOKENS = [b"null", b"-1", b"1e999", b"NaN", b"[" * 40, b'{"a":' * 40, b"\\ud800", b"9" * 5000, b'"', b"\x00", b"\xff"]


class Fuzzer:
    """Returns random bytes and mutations of valid inputs."""

    def __init__(self, seeds: list[bytes], seed: int = 1) -> None:
        self._seeds, self._random = seeds, random.Random(seed)

    def __call__(self) -> bytes:
        pick = self._random
        data = bytearray(pick.choice(self._seeds))
        for _ in range(pick.choice((1, 1, 2, 5))):
            at, kind = pick.randrange(len(data) + 1), pick.random()
            if kind < 0.4 and at < len(data):
                data[at] = pick.getrandbits(8)
            elif kind < 0.5:
                del data[at:]
            elif kind < 0.6:
                del data[at : at + pick.randrange(20)]
            elif kind < 0.75:
                data[at:at] = pick.choice(TOKENS)
            elif kind < 0.9:
                other = pick.choice(self._seeds)
                data[at:] = other[pick.randrange(len(other) + 1) :]
            else:
                data[at : at + 8] = pick.randbytes(pick.randrange(12))
        return bytes(data)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.getLogger("claimcheck").setLevel(logging.CRITICAL)
    yield
    logging.getLogger("claimcheck").setLevel(logging.NOTSET)


def opened(**options: object) -> claimcheck.ClaimCheck:
    return claimcheck.from_dict({"strategy": "chunking", "encryption": {"keys": KEYS}, **options})


def statement() -> bytes:
    config = opened(signing=SIGNING).config
    seal = Seal(config, clock=lambda: 1)
    return seal.statement("chunks", "orders", uuid="1", chunks=3, size=5, checksum="sha256:0").encode()


def fuzz_messages() -> Callable[[bytes], object]:
    return envelopes.decode


def fuzz_pointers() -> Callable[[bytes], object]:
    return pointers.decode


def fuzz_headers() -> Callable[[bytes], object]:
    def parse(data: bytes) -> object:
        read_header(PieceReader([data]))
        return ContentHeader.parse(data[8:])

    return parse


def fuzz_statements() -> Callable[[bytes], object]:
    seal = Seal(opened(signing=SIGNING).config, clock=lambda: 1)
    return lambda data: seal.check_chunks(
        [data.decode("latin-1")], uuid="1", count=3, pieces=[b"piece"], destination="orders"
    )


def fuzz_content() -> Callable[[bytes], object]:
    unpacker = opened(limits={"max_payload_bytes": 100_000}).opened.unpacker

    def content(data: bytes) -> object:
        payload = unpacker.content(memoryview(data), destination="Straße")
        assert payload == PAYLOAD
        return payload

    return content


def fuzz_resolver() -> Callable[[bytes], object]:
    cc, number = opened(stores={"s": {"type": "memory"}}, store="s"), iter(range(sys.maxsize))
    resolver = cc.resolver()

    def feed(data: bytes) -> object:
        headers = {"claimcheck-size": data[-3:]}
        for outcome in resolver.feed("t", next(number), data, headers=headers, destination="Straße"):
            if not isinstance(outcome, Resolved) and type(outcome.error) is ClaimCheckError:
                raise AssertionError(f"a foreign exception: {outcome.error}") from outcome.error.__cause__
            resolver.settle(outcome, acked=True)
            if isinstance(outcome, Failed):
                raise EnvelopeError("refused")  # not the error itself: its traceback would refer to it
        assert resolver.pending_bytes <= 64 << 20
        return None

    return feed


TARGETS: list[tuple[Callable[[], Callable[[bytes], object]], list[bytes]]] = [
    (fuzz_messages, MESSAGES),
    (fuzz_pointers, [message[21:] for message in MESSAGES if message[20] == 2]),
    (fuzz_headers, [content[: 8 + int.from_bytes(content[4:8], "big")] for content in CONTENT]),
    (fuzz_statements, [statement()]),
    (fuzz_content, CONTENT),
    (fuzz_resolver, MESSAGES),
]


@pytest.mark.parametrize(("target", "seeds"), TARGETS, ids=[target.__name__ for target, _ in TARGETS])
def test_only_our_errors(target: Callable[[], Callable[[bytes], object]], seeds: list[bytes]) -> None:
    parse, fuzzer = target(), Fuzzer(seeds)
    refused = accepted = 0
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(-(-INPUTS // len(TARGETS))):
        try:
            parse(fuzzer())
            accepted += 1
        except (ClaimCheckError, Damaged):
            refused += 1
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert refused
    assert accepted or target is fuzz_statements
    assert grown_kib < 200 << 10


@pytest.mark.parametrize("parse", [pointers.decode, ContentHeader.parse], ids=["pointer", "header"])
@pytest.mark.parametrize("nested", [b"[", b'{"a":'])
def test_deep_nesting_does_not_exhaust_the_stack(parse: Callable[[bytes], object], nested: bytes) -> None:
    start = b"\x02" if parse is pointers.decode else b""
    limit = sys.getrecursionlimit()
    for depth in (31, 33, limit - 50, limit * 3):
        with pytest.raises((ClaimCheckError, Damaged)):
            parse(start + b'{"id":' + nested * depth)
