"""Dead letters go back to their topic whole, and an interruption at any point loses none; also on real brokers."""

import json
import os
import time
import zlib
from contextlib import closing
from dataclasses import replace
from functools import partial

import pytest
import yaml
from click.testing import CliRunner

import claimcheck
from claimcheck._operate.redrive import Redrive, RedriveReport, _topic_of
from claimcheck.cli._commands import commands
from claimcheck.config import HEADER
from claimcheck.errors import ConfigError, PayloadNotFoundError, StoreError, StoreUnavailableError
from claimcheck.testing import FaultyStore
from claimcheck.transports._common.dead_letters import Letter, foreign
from claimcheck.transports.local import LocalBroker, LocalConsumer, LocalProducer
from tests.integration import kafka_rig, pulsar_rig
from tests.integration.pulsar_rig import rig_on
from tests.local_letters import LocalLetters, dead_letter
from tests.local_rig import BIG, LIMIT, append_chunks, drain

PAYLOADS = [b"small", bytes(10_000), None, b"x" * 20_000, b"last"]


@pytest.fixture
def cc(configure):
    return configure("chunking", threshold_bytes=1000, destinations={"wide": {"strategy": "external"}})


@pytest.fixture
def dead_letters(broker, cc):
    """Five dead letters: plain, chunked, stored."""
    for topic in ("orders", "wide"):
        for payload in PAYLOADS:
            LocalProducer(broker, cc).send(topic, payload, key="k", headers={"a": "b"})
    with LocalConsumer(broker, cc, topics=["orders"], group="app") as consumer:
        while (message := consumer.receive(timeout=0)) is not None:
            dead_letter(broker, cc, consumer, message, "no sense in it")
    return "orders.dead_letter"


def opened(broker, cc, source="orders.dead_letter", target="wide"):
    return LocalLetters(broker, cc, source=source, target=target, group="redrive")


def run(broker, cc, *, within=lambda letters: letters, close=True, target="again", **options):
    if target not in broker.topics():
        broker.create_topic(target, partitions=2)
    topic, report = opened(broker, cc, target=target), RedriveReport(dry_run=False)
    try:
        Redrive(**{"dry_run": False, "force": True, **options}).run(within(topic.letters()), report, lambda: None)
    finally:
        if close:
            topic.close()
    return report


def values_in(broker, cc, topic="again"):
    with LocalConsumer(broker, cc, topics=[topic], group="check") as consumer:
        return [message.value for message in drain(consumer)]


def test_letters_go_back_whole(broker, cc, dead_letters):
    report = run(broker, cc)

    assert (report.read, report.sent, report.unreadable, report.finished) == (5, 5, 0, True)
    assert report.bytes == sum(len(payload or b"") for payload in PAYLOADS)
    with LocalConsumer(broker, cc, topics=["again"], group="check") as consumer:
        messages = drain(consumer)
    assert [message.value for message in messages] == PAYLOADS
    assert all(message.key == b"k" for message in messages)
    assert all(message.headers == [("a", b"b"), ("redrive-count", b"1")] for message in messages)
    assert run(broker, cc).read == 0


def test_letters_of_another_topic_stay_and_those_of_the_topic_do_not(broker, cc, dead_letters):
    report = run(broker, cc, target="wide", force=False)
    assert (report.read, report.sent, report.foreign) == (0, 0, 5)
    assert "it came from orders" in str(report.named[0][1])

    report = run(broker, cc, target="orders", force=False)
    assert (report.sent, report.foreign) == (5, 0)


def test_the_count_goes_up(broker, cc, dead_letters):
    run(broker, cc, target="orders")
    with LocalConsumer(broker, cc, topics=["orders"], group="app") as consumer:
        dead_letter(broker, cc, consumer, consumer.receive(timeout=0))

    run(broker, cc)

    (letter,) = broker.fetch("again", zlib.crc32(b"k") % broker.partitions("again"), 0, 9)
    assert dict(letter.headers)["redrive-count"] == b"2"


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
        run(broker, cc, within=killing(step), close=False)

    report = run(broker, cc)

    found = values_in(broker, cc)
    assert report.finished
    assert sorted(set(found), key=str) == sorted(PAYLOADS, key=str)
    assert len(found) <= len(PAYLOADS) + 1


