"""The transport kit passes on the embedded broker, and fails on transports that break a promise."""

import os
import subprocess
import sys
from pathlib import Path

import claimcheck
from tests.conformance.local_transport import LocalConformance

ROOT = Path(__file__).resolve().parents[2]


class TestLocal(LocalConformance):
    """The embedded broker passes the kit."""


# Each of these transports breaks one promise, and names the checks that have to notice it.

HEAD = """
import pytest
from claimcheck.errors import ClaimCheckError
from tests.kit.transport_harness import Facts
from claimcheck.transports.local import (LocalBroker, LocalConsumer, LocalProducer)
from claimcheck.transports import local as producer
from tests.conformance.local_transport import LocalConformance

class SpreadingBroker(LocalBroker):
    def append(self, topic, value, *, partition=None, key=None, headers=None):
        turn = sum(self.end_offset(topic, number) for number in range(self.partitions(topic)))
        place = turn % self.partitions(topic)
        return super().append(topic, value, key=key, headers=headers, partition=place)

class Good(LocalConformance):
    patience_seconds = 0.5
"""

BROKEN = {
    "acknowledges the first chunk only": (
        """
    def acknowledge(self, consumer, message):
        del message.outcome.slots[1:]
        consumer.ack(message)
""",
        ["test_only_what_is_acknowledged_does_not_come_again[chunking]"],
    ),
    "acknowledges what it receives": (
        """
    def receive(self, consumer, seconds):
        message = consumer.receive(timeout=seconds)
        if message is not None:
            consumer.ack(message)
        return message
""",
        [f"test_only_what_is_acknowledged_does_not_come_again[{strategy}]" for strategy in ("external", "chunking")],
    ),
    "acknowledges everything up to the offset": (
        """
    def acknowledge(self, consumer, message):
        consumer.ack(message)
        with self.native.database.write() as connection:
            consumer._move(connection, (message.topic, message.partition), message.positions[-1] + 1)
""",
        ["test_no_acknowledgement_passes_an_incomplete_payload"],
    ),
    "hands hints out": (
        """
    def facts_of(self, topic, message):
        first = self.native.fetch(topic, message.partition, message.offset, 1)[0]
        return Facts(topic, first.partition, first.offset, message.key, first.headers)
""",
        ["test_keys_and_headers_come_back[external]", "test_keys_and_headers_come_back[chunking]"],
    ),
    "mixes chunks across a seek": (
        "def seek(self, consumer, topic, position): consumer._next[topic, 0] = position",
        ["test_chunks_from_before_a_seek_complete_nothing"],
    ),
    "swallows errors": (
        """
    def payload_of(self, message):
        try:
            return message.value
        except ClaimCheckError:
            return None
""",
        ["test_a_bad_message_is_an_error_of_its_own", "test_a_payload_that_is_not_what_was_declared_is_an_error"],
    ),
    "deletes what was stored after an unknown outcome": (
        """
    @pytest.fixture(autouse=True)
    def _sure(self, monkeypatch):
        monkeypatch.setattr(producer, "classify", lambda error: "failed")
""",
        ["test_an_unknown_outcome_deletes_nothing"],
    ),
    "never expires chunks": (
        """
    def open_consumer(self, *arguments, **options):
        consumer = super().open_consumer(*arguments, **options)
        self.native.clock = lambda: 1000.0
        consumer._resolver = arguments[0].resolver(clock=self.native.clock)
        return consumer
""",
        ["test_an_incomplete_payload_is_reported_on_a_busy_topic[last]"],
    ),
    "cannot tell writers apart": (
        """
    def append(self, topic, data, *, key, **options):
        return super().append(topic, data, key=None, **options)
""",
        ["test_no_other_writer_may_abort_them", "test_writers_with_one_uuid_do_not_mix"],
    ),
    "spreads chunks over partitions": (
        """
    def open_producer(self, cc, topic):
        return LocalProducer(SpreadingBroker(self.path, max_message_bytes=self.limit_bytes), cc)
    def close(self, opened):
        getattr(opened, "_broker", opened).close()
""",
        ["test_a_key_leads_to_one_partition[chunking]"],
    ),
    "counts the payload alone": (
        """
    @pytest.fixture(autouse=True)
    def _uncounted(self, monkeypatch):
        monkeypatch.setattr(producer, "_overhead", lambda key, headers: 0)
""",
        ["test_the_limit_counts_the_whole_message[external]", "test_the_limit_counts_the_whole_message[chunking]"],
    ),
}
EXPECTED = {f"Test{number}::{test}" for number, (_, tests) in enumerate(BROKEN.values()) for test in tests}
GOOD = f"Test{len(BROKEN)}"


def test_each_broken_promise_is_noticed_and_a_good_transport_passes(tmp_path):
    """All of them run in one process."""
    classes = [*(body for body, _ in BROKEN.values()), "pass"]
    text = "\n\n".join(f"class Test{n}(Good):\n    {body.strip()}" for n, body in enumerate(classes))
    (tmp_path / "test_broken.py").write_text(f"{HEAD}\n\n{text}\n")
    good = {f"{GOOD}::{each.partition('::')[2]}" for each in EXPECTED}
    ids = [f"{tmp_path}/test_broken.py::{each}" for each in sorted(EXPECTED | good)]
    environment = {**os.environ, "PYTHONPATH": f"{Path(claimcheck.__file__).parents[1]}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-m", "pytest", "-q", "-rf", "--tb=no", "-p", "no:cacheprovider", "-c", os.devnull]
    command += ["--rootdir", str(tmp_path), f"--basetemp={tmp_path / 'its'}", *ids]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert " error" not in done.stdout, done.stdout
    lines = [line for line in done.stdout.splitlines() if line.startswith("FAILED")]
    assert {line.partition("test_broken.py::")[2].partition(" - ")[0] for line in lines} == EXPECTED
