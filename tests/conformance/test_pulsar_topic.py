"""The store conformance kit on a side topic of a real Pulsar, without deletions."""

from pathlib import Path

import pulsar
import pytest

from claimcheck.testing import StoreConformance
from claimcheck.testing._store_kit import Unseekable, Zeros

_RETAINED = "Pulsar deletes messages only by age and size: a rollback deletes nothing"
_IMMUTABLE = "messages in a topic cannot be changed or deleted"


class TestPulsarTopic(StoreConformance):
    secrets = ("a-token-that-is-not-required",)
    skip = {
        "test_rollback_leaves_nothing_and_may_be_repeated": _RETAINED,
        "test_same_payload_twice_rests_twice": _RETAINED,
        "test_failed_write_leaves_nothing": _RETAINED,
    }

    @pytest.fixture
    def options(self, pulsar_broker, pulsar_client, topic):
        pulsar_client.create_producer(topic).close()
        pulsar_broker.set_policy(topic, "retention", {"retentionTimeInMinutes": 60, "retentionSizeInMB": -1})
        self.client, self.topic = pulsar_client, topic
        return {
            "type": "pulsar-topic",
            "url": pulsar_broker.service_url,
            "topic": topic,
            "ttl_seconds": 600,
            "segment_bytes": 50_000,
            "admin_url": pulsar_broker.admin_url,
            "token": self.secrets[0],
        }

    def peek(self, pointer):
        key, _, _ = pointer.key.partition("@")
        reader = self.client.create_reader(self.topic, pulsar.MessageId.earliest)
        chunks = {}
        while reader.has_message_available():
            message = reader.read_next(5000)
            if message.properties()["claimcheck-uuid"] == key:
                chunks[int(message.properties()["claimcheck-chunk"])] = message.data()
        reader.close()
        return b"".join(chunks[number] for number in sorted(chunks)) if chunks else None

    def test_large_payload_in_bounded_memory(self, store):
        """Measured by Linux: CPython 3.11 crashes if a native thread calls back while tracemalloc stops."""
        size = 4 * self.memory_bytes
        assert store.read(store.write(b"vendor and connections"))
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        before = _memory("VmRSS")
        pointer = store.write(Unseekable(Zeros(size)))
        assert store.copy(pointer, to=store).checksum == pointer.checksum
        with store.open(pointer) as file:
            assert sum(len(piece) for piece in iter(lambda: file.read(1 << 20), b"")) == size
        assert _memory("VmHWM") - before < 2 * self.memory_bytes  # the client's queues are not traced elsewhere

    def damage(self, pointer, payload):
        pytest.skip(_IMMUTABLE)


def _memory(name):
    """Bytes of this process, by their name in /proc/self/status."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024