def test_unreadable_letters_stay_and_are_named(broker, cc, tmp_path):
    LocalProducer(broker, cc).send("wide", bytes(10_000), partition=0)
    append_chunks(broker, cc, bytes(10_000), slice(2))
    broker.append("orders", broker.fetch("wide", 0, 0, 1)[0].value)
    broker.append("orders", b"good")
    for path in (tmp_path / "store").rglob("*"):
        if path.is_file():
            path.unlink()
    broker.create_topic("again")

    for _ in range(2):
        topic, report = opened(broker, cc, "orders", "again"), RedriveReport(dry_run=False)
        with closing(topic):
            Redrive(dry_run=False, force=True).run(topic.letters(), report, lambda: None)
        named = {position: type(error).__name__ for position, error in report.named}
        assert named == {"orders[0] at 2": "PayloadNotFoundError", "orders[0] at 0": "IncompletePayloadError"}
        assert report.unreadable == 2
        assert report.finished

    assert values_in(broker, cc) == [b"good"]


def test_a_store_that_is_down_ends_the_run(broker, configure):
    cc = configure("external", stores={"m": {"type": "claimcheck.testing:FaultyStore", "store": {"type": "memory"}}})
    LocalProducer(broker, cc).send("orders", bytes(10_000))
    broker.append("orders", b"later")
    topic, report = opened(broker, cc, "orders"), RedriveReport(dry_run=False)
    store = topic.reader.store("m")
    assert isinstance(store, FaultyStore)
    store.fail("read")

    with closing(topic), pytest.raises(StoreUnavailableError):
        Redrive(dry_run=False, force=True).run(topic.letters(), report, lambda: None)

    assert (report.sent, report.unreadable) == (0, 0)
    with closing(opened(broker, cc, "orders")) as topic:
        Redrive(dry_run=False, force=True).run(topic.letters(), report, lambda: None)
    assert report.sent == 2


def test_a_letter_that_cannot_be_sent_ends_the_run(broker, cc, dead_letters):
    def refused(letters):
        for number, letter in enumerate(letters):
            yield letter if number != 1 else replace(letter, send=lambda _: 1 / 0)

    with pytest.raises(ZeroDivisionError) as error:
        run(broker, cc, within=refused)

    assert "orders.dead_letter[0] at 1 was not sent" in error.value.__notes__[0]
    assert run(broker, cc).sent == 4


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


# The command ---------------------------------------------------------------------------------------------------


@pytest.fixture
def invoke(tmp_path, monkeypatch):
    """Runs the command on an embedded broker, in place of Kafka, with one stored and one plain dead letter."""
    store = tmp_path / "store"
    config = tmp_path / "claimcheck.yaml"
    config.write_text(f"strategy: external\nstores: {{disk: {{type: filesystem, path: {store}, create: true}}}}\n")
    file = tmp_path / "broker.sqlite"
    with LocalBroker(file, max_message_bytes=LIMIT) as broker, claimcheck.load(config) as cc:
        for topic in ("orders", "orders.dlq"):
            broker.create_topic(topic)
        for payload in (bytes(10_000), b"plain"):
            LocalProducer(broker, cc).send("orders.dlq", payload, headers={"dead-letter-topic": "orders"})

    def invoke(*arguments):
        common = ["--config", str(config), "redrive", "--kafka", "b:1", "--from", "orders.dlq", "--to", "orders"]
        return CliRunner().invoke(commands, [*common, *arguments])

    invoke.store, invoke.file, invoke.config = store, file, config
    with LocalBroker(file, max_message_bytes=LIMIT) as broker:
        monkeypatch.setattr(
            "claimcheck.cli._redrive._opened",
            lambda cc, _, topics, group: LocalLetters(broker, cc, source=topics[0], target=topics[1], group=group),
        )
        yield invoke


