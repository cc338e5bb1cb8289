"""Many messages at once: in order, each with its own error, bounded, and over when the caller stops."""

import asyncio
import contextlib
import itertools
import threading

import pytest

import claimcheck
from claimcheck import _threads
from claimcheck._threads import IoThreads
from claimcheck.errors import ChunkError, ConfigError, IntegrityError, PayloadNotFoundError, PayloadTypeError
from tests.produce_rig import Rig

SIZE = 10_000


class Gate:
    """A store whose reads wait for permission, and are counted."""

    def __init__(self, store, *, open_=False):
        self._read, self._open = store.read, open_
        self.changed, self.allowed = threading.Condition(), set()
        self.begun, self.running, self.most, self.most_bytes, self.bytes = [], 0, 0, 0, 0
        store.read = self.read

    def read(self, pointer):
        with self.changed:
            self.begun.append(pointer.key)
            self.running, self.bytes = self.running + 1, self.bytes + pointer.size
            self.most, self.most_bytes = max(self.most, self.running), max(self.most_bytes, self.bytes)
            self.changed.notify_all()
            try:
                while not self.changed.wait_for(lambda: self._open or pointer.key in self.allowed, 0.01):
                    _threads.check_interrupt()
            finally:
                self.running, self.bytes = self.running - 1, self.bytes - pointer.size
                self.changed.notify_all()
        return self._read(pointer)

    def allow(self, *pointers):
        with self.changed:
            self.allowed |= {pointer.key for pointer in pointers}
            self._open = self._open or not pointers
            self.changed.notify_all()

    def reached(self, condition):
        with self.changed:
            return self.changed.wait_for(condition, 10)


@pytest.fixture(autouse=True)
def threads(monkeypatch):
    """Threads of the test's own, so that a full pool is not another test's."""
    pool = IoThreads()
    monkeypatch.setattr(_threads, "_io", [pool])
    yield pool
    pool._executor.shutdown()


@pytest.fixture
def rig():
    return Rig()


def payload(n, size=SIZE):
    return n.to_bytes(4, "big") * (size // 4)


def stored(rig, count, size=SIZE):
    pointers = [rig.cc.store("hot").write(payload(n, size)) for n in range(count)]
    return pointers, [rig.cc.seal(pointer) for pointer in pointers]


def blocking(cc, messages, **options):
    return list(cc.resolve_many(messages, **options))


def in_a_loop(cc, messages, **options):
    async def main():
        return [each async for each in cc.aresolve_many(messages, **options)]

    return asyncio.run(main())


@pytest.fixture(params=[blocking, in_a_loop])
def resolve(request):
    return request.param


def test_payloads_come_in_the_order_of_their_messages_whatever_their_kind(rig, resolve):
    _, sealed = stored(rig, 20)
    messages = [message for pair in zip(sealed, [b"plain", None] * 10, strict=True) for message in pair]
    found = resolve(rig.cc, messages, concurrency=7)

    assert [each.payload for each in found][::2] == [payload(n) for n in range(20)]
    assert [each.payload for each in found][1::2] == [b"plain", None] * 10
    assert [each.message for each in found] == messages


def test_a_bad_message_is_an_error_of_its_own(rig, resolve):
    pointers, sealed = stored(rig, 6)
    store = rig.cc.store("hot")
    store.rollback(pointers[1])
    store._payloads[pointers[3].key] = bytes(SIZE)
    chunk = Rig("chunking")
    chunk.publisher()("t", payload(0), b"k")
    found = resolve(rig.cc, [*sealed, chunk.sent[0][1], sealed[0][:-9]])

    expected = [None, PayloadNotFoundError, None, IntegrityError, None, None, ChunkError, claimcheck.ClaimCheckError]
    for each, kind in zip(found, expected, strict=True):
        assert each.error is None if kind is None else isinstance(each.error, kind)
    with pytest.raises(PayloadNotFoundError):
        _ = found[1].payload
    assert found[5].payload == payload(5)


def test_no_more_payloads_are_read_than_the_caller_allows(rig, resolve):
    _, sealed = stored(rig, 40)
    gate = Gate(rig.cc.store("hot"), open_=True)
    assert len(resolve(rig.cc, sealed, concurrency=3)) == 40
    assert 1 <= gate.most <= 3


def test_declared_bytes_are_bounded_and_a_larger_payload_is_read_alone(rig, resolve):
    _, small = stored(rig, 12)
    _, [large] = stored(rig, 1, 8 * SIZE)
    gate = Gate(rig.cc.store("hot"), open_=True)
    found = resolve(rig.cc, [*small[:6], large, *small[6:]], max_bytes=3 * SIZE)
    assert [len(each.payload) for each in found] == [SIZE] * 6 + [8 * SIZE] + [SIZE] * 6
    assert gate.most_bytes == 8 * SIZE  # and nothing beside it
    assert gate.most <= 3


def test_messages_are_taken_as_they_are_needed(rig):
    """An endless source is fine, and what is resolved is not held back for the sake of a full window."""
    _, [sealed] = stored(rig, 1)
    taken = itertools.count()
    many = rig.cc.resolve_many((sealed if n % 2 else b"plain" for n in taken), concurrency=4)
    assert next(many).payload == b"plain"
    assert next(taken) == 1
    many.close()


def test_a_slow_source_does_not_hold_back_payloads(rig):
    _, sealed = stored(rig, 1)

    async def source():
        yield sealed[0]
        await asyncio.Event().wait()

    async def main():
        async with contextlib.aclosing(rig.cc.aresolve_many(source())) as many:
            assert (await asyncio.wait_for(anext(many), 10)).payload == payload(0)

    asyncio.run(main())


def test_reads_stop_when_the_caller_stops(rig):
    """On an event loop: see the harness of cancellations."""
    pointers, sealed = stored(rig, 20)
    gate = Gate(rig.cc.store("hot"))
    gate.allow(pointers[0])
    many = rig.cc.resolve_many(sealed, concurrency=4)
    next(many)
    many.close()
    assert gate.reached(lambda: not gate.running)
    assert len(gate.begun) <= 5


@pytest.mark.parametrize("is_async", [False, True])
def test_what_came_before_the_error_of_the_source_is_delivered(rig, is_async):
    _, sealed = stored(rig, 10)
    found = []

    def source():
        yield from sealed
        raise LookupError("the source")

    async def asynchronous():
        for message in source():
            yield message

    async def main():
        nonlocal found
        async for each in rig.cc.aresolve_many(asynchronous()):
            found += [each]

    with pytest.raises(LookupError):
        asyncio.run(main()) if is_async else found.extend(rig.cc.resolve_many(source()))
    assert [each.payload for each in found] == [payload(n) for n in range(10)]


def test_a_tuple_of_another_length_is_an_error_of_its_own(rig, resolve):
    found = resolve(rig.cc, [(b"a", None), (b"a",), (b"a", None, 1)])
    assert [type(each.error) for each in found] == [type(None), PayloadTypeError, PayloadTypeError]


@pytest.mark.parametrize(
    ("messages", "options", "error"),
    [
        ([], {"concurrency": 0}, ConfigError),
        ([], {"max_bytes": 0}, ConfigError),
        ([], {"concurrency": "4"}, ConfigError),
        (b"message", {}, PayloadTypeError),
        ("message", {}, PayloadTypeError),
    ],
)
def test_arguments_are_checked_at_once(rig, messages, options, error):
    for call in (rig.cc.resolve_many, rig.cc.aresolve_many):
        with pytest.raises(error):
            call(messages, **options)
