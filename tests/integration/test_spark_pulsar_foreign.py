"""Messages of other clients that this source cannot read are errors; they are never skipped."""

import subprocess

import pulsar
import pytest

from claimcheck.errors import TransportError
from claimcheck.spark.sources._pulsar_client import Connection, _retry_while_created
from claimcheck.spark.sources._pulsar_reader import PulsarLog, _retry_connecting, check_readable
from tests.spark.sources_rig import batches_of, failure, stream, values

PULSAR = "claimcheck_pulsar"


@pytest.fixture
def options(spark_topic):
    return spark_topic.options(readTimeoutSeconds=5)


@pytest.fixture
def keys(tmp_path):
    """A pair of keys for encryption."""
    for command in ("genrsa -out private.pem 2048", "rsa -in private.pem -pubout -out public.pem"):
        subprocess.run(["openssl", *command.split()], cwd=tmp_path, check=True, capture_output=True, timeout=20)
    return pulsar.CryptoKeyReader(str(tmp_path / "public.pem"), str(tmp_path / "private.pem"))


@pytest.mark.parametrize("after", [[], [2]], ids=["at the end", "in the middle"])
@pytest.mark.parametrize("batched", [False, True])
def test_what_is_encrypted(spark_sources, spark_topic, pulsar_client, keys, options, tmp_path, after, batched):
    spark_topic.send([1])
    df = stream(spark_sources, PULSAR, options)
    assert values(batches_of(df, tmp_path / "c")) == [b"1"]
    sender = pulsar_client.create_producer(
        spark_topic.name, encryption_key="k", crypto_key_reader=keys, batching_enabled=batched
    )
    for _ in range(2):
        sender.send_async(b"secret", lambda *_: None)
    sender.flush()
    spark_topic.send(after)

    for _ in range(2):
        assert "is encrypted, and this source has no keys" in failure(lambda: batches_of(df, tmp_path / "c"))
    batch = spark_sources.read.format(PULSAR).options(**{k: v for k, v in options.items() if k != "subscription"})
    assert "ForeignMessageError" in failure(lambda: batch.load().count())


def test_chunks_of_the_client_itself(spark_sources, spark_topic, pulsar_client, options, tmp_path):
    df = stream(spark_sources, PULSAR, options)
    sender = pulsar_client.create_producer(spark_topic.name, chunking_enabled=True, batching_enabled=False)
    sender.send(b"before")
    assert values(batches_of(df, tmp_path / "c")) == [b"before"]
    sender.send(b"c" * 12_000_000)

    for after in (b"one", b"two"):
        sender.send(after)
        text = failure(lambda: batches_of(df, tmp_path / "c"))
        assert "in chunks of the client's own" in text
        assert "DataLossError" not in text


def test_a_time_that_is_none(spark_sources, spark_topic, pulsar_client, options):
    sender = pulsar_client.create_producer(spark_topic.name)
    sender.send(b"nanoseconds", event_timestamp=1_795_270_215_241_902_482)
    sender.send(b"milliseconds", event_timestamp=1_795_270_215_241)
    options.pop("subscription")

    rows = spark_sources.read.format(PULSAR).options(**options).load().collect()

    assert {bytes(row.value): row.event_time and row.event_time.year for row in rows} == {
        b"nanoseconds": None,
        b"milliseconds": 2026,
    }


def test_a_topic_that_is_read_no_more_is_left_alone(spark_sources, spark_topic, pulsar_client, options, tmp_path):
    other = f"{spark_topic.name}-other"
    sender = pulsar_client.create_producer(other)
    sender.send(b"other")
    both = stream(spark_sources, PULSAR, options | {"topic": f"{spark_topic.name},{other}"})
    spark_topic.send([1])
    assert values(batches_of(both, tmp_path / "c")) == [b"1", b"other"]
    sender.close()
    spark_topic.broker.request("DELETE", f"persistent/public/default/{other}?force=true")
    spark_topic.send([2])

    assert values(batches_of(stream(spark_sources, PULSAR, options), tmp_path / "c")) == [b"2"]

    assert not any(other in name for name in spark_topic.broker.request("GET", "persistent/public/default"))