def test_the_command_sends_only_with_yes(invoke):
    result = invoke("--json")
    assert (result.exit_code, json.loads(result.stdout)["read"], json.loads(result.stdout)["sent"]) == (0, 2, 0)
    assert (
        "orders.dlq: 2 read, 0 unreadable, 0 foreign, 9.8 KiB (10,005 bytes)\n  nothing was sent: use --yes"
        in invoke().stdout
    )

    result = invoke("--yes", "--json")

    facts = json.loads(result.stdout)
    assert (result.exit_code, facts["ok"], facts["sent"], facts["bytes"], facts["failed"]) == (0, True, 2, 10_005, 0)
    assert "0 read, 0 unreadable, 0 foreign, 0 bytes\n  0 sent" in invoke("--yes").stdout


def test_the_command_names_what_stays(invoke):
    for path in invoke.store.rglob("*"):
        if path.is_file():
            path.unlink()

    limited = json.loads(invoke("--yes", "--limit", "1", "--json").stdout)
    result = invoke("--yes")

    assert (limited["sent"], limited["unreadable"]) == (1, 1)  # the limit counts letters that were sent
    assert limited["letters"][0]["type"] == "PayloadNotFoundError"
    assert result.exit_code == 1
    assert "0 sent to orders, 0 failed" in result.stdout
    assert "orders.dlq[0] at 0 stays: PayloadNotFoundError: store 'disk'" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--pulsar", "pulsar://a:1"], "run the command for one broker"),
        (["--to", "orders.dlq"], "the same topic"),
    ],
)
def test_wrong_usage(invoke, arguments, text):
    with pytest.raises(ConfigError, match="limit"):
        Redrive(limit=0)
    result = invoke(*arguments)

    assert result.exit_code == 2
    assert text in result.stderr


@pytest.mark.parametrize("arguments", [["--from", "orders", "--to", "orders.dlq"], ["--to", "invoices"]])
def test_messages_that_are_not_dead_letters_of_the_topic_stay(invoke, arguments):
    with LocalBroker(invoke.file) as broker:
        broker.create_topic("invoices")
        broker.append("orders", b"not a dead letter")

    dry, result, facts = (
        invoke(*arguments),
        invoke(*arguments, "--yes"),
        json.loads(invoke(*arguments, "--json").stdout),
    )

    assert (dry.exit_code, result.exit_code, facts["ok"], facts["sent"]) == (1, 1, False, 0)
    assert f"{facts['foreign']} are not dead letters of {arguments[-1]}: check --from and --to" in result.stdout
    assert facts["letters"][0]["type"] == "ForeignLetterError"
    forced = json.loads(invoke(*arguments, "--yes", "--force", "--json").stdout)
    assert (forced["ok"], forced["sent"], forced["foreign"]) == (True, facts["foreign"], 0)
    assert forced["sent"]


def test_a_topic_of_pulsar_that_does_not_exist(invoke, monkeypatch):
    """Clients would create it."""
    monkeypatch.setattr(
        "claimcheck.transports.pulsar._queries.topic_stats", lambda _, topic: {} if topic == "orders.dlq" else None
    )
    pulsar = ["--config", str(invoke.config), "redrive", "--pulsar", "pulsar://localhost:1"]
    pulsar += ["--admin-url", "http://localhost:1"]

    result = CliRunner().invoke(commands, [*pulsar, "--from", "orders.dlq", "--to", "order"])

    assert (result.exit_code, result.stdout) == (3, "")
    assert "there is no topic order: check its name" in result.stderr


class Script:
    """Letters of a broker with one position: each is a store and what became of the payload."""

    def __init__(self, *letters: tuple[str | None, str]) -> None:
        self.passed: list[int] = []
        self.sent: list[int] = []
        self.letters = [self.letter(number, store, state) for number, (store, state) in enumerate(letters)]

    def letter(self, number: int, store: str | None, state: str) -> Letter:
        def read() -> bytes:
            if state == "there":
                return b"payload"
            expires = {"expired": 999_000, "lost": 1_001_000, "lost, of version 1": None}[state]
            raise PayloadNotFoundError("gone", store=store, expires_ms=expires)

        move_past = partial(self.passed.append, number)
        send = lambda payload: self.sent.append(number)  # noqa: E731
        return Letter(f"dlq[0] at {number}", read, send, settle=move_past, skip=move_past, store=store)

    def run(self, **options) -> RedriveReport:
        report = RedriveReport(dry_run=False)
        Redrive(**{"dry_run": False, "clock": lambda: 1000.0, **options}).run(self.letters, report, lambda: None)
        return report


