"""`Metrics` and `progress`."""

from __future__ import annotations

import threading

import pytest

from claimcheck.errors import ConfigError
from claimcheck.spark import Metrics, map_payloads, offload, progress, reassemble, resolve
from tests.spark.rig import frame, remove_stored


@pytest.fixture
def messages(config, send):
    gone = send(bytes(3000))
    remove_stored(config)
    return [*send(b"k" * 3000), *send(b"plain"), *gone, None, *send(b"m" * 2000)]


def test_tasks_count(spark, config, messages):
    metrics = Metrics(spark)

    df = frame(spark, messages, 2).transform(resolve("value", config=config, on_error="null", metrics=metrics))
    df.write.format("noop").mode("overwrite").save()

    assert (metrics.rows, metrics.payload_bytes) == (5, 5005)
    assert metrics.errors == {"PayloadNotFoundError": 1}
    assert metrics.store_bytes == {"disk": 5000}
    assert metrics.waiting_seconds > 0
    assert repr(metrics) == "<Metrics 5 rows, 5005 bytes, 1 errors>"


def test_the_other_verbs_count_too(spark, config):
    sending, using = Metrics(spark), Metrics(spark)
    df = spark.createDataFrame([(b"x" * 3000,), (b"s",), (None,)], "payload binary")

    sent = df.transform(offload("payload", destination="orders", config=config, metrics=sending))
    used = sent.transform(map_payloads(len, "size int", column="value", config=config, metrics=using))
    used.write.format("noop").mode("overwrite").save()

    assert (sending.rows, sending.payload_bytes, sending.store_bytes) == (3, 3001, {"disk": 3000})
    assert (using.rows, using.payload_bytes, using.store_bytes) == (3, 3001, {"disk": 3000})


def test_payloads_in_chunks_count_as_payloads(spark, config, send):
    metrics = Metrics(spark)
    whole, other = send(b"w" * 9000, strategy="chunking"), send(b"o" * 9000, strategy="chunking")
    df = frame(spark, [*whole, *other[1:], *send(b"plain"), *send(b"k" * 3000)], 2)

    done = df.transform(reassemble("value", config=config, metrics=metrics))
    done.write.format("noop").mode("overwrite").save()

    assert (metrics.rows, metrics.payload_bytes) == (4, 12_005)
    assert metrics.errors == {"IncompletePayloadError": 1}
    assert metrics.store_bytes == {"disk": 3000}


def test_progress_is_said_while_a_job_runs_and_at_its_end(spark, config, messages):
    metrics, lines, said = Metrics(spark), [], threading.Event()

    def say(line):
        lines.append(line)
        said.set()

    df = frame(spark, messages).transform(resolve("value", config=config, on_error="null", metrics=metrics))
    with progress(metrics, every_seconds=0.01, say=say):
        assert said.wait(30)
        assert ("0 payloads" in lines[0], "errors" in lines[0]) == (True, False)
        df.write.format("noop").mode("overwrite").save()

    assert "5 payloads, 4.89 KiB, " in lines[-1]
    assert "1 errors" in lines[-1]
    assert not any(thread.name == "claimcheck-progress" for thread in threading.enumerate())


def test_progress_is_that_of_the_block(spark, config, messages):
    metrics, lines = Metrics(spark), []
    df = frame(spark, messages).transform(resolve("value", config=config, on_error="null", metrics=metrics))
    df.write.format("noop").mode("overwrite").save()

    with progress(metrics, say=lines.append):
        pass
    with progress(metrics, say=lines.append):
        df.write.format("noop").mode("overwrite").save()

    assert [line.split(" payloads")[0] for line in lines] == ["0", "5"]
    assert metrics.rows == 10


def test_progress_goes_to_the_log_where_there_is_no_terminal(spark, caplog):
    with caplog.at_level("INFO", "claimcheck.spark._metrics"), progress(Metrics(spark)):
        pass

    assert "0 payloads" in caplog.text


def test_mistakes(spark):
    with pytest.raises(ConfigError, match="found a NoneType, expected a SparkSession with"):
        Metrics(None)
    with pytest.raises(ConfigError, match="every_seconds"), progress(Metrics(spark), every_seconds=0):
        pass
