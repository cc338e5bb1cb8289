"""Groups of the embedded broker against a model: nothing is ever lost."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from claimcheck.transports.local import (
    LocalBroker,
    StaleDeliveryError,
)
from claimcheck.transports.local._groups import Delivery, GroupMember
from tests.clocks import Clock
from tests.hypothesis_examples import examples
from tests.unit.groups.rig import fill, offsets, take

_ROUND = st.tuples(st.integers(1, 6), st.lists(st.booleans(), min_size=6, max_size=6), st.booleans())


@given(rounds=st.lists(_ROUND, max_size=12))
@examples(200)
def test_acknowledged_never_comes_again_whoever_reads_on(rounds):
    """Members in turn poll, acknowledge some messages, reject the rest, and may leave."""
    with tempfile.TemporaryDirectory() as folder, LocalBroker(Path(folder) / "b", clock=Clock()) as broker:
        broker.create_topic("t")
        fill(broker, 6, "t")
        member, done = GroupMember(broker, "g", ["t"]), set[int]()
        for limit, verdicts, leave in rounds:
            deliveries = take(member, limit)
            assert done.isdisjoint(offsets(deliveries))
            member.nack(d for d in deliveries if not verdicts[d.message.offset])
            acked = [d for d in deliveries if verdicts[d.message.offset]]
            member.ack(acked)
            done |= set(offsets(acked))
            if leave:
                member.close()
                member = GroupMember(broker, "g", ["t"])


_VERDICTS = st.just(["ack"] * 9) | st.lists(st.sampled_from(["ack", "ack", "nack", "keep"]), min_size=9, max_size=9)


class GroupMachine(RuleBasedStateMachine):
    """Members come, go, die, poll, ack, nack and seek at random.

    Nothing is ever lost, and acknowledged messages are never redelivered, except after a seek.
    """

    @initialize(partitions=st.integers(1, 2))
    def start(self, partitions: int) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.clock = Clock()
        self.broker = LocalBroker(Path(self.folder.name) / "b.sqlite", clock=self.clock, sleep=self.clock.sleep)
        self.broker.create_topic("t", partitions=partitions)
        fill(self.broker, 6, "t")
        self.members = [(GroupMember(self.broker, "g", ["t"]), list[Delivery]())]
        self.done: set[tuple[int, int]] = set()

    @rule(count=st.integers(1, 5))
    def append(self, count: int) -> None:
        fill(self.broker, count, "t")

    @rule()
    def join(self) -> None:
        if len(self.members) < 3:
            self.members.append((GroupMember(self.broker, "g", ["t"]), []))

    @rule(index=st.integers(0, 2), die=st.booleans(), back=st.booleans())
    def leave(self, index: int, die: bool, back: bool) -> None:
        member, _ = self.members.pop(index % len(self.members))
        if die:
            self.clock.now += 31
        else:
            member.close()
        if back or not self.members:
            self.join()

    @rule(index=st.integers(0, 2), limit=st.integers(1, 6), verdicts=_VERDICTS)
    def poll(self, index: int, limit: int, verdicts: list[str]) -> None:
        member, held = self.members[index % len(self.members)]
        polled = member.poll(limit=limit)
        held[:] = [d for d in held if ("t", d.message.partition) not in polled.lost]
        for delivery in polled.deliveries:
            assert _place(delivery) not in self.done
            assert _place(delivery) not in map(_place, held)
            held.append(delivery)
        self.settle(index, verdicts)

    @rule(index=st.integers(0, 2), verdicts=_VERDICTS)
    def settle(self, index: int, verdicts: list[str]) -> None:
        """Ack, nack or keep the held deliveries, oldest first."""
        member, held = self.members[index % len(self.members)]
        judged = list(zip(held, verdicts, strict=False))
        held[:] = [d for d in held if (d, "ack") not in judged and (d, "nack") not in judged]
        member.nack(d for d, verdict in judged if verdict == "nack")
        acked = [d for d, verdict in judged if verdict == "ack"]
        with contextlib.suppress(StaleDeliveryError):
            member.ack(acked)
            self.done |= set(map(_place, acked))

    @rule(index=st.integers(0, 2), partition=st.integers(0, 1), back=st.integers(0, 8))
    def seek(self, index: int, partition: int, back: int) -> None:
        member, held = self.members[index % len(self.members)]
        partition %= self.broker.partitions("t")
        offset = max(self.broker.end_offset("t", partition) - back, 0)
        member.seek("t", partition, offset)
        held[:] = [d for d in held if d.message.partition != partition]
        others = {place for place in self.done if place[0] != partition}
        self.done = others | {(partition, before) for before in range(offset)}

    @rule(seconds=st.sampled_from([0.5, 1, 20, 40]))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    @invariant()
    def no_partition_is_held_twice(self) -> None:
        if hasattr(self, "broker"):
            with self.broker.database.read() as connection:
                rows = connection.execute("SELECT count(*), count(DISTINCT partition) FROM leases").fetchone()
            assert rows[0] == rows[1]

    def teardown(self) -> None:
        appended = sum(self.broker.end_offset("t", partition) for partition in range(self.broker.partitions("t")))
        for member, _ in self.members:
            member.close()
        self.clock.now += 100
        last = GroupMember(self.broker, "g", ["t"])
        rest = set(map(_place, take(last, 10_000)))
        assert rest.isdisjoint(self.done)
        assert len(rest) + len(self.done) == appended
        self.broker.close()
        self.folder.cleanup()


def _place(delivery: Delivery) -> tuple[int, int]:
    return delivery.message.partition, delivery.message.offset


TestGroupMachine = GroupMachine.TestCase
TestGroupMachine.settings = examples(100, stateful_step_count=50)
