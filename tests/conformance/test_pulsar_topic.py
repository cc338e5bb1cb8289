"""The store conformance kit on a side topic of a real Pulsar, without deletions."""

import pulsar
import pytest

from claimcheck.testing import StoreConformance

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

    def damage(self, pointer, payload):
        pytest.skip(_IMMUTABLE)