def test_one_partition_of_a_topic_is_let_go_of_as_it_is_read(spark_sources, spark_topic, options, tmp_path):
    spark_topic.broker.create_partitioned(spark_topic.name, 1)
    name = f"{spark_topic.name}-partition-0"
    df = stream(spark_sources, PULSAR, options | {"topic": name})
    for number in range(3):
        spark_topic.send([number])
        assert values(batches_of(df, tmp_path / "c")) == [b"%d" % number]

    assert spark_topic.broker.stats(name)["subscriptions"]["spark"]["msgBacklog"] < 3


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"topic": "t,t-partition-1"}, "a partition of a topic that is named, too"),
        ({"topic": "t,"}, "none empty"),
        ({"topic": "persistent:/x y"}, "persistent://tenant/namespace/topic"),
        ({"topic": "non-persistent://public/default/t"}, "persistent://tenant/namespace/topic"),
        ({"serviceUrl": "pulsar://user:secret@127.0.0.1:1"}, "without a user"),
        ({"serviceUrl": "pulsar://"}, "pulsar://host:port"),
        ({"serviceUrl": "pulsar://127.0.0.1:port"}, "pulsar://host:port"),
        ({"serviceUrl": "pulsar://127.0.0.1:99999"}, "pulsar://host:port"),
        ({"adminUrl": "http://user:secret@host"}, "without a user"),
        ({"receiverQueueSize": "99999999999999999999"}, "at most 2147483647"),
    ],
)
def test_mistakes_are_told_at_once(spark_sources, changed, words):
    options = {"serviceUrl": "pulsar://127.0.0.1:1", "topic": "t"} | changed

    text = failure(lambda: spark_sources.read.format(PULSAR).options(**options).load())

    assert words in text
    assert "secret" not in text


@pytest.mark.parametrize("schema", ["value binary, value binary", "value int"])
def test_schemas_that_cannot_be(spark_sources, spark_topic, options, schema):
    options.pop("subscription")
    df = spark_sources.read.format(PULSAR).schema(schema).options(**options).load()

    assert "found value" in failure(df.collect)


def test_nobody_is_there(spark_sources):
    options = {"serviceUrl": "pulsar://127.0.0.1:1", "topic": "t", "readTimeoutSeconds": "1"}

    text = failure(lambda: spark_sources.read.format(PULSAR).options(**options).load().count())

    assert "Is a broker running at 127.0.0.1:1, can this machine reach it, does it accept the token" in text


def test_the_scheme_of_another_port(spark_sources, pulsar_broker):
    url = pulsar_broker.service_url.replace("pulsar://", "pulsar+ssl://")
    options = {"serviceUrl": url, "topic": "t", "readTimeoutSeconds": "2", "operationTimeoutSeconds": "2"}

    text = failure(lambda: spark_sources.read.format(PULSAR).options(**options).load().count())

    assert "one port for pulsar://, one for pulsar+ssl:// and one for its web service" in text


def test_an_outage_is_waited_for_where_the_client_gives_up_at_once():
    answers = [pulsar.exceptions.ConnectError("refused"), None]

    def opened():
        if (error := answers.pop(0)) is not None:
            raise TransportError("opening a reader failed") from error
        return "a reader"

    assert _retry_connecting(opened, PulsarLog(connection=Connection(service_url="pulsar://127.0.0.1:1"))) == "a reader"
    assert answers == []


class Plain:
    """A message that is not encrypted."""

    def encryption_context(self):
        return None


def test_what_merely_looks_like_chunks():
    ids = [pulsar.MessageId(0, 58, 58, index) for index in (-1, 58)]

    for message_id in ids:  # 58 marks chunks elsewhere in an id
        assert b":" in message_id.serialize()
        check_readable(Plain(), message_id, "t")


def test_a_partition_that_is_still_being_made_is_asked_again():
    answers = [pulsar.exceptions.BrokerMetadataError("not yet"), None]

    def asked():
        if (error := answers.pop(0)) is not None:
            raise error
        return "its end"

    assert _retry_while_created(asked) == "its end"
    assert answers == []
