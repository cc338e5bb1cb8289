"""Dead letters go back to their topic whole, and an interruption at any point loses none; also on real brokers."""

import json
import time
from contextlib import closing
from dataclasses import replace
from functools import partial

import pytest
import yaml
from click.testing import CliRunner

from claimcheck._operate.redrive import Redrive, RedriveReport, _topic_of
from claimcheck.cli._commands import commands
from claimcheck.config import HEADER
from claimcheck.errors import ConfigError, PayloadNotFoundError, StoreError, StoreUnavailableError
from claimcheck.transports._common.dead_letters import Letter, foreign, relabeled
from claimcheck.transports.local import LocalConsumer, LocalProducer
from tests.integration import kafka_rig, pulsar_rig
from tests.integration.pulsar_rig import rig_on
from tests.local_letters import LocalLetters, dead_letter
from tests.local_rig import BIG, append_chunks, drain, stored

PAYLOADS = [b"small", bytes(10_000), None, b"x" * 20_000, b"last"]


@pytest.fixture
def cc(configure):
    return configure("chunking", threshold_bytes=1000, destinations={"wide": {"strategy": "external"}})


def send_aside(broker, cc, *, sent=(), topic="orders"):
    """Send payloads, and append all that is in the topic to its dead-letter topic."""
    for payload in sent:
        LocalProducer(broker, cc).send(topic, payload, key="k", headers={"a": "b"})
    with LocalConsumer(broker, cc, topics=[topic], group="app") as consumer:
        while (message := consumer.receive(timeout=0)) is not None:
            dead_letter(broker, cc, consumer, message, "no sense in it")


@pytest.fixture
def dead_letters(broker, cc):
    """Plain, chunked and stored dead letters."""
    send_aside(broker, cc, sent=PAYLOADS)
    send_aside(broker, cc, sent=PAYLOADS, topic="wide")


def redrive_all(broker, cc, *, within=lambda letters: letters, source="orders.dead_letter", target="orders", **options):
    topic = LocalLetters(broker, cc, source=source, target=target, group="redrive")
    report = RedriveReport(dry_run=False)
    with closing(topic):
        Redrive(**{"dry_run": False, **options}).run(within(topic.letters()), report, lambda: None)
    return report


def received(broker, cc, topic="orders", group="app"):
    with LocalConsumer(broker, cc, topics=[topic], group=group) as consumer:
        return drain(consumer)


def results(broker, cc, **where):
    return [message.error or message.value for message in received(broker, cc, **where)]


@pytest.mark.parametrize("topic", ["orders", "wide"])
def test_letters_go_back_whole(broker, cc, dead_letters, topic):
    report = redrive_all(broker, cc, source=f"{topic}.dead_letter", target=topic)
    assert (report.read, report.sent, report.unreadable, report.finished) == (5, 5, 0, True)
    assert report.bytes == sum(len(payload or b"") for payload in PAYLOADS)
    messages = received(broker, cc, topic)
    assert [message.value for message in messages] == PAYLOADS
    assert all(message.key == b"k" for message in messages)
    assert all(message.headers == [("a", b"b"), ("redrive-count", b"1")] for message in messages)
    assert redrive_all(broker, cc, source=f"{topic}.dead_letter", target=topic).read == 0


@pytest.mark.parametrize(("before", "after"), [(b"1", b"2"), (b"9", b"10"), (b"-1", b"1"), (b"\xff", b"1")])
def test_the_count_goes_up(before, after):
    headers = [("a", b"b"), ("redrive-count", b"7"), ("redrive-count", before), ("dead-letter-reason", b"none")]
    assert relabeled(headers, str.encode) == [("a", b"b"), ("redrive-count", after)]


def killing(step):
    """Return a wrapper of letters that ends the process before the step with this number, and after all before."""
    count = 0

    def deadly(call):
        def called(*arguments):
            nonlocal count
            count += 1
            if count == step:
                raise KeyboardInterrupt
            return call(*arguments)

        return called

    def within(letters):
        for letter in letters:
            yield replace(letter, read=deadly(letter.read), send=deadly(letter.send), settle=deadly(letter.settle))

    return within


@pytest.mark.parametrize("step", range(1, 16))
def test_a_kill_loses_nothing(broker, cc, dead_letters, step):
    with pytest.raises(KeyboardInterrupt):
        redrive_all(broker, cc, within=killing(step))
    report = redrive_all(broker, cc)
    found = results(broker, cc)
    assert report.finished
    assert sorted(set(found), key=str) == sorted(PAYLOADS, key=str)
    assert len(found) <= len(PAYLOADS) + 1


