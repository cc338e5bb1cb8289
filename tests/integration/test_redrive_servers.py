"""`claimcheck redrive` on a real Kafka and a real Pulsar."""

import json

import pytest
import yaml
from click.testing import CliRunner

from claimcheck.cli._commands import commands
from tests.integration import kafka_rig, pulsar_rig
from tests.integration.pulsar_rig import rig_on


@pytest.fixture
def configuration(redis_url, topic, tmp_path):
    """The configuration of the command, with a prefix of its own in Redis; all messages are signed."""
    signing = {"key_id": "k1", "keys": {"k1": "a secret of ours"}, "max_age_seconds": 3600}
    stores = {"hot": {"type": "redis", "url": redis_url, "ttl_seconds": 60, "key_prefix": f"{topic}:"}}
    return {"strategy": "hybrid", "hybrid": {"chunk_below_bytes": 50_000}, "stores": stores, "signing": signing}


@pytest.fixture
def redrive(configuration, tmp_path):
    """Runs the command, and returns its exit code and its report."""
    path = tmp_path / "claimcheck.yaml"
    path.write_text(yaml.safe_dump(configuration))

    def redrive(*arguments):
        result = CliRunner().invoke(commands, ["--config", str(path), "redrive", *arguments, "--json"])
        assert result.stdout, result.stderr
        return result.exit_code, json.loads(result.stdout)

    return redrive


def test_kafka_does_not_move_past_letters_with_the_wrong_store(kafka_broker, topic, configuration, redrive, tmp_path):
    configuration["strategy"] = "external"
    with kafka_rig.rig(kafka_broker, topic) as lab:
        dlq = lab.create(1, f"{topic}.dlq")
        cc = lab.claimcheck(**configuration)
        for _ in range(3):
            native = lab.native()
            envelope = cc.seal(cc.store("hot").write(kafka_rig.content(100_000), destination=topic))
            native.produce(dlq, envelope, headers=[("dead-letter-topic", topic.encode())])
            native.flush()
        command = ["--kafka", kafka_broker.bootstrap_servers, "--from", dlq, "--to", topic, "--yes"]
        command += ["--group", f"redrive-{topic}"]
        right = (tmp_path / "claimcheck.yaml").read_text()
        for wrong in (right.replace(f"{topic}:", "other:"), right.replace("hot:", "cold:").replace(" hot", " cold")):
            (tmp_path / "claimcheck.yaml").write_text(wrong)
            code, report = redrive(*command)
            assert (code, report["sent"], report["unreadable"], report["finished"]) == (1, 0, 1, False), report["error"]
            assert "has had the payload of none of its letters" in report["error"]
        (tmp_path / "claimcheck.yaml").write_text(right)
        assert redrive(*command)[1]["sent"] == 3


def test_kafka(kafka_broker, topic, configuration, redrive, tmp_path):
    payloads = [b"small", kafka_rig.content(40_000), kafka_rig.content(100_000), None, b"last"]
    settings = tmp_path / "kafka.properties"
    settings.write_text(f"message.max.bytes={kafka_rig.LIMIT}\n")
    with kafka_rig.rig(kafka_broker, topic) as lab:
        dlq = lab.create(2, f"{topic}.dlq")
        cc = lab.claimcheck(**configuration)
        producer = lab.producer(cc)
        for i, payload in enumerate(payloads):
            producer.produce(topic, payload, key=b"k%d" % i, headers={"a": b"b"})
        producer.flush()
        consumer = lab.consumer(cc=cc, wrap={"dead_letter_producer": lab.native(message_max_bytes=20_000)})
        for message in kafka_rig.receive(consumer, 5):
            consumer.dead_letter(message, dlq)
            consumer.commit(message, asynchronous=False)
        incomplete = kafka_rig.chunks_of(b"half", 2)[0]
        native = lab.native()
        native.produce(dlq, incomplete, partition=0, headers=[("dead-letter-topic", topic.encode())])
        native.flush()
        command = ["--kafka", kafka_broker.bootstrap_servers, "--kafka-config", str(settings)]
        command += ["--from", dlq, "--to", topic, "--group", f"redrive-{topic}"]

        dry, planned = redrive(*command)
        first, report = redrive(*command, "--yes", "--limit", "2")
        second, rest = redrive(*command, "--yes")
        third, empty = redrive(*command, "--yes")

        back = kafka_rig.receive(consumer, 5)
        assert sorted((m.key(), m.value()) for m in back) == [(b"k%d" % i, each) for i, each in enumerate(payloads)]
        assert all(message.headers() == [("a", b"b"), ("redrive-count", b"1")] for message in back)
        assert kafka_rig.nothing_comes(consumer, 0.5)
    assert (dry, planned["read"], planned["sent"], planned["unreadable"]) == (1, 5, 0, 1)
    assert report["finished"] is False
    assert report["sent"] + rest["sent"] == 5
    (letter,) = report["letters"] + rest["letters"]
    assert letter["position"].startswith(f"{dlq}[0] at ")
    assert max(first, second) == 1
    assert (third, empty["read"], empty["unreadable"]) == (0, 0, 0)


def test_pulsar(pulsar_broker, pulsar_client, topic, configuration, redrive):
    payloads = [b"small", pulsar_rig.content(45_000), pulsar_rig.content(300_000), b"last"]
    with pulsar_rig.rig(pulsar_broker, pulsar_client, topic) as lab:
        dlq = f"{topic}-dlq"
        cc = lab.claimcheck(**configuration, threshold_bytes=20_000)
        producer = lab.producer(cc)
        for i, payload in enumerate(payloads):
            producer.send(payload, {"a": "b"}, f"k{i}", event_timestamp=1_700_000_000_000 + i, ordering_key=f"o{i}")
        aside = lab.client.create_producer(dlq)
        consumer = lab.consumer(cc=cc, wrap={"dead_letter_producer": aside})
        for message in pulsar_rig.receive(consumer, 4):
            consumer.dead_letter(message)
        aside.send(pulsar_rig.chunk(1, 0, 2, b"half"), properties={"REAL_TOPIC": lab.topic})
        command = ["--pulsar", pulsar_broker.service_url, "--admin-url", pulsar_broker.admin_url]
        command += ["--from", dlq, "--to", topic]

        dry, planned = redrive(*command)
        first, report = redrive(*command, "--yes", "--limit", "1")
        second, rest = redrive(*command, "--yes")
        third, empty = redrive(*command, "--yes")

        assert (first, report["sent"], second, rest["sent"]) == (0, 1, 1, 3), (report, rest)
        back = pulsar_rig.receive(consumer, 4)
        for message in back:
            consumer.acknowledge(message)
        assert [message.data() for message in back] == payloads
        assert [message.partition_key() for message in back] == [f"k{i}" for i in range(4)]
        assert [message.ordering_key() for message in back] == [f"o{i}" for i in range(4)]
        assert [message.event_timestamp() for message in back] == [1_700_000_000_000 + i for i in range(4)]
        assert all(message.properties() == {"a": "b", "redrive-count": "1"} for message in back)
        lab.settled()
        rig_on(lab, dlq).settled("claimcheck-redrive", backlog=1)
    assert (dry, planned["read"], planned["sent"], planned["unreadable"]) == (1, 4, 0, 1)
    assert (first, report["sent"], second, rest["sent"]) == (0, 1, 1, 3)
    assert (third, empty["read"], empty["unreadable"]) == (1, 0, 1), "what cannot be read stays"
