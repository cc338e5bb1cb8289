"""Every promise of a store that a log can keep, on a side topic of a real Pulsar."""

import pulsar
import pytest

from claimcheck.testing import StoreConformance

_FORGETS = "a log forgets by age and size only: a rollback removes nothing"
_STAYS = "nobody can change or remove what is in a log"


class TestPulsarTopic(StoreConformance):
    secrets = ("a-token-that-nobody-asks-for",)
    skip = {
        "test_rollback_leaves_nothing_and_may_be_repeated": _FORGETS,
        "test_same_payload_twice_rests_twice": _FORGETS,
        "test_failed_write_leaves_nothing": _FORGETS,
        "test_interrupted_write_leaves_nothing": _FORGETS,
        "test_hooks_hear_of_every_operation": "a payload's place becomes a part of its key when it is written",
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
        found = {}
        while reader.has_message_available():
            message = reader.read_next(5000)
            if message.properties()["claimcheck-uuid"] == key:
                found[int(message.properties()["claimcheck-chunk"])] = message.data()
        reader.close()
        return b"".join(found[number] for number in sorted(found)) if found else None

    def damage(self, pointer, payload):
        pytest.skip(_STAYS)