def test_unreadable_letters_stay_and_are_named(broker, cc, tmp_path):
    append_chunks(broker, cc, bytes(10_000), slice(2))
    LocalProducer(broker, cc).send("wide", bytes(10_000), partition=0)
    for value in (broker.fetch("wide", 0, 0, 1)[0].value, b"good"):
        broker.append("orders", value)
    for name in stored(tmp_path):
        (tmp_path / "store" / name).unlink()
    broker.create_topic("again")
    for _ in range(2):
        report = redrive_all(broker, cc, source="orders", target="again", force=True)
        named = {position: type(error).__name__ for position, error in report.named}
        assert named == {"orders[0] at 2": "PayloadNotFoundError", "orders[0] at 0": "IncompletePayloadError"}
        assert (report.unreadable, report.finished) == (2, True)
    assert results(broker, cc, topic="again") == [b"good"]


@pytest.mark.parametrize(
    ("headers", "target", "reason"),
    [
        ([("dead-letter-topic", b"orders")], "orders", None),
        ([("dead-letter-topic", b"orders"), ("dead-letter-topic", b"orders.retry")], "orders", None),
        ([("REAL_TOPIC", "persistent://public/default/orders-partition-3")], "orders", None),
        ([("REAL_TOPIC", "orders")], "persistent://public/default/orders", None),
        ([("REAL_TOPIC", "persistent://acme/shop/orders")], "orders", "it came from persistent://acme/shop/orders"),
        ([("dead-letter-topic", b"orders")], "invoices", "it came from orders"),
        ([("dead-letter-topic", None), ("a", b"orders")], "orders", "its headers do not name the topic"),
    ],
)
def test_the_headers_name_the_topic_of_a_letter(headers, target, reason):
    error = foreign(headers, target, _topic_of)
    assert (error is None) == (reason is None)
    assert (reason or "") in str(error)


class Script:
    """Letters of a broker with one position: each is a store and what becomes of the payload."""

    def __init__(self, *letters: tuple[str | None, str]) -> None:
        self.passed: list[int] = []
        self.sent: list[int] = []
        self.letters = [self.letter(number, store, state) for number, (store, state) in enumerate(letters)]

    def letter(self, number: int, store: str | None, state: str) -> Letter:
        def read() -> bytes:
            if state == "unavailable":
                raise StoreUnavailableError("down", store=store)
            if state in ("there", "refused"):
                return b"payload"
            expires = {"expired": 999_000, "lost": 1_001_000, "lost, of version 1": None}[state]
            raise PayloadNotFoundError("gone", store=store, expires_ms=expires)

        def send(payload: bytes | None) -> None:
            if state == "refused":
                raise ZeroDivisionError
            self.sent.append(number)

        move_past = partial(self.passed.append, number)
        return Letter(f"dlq[0] at {number}", read, send, settle=move_past, skip=move_past, store=store)

    def run(self, **options) -> RedriveReport:
        self.report = RedriveReport(dry_run=False)
        Redrive(**{"dry_run": False, "clock": lambda: 1000.0, **options}).run(self.letters, self.report, lambda: None)
        return self.report


@pytest.mark.parametrize(
    ("state", "error", "text"),
    [
        ("unavailable", StoreUnavailableError, "down"),
        ("refused", ZeroDivisionError, r"the dead letter dlq\[0\] at 1 was not sent; it stays"),
        ("lost", StoreError, r"store 'hot' has had the payload of none.* at dlq\[0\] at 1 stays"),
        ("lost, of version 1", StoreError, r"store 'hot' has had the payload of none.* at dlq\[0\] at 1 stays"),
    ],
)
def test_a_letter_that_may_be_sent_later_ends_the_run_and_stays(state, error, text):
    """The next run begins behind the last letter that was passed. The store may be the wrong one: see the next test."""
    script = Script(("cold", "there"), ("hot", state), ("cold", "there"))
    with pytest.raises(error) as caught:
        script.run()
    assert caught.match(text)
    assert (script.passed, script.sent, script.report.finished) == ([0], [0], False)


