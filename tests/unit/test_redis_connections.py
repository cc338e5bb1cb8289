"""The connections that are kept for small commands beside the pool of redis-py."""

import os
import threading

import pytest

from tests.unit.scripted_redis import bulk, opened, scripted_redis

PAYLOAD = b"small"


class Entries:
    """A Redis with SET and GET. It closes the connection in place of the answers numbered in ``closes``, from 0."""

    def __init__(self):
        self.values, self.answered, self.closes = {}, 0, set()

    def __call__(self, conversation, command):
        number, self.answered = self.answered, self.answered + 1
        if number in self.closes:
            return None
        if command[0] == b"SET":
            self.values[command[1]] = command[2]
            return b"+OK\r\n"
        return bulk(self.values[command[1]])


@pytest.fixture
def entries():
    return Entries()


@pytest.fixture
def server(entries):
    with scripted_redis(entries) as server:
        yield server


@pytest.fixture
def store(server):
    with opened(server.url) as store:
        yield store


def test_small_payloads_share_one_connection(store, server):
    for pointer in [store.write(PAYLOAD) for _ in range(3)]:
        assert store.read(pointer) == PAYLOAD

    assert server.connections == 1


@pytest.mark.parametrize("closes", [{1}, {2}], ids=["write", "read"])
def test_a_command_on_a_lost_connection_is_repeated(store, server, entries, closes):
    entries.closes = closes
    store.write(PAYLOAD)

    assert store.read(store.write(PAYLOAD)) == PAYLOAD
    assert server.connections == 2


def test_after_a_lost_connection_the_others_are_not_trusted(store, entries):
    """All of them are lost if the server was restarted: each command is repeated once, and would meet the next one."""
    pointer, together = store.write(PAYLOAD), threading.Barrier(3)

    def at_the_same_time():
        borrowed = store._server.borrow_kept()
        together.wait(10)
        borrowed.give_back()

    threads = [threading.Thread(target=at_the_same_time) for _ in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(store._server._kept) == 3
    entries.closes = {entries.answered}

    assert store.read(pointer) == PAYLOAD
    assert not store._server._kept


@pytest.mark.parametrize("event", ["close", "fork"])
def test_nothing_is_kept_after(event, store, server, monkeypatch):
    pointer = store.write(PAYLOAD)
    if event == "close":
        store.close()
    else:
        child = os.getpid() + 1
        monkeypatch.setattr(os, "getpid", lambda: child)

    assert store.read(pointer) == PAYLOAD
    assert server.connections == 2


def test_a_small_pool_is_not_used_up(server):
    with opened(f"{server.url}&max_connections=1") as store:
        store.write(PAYLOAD)

        store._server.borrow("").give_back()
        assert not store._server._kept