class TestAStoreThatMayBeTheWrongOne:
    """The next run begins after the last letter that was passed: with the right configuration it must see them all."""

    @pytest.mark.parametrize("state", ["lost", "lost, of version 1"])
    def test_a_letter_whose_payload_should_be_there_is_not_passed(self, state):
        script = Script(("cold", "there"), ("hot", state), ("cold", "there"))
        with pytest.raises(StoreError, match=r"store 'hot' has had the payload of none.* at dlq\[0\] at 1 stays"):
            script.run()
        assert (script.passed, script.sent) == ([0], [0])

    def test_expired_letters_are_passed_and_so_are_those_of_a_store_that_had_a_payload(self):
        script = Script(("hot", "expired"), ("hot", "there"), ("hot", "lost"), (None, "lost"), ("cold", "expired"))
        report = script.run()
        assert (script.passed, script.sent) == (list(range(5)), [1])
        assert (report.read, report.unreadable, report.sent, report.finished) == (1, 4, 1, True)

    def test_lost_payloads_are_passed_on_demand(self):
        script = Script(("hot", "lost"), (None, "there"))
        assert script.run(skip_unreadable=True).sent == 1
        assert script.passed == [0, 1]

    def test_a_dry_run_reads_them_all(self):
        report = Script(("hot", "lost"), ("hot", "lost"), (None, "there")).run(dry_run=True)
        assert (report.read, report.unreadable, report.finished) == (1, 2, True)


class TestTrust:
    """What a dead-letter topic can make readers of the topic accept."""

    @pytest.fixture
    def configured(self, tmp_path):
        def configured(strategy: str, **signing) -> claimcheck.ClaimCheck:
            config: dict[str, object] = {"strategy": strategy, "threshold_bytes": 1000}
            if strategy == "external":
                config["stores"] = {"disk": {"type": "filesystem", "path": str(tmp_path / "store"), "create": True}}
            if signing:
                config["signing"] = {"keys": {"k": "a secret of these tests"}, **signing}
            return claimcheck.from_dict(config)

        return configured

    def redriven(self, broker, cc) -> None:
        broker.create_topic("orders")
        report = RedriveReport(dry_run=False)
        with closing(opened(broker, cc, "dlq", "orders")) as topic:
            Redrive(dry_run=False, force=True).run(topic.letters(), report, lambda: None)
        assert (report.unreadable, report.failed) == (0, 0), report.named

    def received(self, broker, cc, group="app") -> list[object]:
        with LocalConsumer(broker, cc, topics=["orders"], group=group) as consumer:
            return [each.error or each.value for each in drain(consumer)]

    @pytest.mark.parametrize("size", [10, 3000])
    def test_a_plain_message_stays_one(self, broker, configured, size):
        broker.create_topic("dlq")
        broker.append("dlq", b"x" * size)
        self.redriven(broker, configured("external", key_id="k"))
        (message,) = broker.fetch("orders", 0, 0, 9)
        assert message.value == b"x" * size
        assert [name for name, _ in message.headers] == ["redrive-count"]
        strict = configured("external", key_id="k", require_envelope=True)
        assert "a plain message has no signature" in str(self.received(broker, strict)[0])

    @pytest.mark.parametrize("strategy", ["external", "chunking", "inline"])
    @pytest.mark.parametrize("signed", [False, True])
    def test_a_letter_is_signed_if_it_was(self, broker, configured, strategy, signed):
        """As pointer, as chunks, and as an escaped payload."""
        broker.create_topic("dlq")
        payload = HEADER + b"x" * (100 if strategy == "inline" else 5000)
        LocalProducer(broker, configured(strategy, **({"key_id": "k"} if signed else {}))).send("dlq", payload)
        self.redriven(broker, configured(strategy, key_id="k", require=False, bind_destination=False))
        (found,) = self.received(broker, configured(strategy, key_id="k"))
        assert found == payload if signed else "no signature" in str(found) or "not signed" in str(found)

    @pytest.mark.parametrize("strategy", ["external", "chunking", "inline"])
    def test_the_age_of_a_signature_stays(self, broker, configured, strategy):
        broker.create_topic("dlq")
        payload = HEADER + b"x" * (100 if strategy == "inline" else 5000)
        writer = configured(strategy, key_id="k")
        writer.opened.seal._clock = lambda: time.time() - 500
        if strategy == "external":
            store = writer.store("disk")
            store.context = replace(store.context, clock=lambda: time.time() - 500)
        LocalProducer(broker, writer).send("dlq", payload)
        self.redriven(broker, configured(strategy, key_id="k", max_age_seconds=400))
        assert self.received(broker, configured(strategy, key_id="k", max_age_seconds=600)) == [payload]
        (refused,) = self.received(broker, configured(strategy, key_id="k", max_age_seconds=400), "strict")
        assert "s ago, but signing.max_age_seconds is 400" in str(refused)