def test_letters_are_passed_that_expired_or_whose_store_had_a_payload_and_others_on_demand():
    script = Script(("hot", "expired"), ("hot", "there"), ("hot", "lost"), (None, "lost"), ("cold", "expired"))
    report = script.run()
    assert (script.passed, script.sent) == (list(range(5)), [1])
    assert (report.read, report.unreadable, report.sent, report.finished) == (1, 4, 1, True)
    lost = ("hot", "lost"), ("hot", "lost"), (None, "there")
    forced, dry = Script(*lost), Script(*lost)
    assert (forced.run(skip_unreadable=True).sent, forced.passed) == (1, [0, 1, 2])
    report = dry.run(dry_run=True)
    assert (report.read, report.unreadable, report.finished, dry.passed) == (1, 2, True, [])


# Signatures --------------------------------------------------------------------------------------------------------


@pytest.fixture
def configured(configure):
    def configured(strategy, **signing):
        keys = {"signing": {"keys": {"k": "a secret of these tests"}, **signing}} if signing else {}
        return configure(strategy, threshold_bytes=1000, **keys)

    return configured


@pytest.mark.parametrize("size", [10, 3000])
def test_a_plain_letter_stays_plain(broker, configured, size):
    broker.append("orders", b"x" * size)
    send_aside(broker, configured("external"))
    redrive_all(broker, configured("external", key_id="k"))
    message = broker.fetch("orders", 0, 1, 9)[0]
    assert message.value == b"x" * size
    assert [name for name, _ in message.headers] == ["redrive-count"]


@pytest.mark.parametrize("strategy", ["external", "chunking", "inline"])
def test_a_letter_is_signed_if_it_was_and_its_signature_keeps_its_age(broker, configured, strategy):
    """As pointer, as chunks, and as an escaped payload."""
    payload = HEADER + b"x" * (100 if strategy == "inline" else 5000)
    writer = configured(strategy, key_id="k")
    writer.opened.seal._clock = lambda: time.time() - 500
    store = writer.store("disk")
    store.context = replace(store.context, clock=lambda: time.time() - 500)
    send_aside(broker, writer, sent=[payload])
    send_aside(broker, configured(strategy), sent=[payload])
    report = redrive_all(broker, configured(strategy, key_id="k", require=False, max_age_seconds=400))
    assert (report.sent, report.failed) == (2, 0), report.named
    found, unsigned = results(broker, configured("external", key_id="k", max_age_seconds=600))
    assert found == payload
    assert "no signature" in str(unsigned) or "not signed" in str(unsigned)
    strict = configured("external", key_id="k", max_age_seconds=400)
    refused = [each for each in results(broker, strict, group="strict") if "s ago" in str(each)]
    assert "s ago, but signing.max_age_seconds is 400" in str(refused[-1])


def test_a_redrive_signs_no_message_of_a_third_topic(broker, configured):
    """Whoever can write to the dead-letter topic could otherwise have any message of another topic signed."""
    signed = configured("chunking", key_id="k")
    for name in ("orders.dead_letter", "salaries"):
        broker.create_topic(name, partitions=1)
    LocalProducer(broker, signed).send("salaries", BIG, key="k")
    for message in broker.fetch("salaries", 0, 0, 99):  # as anybody can copy them who may read and write both
        headers = [*message.headers, ("dead-letter-topic", b"orders")]
        broker.append("orders.dead_letter", message.value, key=message.key, headers=headers)
    report = redrive_all(broker, signed)
    assert (report.sent, report.unreadable) == (0, 1)
    assert broker.end_offset("orders", 0) == 0


# The command -------------------------------------------------------------------------------------------------------


@pytest.fixture
def invoke(tmp_path, monkeypatch, broker, configure):
    """Runs the command on an embedded broker, in place of Kafka, with one stored and one plain dead letter."""
    config = tmp_path / "claimcheck.yaml"
    config.write_text(f"strategy: external\nstores: {{disk: {{type: filesystem, path: {tmp_path / 'store'}}}}}\n")
    broker.create_topic("orders.dlq")
    for payload in (bytes(10_000), b"plain"):
        LocalProducer(broker, configure()).send("orders.dlq", payload, headers={"dead-letter-topic": "orders"})
    monkeypatch.setattr(
        "claimcheck.cli._redrive._opened",
        lambda cc, _, topics, group: LocalLetters(broker, cc, source=topics[0], target=topics[1], group=group),
    )

    def invoke(*arguments, place=("--kafka", "b:1")):
        common = ["--config", str(config), "redrive", *place, "--from", "orders.dlq", "--to", "orders"]
        return CliRunner().invoke(commands, [*common, *arguments])

    return invoke


