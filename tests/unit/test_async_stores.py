"""Stores for an event loop: it goes on meanwhile, and a task that is cancelled leaves nothing behind."""

import asyncio
import io
import threading

import pytest

from claimcheck.errors import PayloadNotFoundError
from claimcheck.stores.filesystem import FilesystemStore
from tests.produce_rig import BIG, Rig

MIB = 1 << 20


@pytest.fixture
def store(tmp_path):
    return FilesystemStore(path=str(tmp_path))


class HeldUp:
    """Wraps a method of a store: it waits, before or after its work, until the test lets it go on."""

    def __init__(self, monkeypatch, target, name, *, after=False):
        self.reached, self.go_on, self.threads = threading.Event(), threading.Event(), []
        method = getattr(target, name)

        def slow(*args):
            self.threads.append(threading.current_thread())
            result = method(*args) if after else None
            self.reached.set()
            assert self.go_on.wait(10)
            return result if after else method(*args)

        monkeypatch.setattr(target, name, slow)

    async def cancelled(self, coroutine):
        """Start it, cancel it when it waits, and let what it left behind come to its end."""
        task = asyncio.create_task(coroutine)
        assert await asyncio.to_thread(self.reached.wait, 10)
        task.cancel()
        asyncio.get_running_loop().call_later(0.01, self.go_on.set)
        with pytest.raises(asyncio.CancelledError):
            await task


def test_round_trip(store):
    async def main():
        pointer = await store.awrite(BIG)
        assert await store.aread(pointer) == BIG
        await store.arollback(pointer)
        with pytest.raises(PayloadNotFoundError):
            await store.aread(pointer)

    asyncio.run(main())


def test_resolve_asks_stores_in_a_thread_and_has_all_else_at_hand(monkeypatch):
    rig = Rig()
    rig.publisher()("t", BIG)
    rig.publisher()("t", b"small")
    held = HeldUp(monkeypatch, rig.cc.store("hot"), "read")
    held.go_on.set()
    (_, pointer, _, _), (_, plain, _, _) = rig.sent

    async def main():
        assert await rig.cc.aresolve(pointer) == BIG
        assert await rig.cc.aresolve(plain) is plain
        assert await rig.cc.aresolve(None) is None

    asyncio.run(main())
    assert len(held.threads) == 1
    assert held.threads[0] is not threading.main_thread()


def test_the_loop_goes_on_meanwhile(store, monkeypatch):
    pointer = store.write(BIG)
    held = HeldUp(monkeypatch, store, "_open")

    async def main():
        reading = asyncio.create_task(store.aread(pointer))
        await asyncio.to_thread(held.reached.wait, 10)
        held.go_on.set()  # nobody could, if the loop stood still
        assert await reading == BIG

    asyncio.run(main())


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("payload", [bytes(3 * MIB), lambda: io.BytesIO(bytes(3 * MIB))])
def test_a_cancelled_write_leaves_nothing(store, tmp_path, monkeypatch, payload, after):
    held = HeldUp(monkeypatch, store, "_write", after=after)

    asyncio.run(held.cancelled(store.awrite(payload() if callable(payload) else payload)))

    assert list(tmp_path.iterdir()) == []


def test_a_cancelled_write_stops_at_the_next_piece(store, monkeypatch):
    held = HeldUp(monkeypatch, store, "_write")
    file = io.BytesIO(bytes(100 * MIB))

    asyncio.run(held.cancelled(store.awrite(file)))

    assert file.tell() <= MIB


def test_a_cancelled_read_stops_at_the_next_piece_and_closes_what_it_opened(store, monkeypatch):
    pointer, opened = store.write(bytes(10 * MIB)), []
    original = store._open

    class Counting:
        def __init__(self, reader):
            self.reader, self.reads, self.closed = reader, 0, False
            opened.append(self)

        def readinto(self, buffer):
            self.reads += 1
            return self.reader.readinto(buffer)

        def close(self):
            self.closed = True
            self.reader.close()

    monkeypatch.setattr(store, "_open", lambda *args: Counting(original(*args)))
    held = HeldUp(monkeypatch, store, "_open", after=True)

    asyncio.run(held.cancelled(store.aread(pointer)))

    assert [(reader.reads <= 1, reader.closed) for reader in opened] == [(True, True)]


def test_a_cancelled_rollback_is_done_all_the_same(store, tmp_path, monkeypatch):
    pointer = store.write(BIG)
    held = HeldUp(monkeypatch, store, "_delete")

    asyncio.run(held.cancelled(store.arollback(pointer)))

    assert list(tmp_path.iterdir()) == []


def files(folder):
    return {path for path in folder.rglob("*") if path.is_file()}
