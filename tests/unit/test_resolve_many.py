"""Many messages at once: in order, each with its own error, bounded, and over when the caller stops."""

import asyncio
import contextlib
import gc
import threading
import uuid

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


def test_what_the_caller_did_not_take_counts(rig):
    """Reads that have ended hold memory as well as those that run."""
    pointers, sealed = stored(rig, 10)
    gate, fourth = Gate(rig.cc.store("hot")), threading.Event()

    def source():
        yield from sealed[:3]
        fourth.set()
        yield from sealed[3:]

    many = rig.cc.resolve_many(source(), max_bytes=3 * SIZE)
    gate.allow(*pointers[1:])
    first = threading.Thread(target=lambda: next(many))
    first.start()
    assert fourth.wait(10)
    assert gate.reached(lambda: len(gate.begun) == 3 and gate.running == 1)
    gate.allow(pointers[0])
    first.join(10)
    assert gate.reached(lambda: len(gate.begun) == 4 and not gate.running)
    many.close()
    assert len(gate.begun) == 4


def test_messages_are_taken_as_they_are_needed(rig):
    """An endless source is fine, and what is resolved is not held back for the sake of a full window."""
    _, sealed = stored(rig, 1)
    taken = []

    def source():
        while True:
            taken.append(None)
            yield b"plain"
            yield sealed[0]

    many = rig.cc.resolve_many(source(), concurrency=4)
    assert next(many).payload == b"plain"
    assert len(taken) == 1
    many.close()


def test_a_slow_source_does_not_hold_back_payloads(rig):
    _, sealed = stored(rig, 1)

    async def main():
        never = asyncio.Event()

        async def source():
            yield sealed[0]
            await never.wait()

        async with contextlib.aclosing(rig.cc.aresolve_many(source())) as many:
            assert (await asyncio.wait_for(anext(many), 10)).payload == payload(0)

    asyncio.run(main())


class TestWhenTheCallerStops:
    def test_reads_stop(self, rig):
        pointers, sealed = stored(rig, 20)
        gate = Gate(rig.cc.store("hot"))
        gate.allow(pointers[0])
        many = rig.cc.resolve_many(sealed, concurrency=4)
        next(many)
        many.close()
        assert gate.reached(lambda: not gate.running)
        assert len(gate.begun) <= 5

    @pytest.mark.parametrize("how", ["cancel", "break"])
    def test_reads_stop_on_a_loop(self, rig, how):
        pointers, sealed = stored(rig, 20)
        gate = Gate(rig.cc.store("hot"))

        async def consume():
            async with contextlib.aclosing(rig.cc.aresolve_many(sealed, concurrency=4)) as many:
                async for _ in many:
                    if how == "break":
                        break

        async def main():
            task = asyncio.create_task(consume())
            assert await asyncio.to_thread(gate.reached, lambda: len(gate.begun) >= 2)
            gate.allow(pointers[0])
            if how == "cancel":
                task.cancel()
            await asyncio.wait({task})
            assert task.cancelled() is (how == "cancel")
            assert await asyncio.to_thread(gate.reached, lambda: not gate.running)

        asyncio.run(main())
        assert len(gate.begun) <= 5

    @pytest.mark.parametrize("is_async", [False, True])
    def test_what_came_before_the_error_of_the_source_is_delivered(self, rig, is_async):
        _, sealed = stored(rig, 10)
        found = []

        async def asynchronous():
            for message in source():
                yield message

        def source():
            yield from sealed
            raise LookupError("the source")

        async def main():
            nonlocal found
            async for each in rig.cc.aresolve_many(asynchronous()):
                found += [each]

        with pytest.raises(LookupError):
            asyncio.run(main()) if is_async else found.extend(rig.cc.resolve_many(source()))
        assert [each.payload for each in found] == [payload(n) for n in range(10)]

    def test_nothing_is_left_over_on_the_loop(self, rig):
        """Neither errors that nobody looked at, nor a source that is still in use."""
        _, sealed = stored(rig, 20)
        gate, problems = Gate(rig.cc.store("hot")), []

        async def source():
            for message in sealed:
                yield message
                await asyncio.sleep(0)
            await asyncio.Event().wait()

        async def consume(messages):
            async with contextlib.aclosing(rig.cc.aresolve_many(messages)) as many:
                async for _ in many:
                    pass

        async def main():
            asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
            messages = source()
            task = asyncio.create_task(consume(messages))
            assert await asyncio.to_thread(gate.reached, lambda: len(gate.begun) == 20)
            task.cancel()
            await asyncio.wait({task})
            await messages.aclose()
            assert await asyncio.to_thread(gate.reached, lambda: not gate.running)
            del task, messages
            gc.collect()
            await asyncio.sleep(0)

        asyncio.run(main())
        assert problems == []


def test_plain_messages_count_as_well(rig):
    pointers, [sealed] = stored(rig, 1)
    gate, taken = Gate(rig.cc.store("hot")), []

    def source():
        yield sealed
        for n in range(30):
            taken.append(n)
            yield bytes(SIZE)

    waiting = threading.Thread(target=lambda: next(rig.cc.resolve_many(source(), max_bytes=3 * SIZE)))
    waiting.start()
    assert gate.reached(lambda: gate.begun)
    gate.allow(*pointers)
    waiting.join(10)
    assert len(taken) <= 3


def test_a_tuple_of_another_length_is_an_error_of_its_own(rig, resolve):
    found = resolve(rig.cc, [(b"a", None), (b"a",), (b"a", None, 1)])
    assert [type(each.error) for each in found] == [type(None), PayloadTypeError, PayloadTypeError]


@pytest.mark.parametrize("options", [{"concurrency": 0}, {"max_bytes": 0}, {"concurrency": "4"}])
def test_bounds_are_checked_at_once(rig, options):
    for call in (rig.cc.resolve_many, rig.cc.aresolve_many):
        with pytest.raises(ConfigError):
            call([], **options)


@pytest.mark.parametrize("one", [b"message", "message"])
def test_one_message_is_not_an_iterable_of_messages(rig, one):
    for call in (rig.cc.resolve_many, rig.cc.aresolve_many):
        with pytest.raises(PayloadTypeError, match="not one"):
            call(one)


def test_a_resolution_shows_no_bytes(rig):
    [found] = rig.cc.resolve_many([b"secret" + uuid.uuid4().bytes])
    assert "secret" not in repr(found)
