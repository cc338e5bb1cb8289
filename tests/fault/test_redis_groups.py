"""A cluster whose slots move and whose nodes die, a master that changes places, and a sentinel that is away."""

import contextlib
import gc
import time
import uuid

import pytest
import redis
import redis.cluster

from claimcheck._store.contract import StoreContext
from claimcheck.errors import PayloadNotFoundError, StoreUnavailableError
from claimcheck.stores.redis import RedisStore
from tests import servers
from tests.fault.rig import (
    MIB,
    PAYLOAD,
    READINGS,
    SEGMENT,
    TriggerFile,
    assert_healthy,
    assert_read_goes_on,
    assert_unavailable,
    content,
)

# A cluster ---------------------------------------------------------------------------------------------------------


class Slots:
    """Moves the slot of one payload from the node that has it to another one, in the steps that Redis knows."""

    def __init__(self, cluster):
        self.nodes = [redis.Redis(port=node.port) for node in cluster.nodes]
        self.ids = [node.execute_command("CLUSTER MYID").decode() for node in self.nodes]
        self._moving = False

    def begin(self, key):
        """From now on the old owner asks clients to look for new keys at the new one."""
        self.slot = redis.cluster.key_slot(key.encode())
        self.old = next(i for i, node in enumerate(self.nodes) if self._owns(node, i))
        self.new = (self.old + 1) % len(self.nodes)
        self._moving = True
        self._tell(self.new, "IMPORTING", self.ids[self.old])
        self._tell(self.old, "MIGRATING", self.ids[self.new])

    def move(self, *keys):
        """Some keys lie at the new owner, while the slot is still the old one's."""
        port = self.nodes[self.new].get_connection_kwargs()["port"]
        for key in keys:
            self.nodes[self.old].execute_command("MIGRATE", "127.0.0.1", port, key, 0, 5000)

    def finish(self):
        """The new owner it is, for whatever is there."""
        left = self.nodes[self.old].execute_command("CLUSTER GETKEYSINSLOT", self.slot, 10_000)
        self.move(*left)
        for i in range(len(self.nodes)):
            self._tell(i, "NODE", self.ids[self.new])
        self._moving = False

    def close(self):
        if self._moving:  # a test that failed half way leaves the next one a whole cluster
            self.finish()
        for node in self.nodes:
            node.close()

    def _owns(self, node, i):
        slots = node.execute_command("CLUSTER SLOTS")
        return any(low <= self.slot <= high and owner[2].decode() == self.ids[i] for low, high, owner, *_ in slots)

    def _tell(self, i, *what):
        self.nodes[i].execute_command("CLUSTER", "SETSLOT", self.slot, *what)


@pytest.fixture(scope="module")
def cluster(redis_programs):
    with servers.redis_cluster() as cluster:
        yield cluster


class TestMovingSlots:
    @pytest.fixture
    def slots(self, cluster):
        with contextlib.closing(Slots(cluster)) as slots:
            yield slots

    @pytest.fixture
    def known(self):
        """A key's uuid that is known beforehand, and with it the slot of the next payload."""
        return uuid.uuid4()

    @pytest.fixture
    def store(self, cluster, known):
        fresh = [known]
        with RedisStore(url=cluster.url, timeout_seconds=5) as store:
            store.write(b"so that it knows where the slots are")
            store.context = StoreContext(new_uuid=lambda: fresh.pop() if fresh else uuid.uuid4())
            yield store
            assert_healthy(store)

    @pytest.mark.parametrize("moved", [[2, 3], [0, 1, 2, 3, 4, 5], []])
    def test_read_during_and_after_the_move(self, store, slots, moved):
        pointer = store.write(PAYLOAD)
        slots.begin(pointer.key)
        slots.move(*(f"{pointer.key}-{i}" for i in moved))
        assert all(read(store, pointer) == PAYLOAD for read in READINGS.values())
        slots.finish()
        assert all(read(store, pointer) == PAYLOAD for read in READINGS.values())

    def test_moved_while_it_is_read(self, store, slots, known):
        def move():
            slots.begin(f"{{{known}}}")
            slots.finish()

        assert_read_goes_on(store, content(20 * MIB), MIB, move)

    def test_gone_is_gone_during_the_move(self, store, slots):
        pointer = store.write(PAYLOAD)
        slots.begin(pointer.key)
        slots.nodes[slots.old].delete(f"{pointer.key}-2")
        for read in READINGS.values():
            with pytest.raises(PayloadNotFoundError, match="segment 2 of 6"):
                read(store, pointer)
        slots.finish()

    @pytest.mark.parametrize("finishes", [True, False])
    @pytest.mark.parametrize("at", [None, 0, 3 * MIB])
    def test_write_during_and_after_the_move(self, store, slots, known, at, finishes):
        """The move begins before the write or in the middle of it, and ends at once or after it."""

        def move():
            slots.begin(f"{{{known}}}")
            if finishes:
                slots.finish()

        if at is None:
            move()
        pointer = store.write(PAYLOAD if at is None else TriggerFile(PAYLOAD, move, at=at))
        assert f"{{{known}}}" in pointer.key
        assert store.read(pointer) == PAYLOAD
        if not finishes:
            slots.finish()
        assert store.read(pointer) == PAYLOAD

    def test_rollback_finds_all_segments_on_the_move(self, store, slots):
        pointer = store.write(PAYLOAD)
        slots.begin(pointer.key)
        slots.move(*(f"{pointer.key}-{i}" for i in (1, 4)))
        store.rollback(pointer)
        slots.finish()
        assert not any(node.exists(f"{pointer.key}-{i}") for node in slots.nodes[slots.new :][:1] for i in range(6))