def test_the_command_sends_only_with_yes(invoke):
    result = invoke("--json")
    assert (result.exit_code, json.loads(result.stdout)["read"], json.loads(result.stdout)["sent"]) == (0, 2, 0)
    assert "orders.dlq: 2 read, 0 unreadable, 0 foreign, 9.8 KiB (10,005 bytes)\n  nothing was sent" in invoke().stdout
    result = invoke("--yes", "--json")
    facts = json.loads(result.stdout)
    assert (result.exit_code, facts["ok"], facts["sent"], facts["bytes"], facts["failed"]) == (0, True, 2, 10_005, 0)
    assert "0 read, 0 unreadable, 0 foreign, 0 bytes\n  0 sent" in invoke("--yes").stdout


def test_the_command_names_what_stays(invoke, tmp_path):
    for name in stored(tmp_path):
        (tmp_path / "store" / name).unlink()
    limited = json.loads(invoke("--yes", "--limit", "1", "--json").stdout)
    result = invoke("--yes")
    assert (limited["sent"], limited["unreadable"]) == (1, 1)  # the limit counts letters that were sent
    assert limited["letters"][0]["type"] == "PayloadNotFoundError"
    assert result.exit_code == 1
    assert "orders.dlq[0] at 0 stays: PayloadNotFoundError: store 'disk'" in result.stdout


def test_wrong_usage(invoke, monkeypatch):
    """A topic of Pulsar that does not exist is not asked for: clients would create it."""
    with pytest.raises(ConfigError, match="limit"):
        Redrive(limit=0)
    monkeypatch.undo()
    monkeypatch.setattr(
        "claimcheck.transports.pulsar._queries.topic_stats", lambda _, topic: {} if topic == "orders.dlq" else None
    )
    pulsar = ("--pulsar", "pulsar://localhost:1", "--admin-url", "http://localhost:1")
    for result, code, text in (
        (invoke(*pulsar), 2, "run the command for one broker"),
        (invoke("--to", "orders.dlq"), 2, "the same topic"),
        (invoke(place=pulsar), 3, "there is no topic orders: check its name"),
    ):
        assert (result.exit_code, result.stdout) == (code, "")
        assert text in result.stderr


@pytest.mark.parametrize("arguments", [["--from", "orders", "--to", "orders.dlq"], ["--to", "wide"]])
def test_messages_that_are_not_dead_letters_of_the_topic_stay(invoke, broker, arguments):
    broker.append("orders", b"not a dead letter")
    dry, result = invoke(*arguments, "--json"), invoke(*arguments, "--yes")
    facts = json.loads(dry.stdout)
    assert (dry.exit_code, result.exit_code, facts["ok"], facts["sent"]) == (1, 1, False, 0)
    assert f"{facts['foreign']} are not dead letters of {arguments[-1]}: check --from and --to" in result.stdout
    assert facts["letters"][0]["type"] == "ForeignLetterError"
    forced = json.loads(invoke(*arguments, "--yes", "--force", "--json").stdout)
    assert (forced["ok"], forced["sent"], forced["foreign"]) == (True, facts["foreign"], 0)
    assert forced["sent"]


# Real brokers -----------------------------------------------------------------------------------------------------


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
        right = (tmp_path / "claimcheck.yaml").read_text()
        (tmp_path / "claimcheck.yaml").write_text(right.replace(f"{topic}:", "other:"))
        code, wrong = redrive(*command, "--yes")
        assert (code, wrong["finished"]) == (1, False)
        assert "has had the payload of none of its letters" in wrong["error"]
        (tmp_path / "claimcheck.yaml").write_text(right)
        first, report = redrive(*command, "--yes", "--limit", "1")
        second, rest = redrive(*command, "--yes")
        third, empty = redrive(*command, "--yes")
        back = kafka_rig.receive(consumer, 5)
        assert sorted((m.key(), m.value()) for m in back) == [(b"k%d" % i, each) for i, each in enumerate(payloads)]
        assert all(message.headers() == [("a", b"b"), ("redrive-count", b"1")] for message in back)
        assert kafka_rig.nothing_comes(consumer, 0.5)
    assert (dry, planned["read"], planned["sent"], planned["unreadable"]) == (1, 5, 0, 1)
    assert report["finished"] is False
    assert wrong["sent"] + report["sent"] + rest["sent"] == 5
    letters = wrong["letters"] + report["letters"] + rest["letters"]
    assert any(letter["type"] == "IncompletePayloadError" for letter in letters)
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
    assert (third, empty["read"], empty["unreadable"]) == (1, 0, 1), "what cannot be read stays"