# Signatures --------------------------------------------------------------------------------------------------------


SIGNING = {"key_id": "k1", "keys": {"k1": "a secret of ours"}}
LITERAL = HEADER + b" and then some"
SIGNED = [BIG, LITERAL, os.urandom(3 * LIMIT)]


@pytest.mark.parametrize("topic", ["orders", "wide"])
def test_dead_letters_go_back_without_further_configuration(broker, configure, topic):
    signing = SIGNING | {"max_age_seconds": 3600}
    cc = configure("chunking", signing=signing, destinations={"wide": {"strategy": "external"}})
    letters = f"{topic}.dead_letter"
    for payload in SIGNED:
        LocalProducer(broker, cc).send(topic, payload, key="k", headers={"a": "b"})
    with LocalConsumer(broker, cc, topics=[topic], group="app") as consumer:
        while (message := consumer.receive(timeout=0)) is not None:
            dead_letter(broker, cc, consumer, message)
    with LocalConsumer(broker, cc, topics=[letters], group="app") as consumer:
        assert consumer.receive(timeout=0).error.reason == "destination"
    reader = configure(signing=SIGNING | {"accept_from": {"*.dead_letter": [topic]}})
    with LocalConsumer(broker, reader, topics=[letters], group="other") as consumer:
        assert [message.value for message in drain(consumer)] == SIGNED

    dead, report = LocalLetters(broker, cc, source=letters, target=topic, group="redrive"), RedriveReport(False)
    Redrive(dry_run=False).run(dead.letters(), report, lambda: None)
    dead.close()

    assert (report.sent, report.unreadable) == (len(SIGNED), 0)
    with LocalConsumer(broker, cc, topics=[topic], group="app") as consumer:
        assert [message.value for message in drain(consumer)] == SIGNED


def test_a_redrive_signs_no_message_of_a_third_topic(broker, configure):
    """Whoever can write to the dead-letter topic could otherwise have any message of another topic signed."""
    signed = configure("chunking", signing=SIGNING)
    for name in ("orders.dead_letter", "salaries"):
        broker.create_topic(name, partitions=1)
    LocalProducer(broker, signed).send("salaries", BIG, key="k")
    for message in broker.fetch("salaries", 0, 0, 99):  # as anybody can copy them who may read and write both
        headers = [*message.headers, ("dead-letter-topic", b"orders")]
        broker.append("orders.dead_letter", message.value, key=message.key, headers=headers)

    topic = LocalLetters(broker, signed, source="orders.dead_letter", target="orders", group="redrive")
    report = RedriveReport(dry_run=False)
    Redrive(dry_run=False).run(topic.letters(), report, lambda: None)
    topic.close()

    assert (report.sent, report.unreadable) == (0, 1)
    assert broker.end_offset("orders", 0) == 0


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