def test_lines_to_a_cluster_that_are_lost_during_a_read_or_a_write_or_in_the_pool(cluster):
    def hang_up():
        for node in cluster.nodes:
            with redis.Redis(port=node.port) as client:
                client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    with RedisStore(url=cluster.url, timeout_seconds=5) as store:
        assert_read_goes_on(store, content(20 * MIB), MIB, hang_up)
        for at in (0, 5 * MIB):
            pointer = store.write(TriggerFile(PAYLOAD, hang_up, at=at))
            for read in READINGS.values():
                hang_up()
                assert read(store, pointer) == PAYLOAD
        assert_healthy(store)


def test_of_a_dead_node_payloads_elsewhere_are_not_touched_and_its_own_come_later(cluster):
    with RedisStore(url=cluster.url, timeout_seconds=2) as store:
        found = {owner(cluster, pointer.key): pointer for pointer in (store.write(PAYLOAD) for _ in range(30))}
        assert len(found) == 3
        node = cluster.nodes[0]
        node.kill()
        for port, pointer in found.items():
            if port == node.port:
                assert_unavailable(lambda pointer=pointer: store.read(pointer))
            else:
                assert store.read(pointer) == PAYLOAD
        node.start()
        cluster.wait()
        assert_healthy(store)


def owner(cluster, key):
    with redis.cluster.RedisCluster("127.0.0.1", cluster.nodes[0].port) as client:
        return client.get_node_from_key(key).port


# Sentinel ----------------------------------------------------------------------------------------------------------


class TestFailover:
    @pytest.fixture
    def store(self, redis_sentinel):
        with RedisStore(url=redis_sentinel.url, timeout_seconds=5) as store:
            store.write(b"so that a connection is there")
            yield store
            assert_healthy(store)

    def test_between_write_and_read_and_rollback(self, store, redis_sentinel):
        pointer = store.write(PAYLOAD)
        redis_sentinel.failover()
        assert store.read(pointer) == PAYLOAD
        redis_sentinel.failover()
        store.rollback(pointer)
        with pytest.raises(PayloadNotFoundError):
            store.read(pointer)

    def test_during_the_read(self, store, redis_sentinel):
        assert_read_goes_on(store, content(20 * MIB), SEGMENT, redis_sentinel.failover)

    def test_during_the_write(self, store, redis_sentinel):
        """Whether the line was lost or the server had become a replica: whole, or an error that says perhaps later."""
        try:
            pointer = store.write(TriggerFile(PAYLOAD, redis_sentinel.failover))
        except StoreUnavailableError:
            return
        assert store.read(pointer) == PAYLOAD


@pytest.mark.parametrize("group", ["redis_cluster", "redis_sentinel"])
def test_closing_leaves_no_connection_for_the_garbage_collector(group, request):
    servers_of_it = request.getfixturevalue(group)
    nodes = servers_of_it.nodes if group == "redis_cluster" else [servers_of_it.sentinel]

    def lines():
        found = set()
        for node in nodes:
            with redis.Redis(port=node.port) as client:
                own = str(client.client_id())
                found |= {(node.port, line["id"]) for line in client.client_list() if line["id"] != own}
        return found

    before = lines()
    store = RedisStore(url=servers_of_it.url)
    for _ in range(20):
        store.read(store.write(PAYLOAD))
    assert len(lines() - before) == len(nodes)
    gc.disable()
    try:
        store.close()
        servers.wait_until(lambda: not lines() - before, "no connection is left")
    finally:
        gc.enable()


def test_no_sentinel_is_no_store_for_now_and_a_master_that_dies_is_replaced(redis_programs):
    with servers.redis_sentinel() as group, RedisStore(url=group.url, timeout_seconds=30) as store:
        pointer = store.write(PAYLOAD)
        group.sentinel.kill()
        assert store.read(pointer) == PAYLOAD, "the connection to the master is still there"
        store.close()
        began = time.monotonic()
        assert_unavailable(lambda: store.read(pointer))
        assert_unavailable(lambda: store.write(PAYLOAD))
        assert time.monotonic() - began < 30, "a refused connection is no reason to wait"
        group.sentinel.start()
        assert store.read(pointer) == PAYLOAD
        group.settle()
        new = group.replica
        group.master.kill()
        with RedisStore(url=group.url, timeout_seconds=1) as hasty:
            assert_unavailable(lambda: hasty.read(pointer))
            assert_unavailable(lambda: hasty.write(PAYLOAD))
        group.wait_for(new)
        assert store.read(pointer) == PAYLOAD
        assert_healthy(store)
