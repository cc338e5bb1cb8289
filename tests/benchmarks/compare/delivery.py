"""What arrives: experiments that count payloads, each in every mode, with a topic of its own."""

from __future__ import annotations

import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise

from claimcheck._client import ClaimCheck
from claimcheck.hooks import Event, FallbackEvent
from tests.benchmarks.compare.broker import Consumer, Delivery
from tests.benchmarks.compare.faults import without_stores
from tests.benchmarks.compare.lab import Lab, Trial, each_mode, numbers_of, until_killed
from tests.benchmarks.compare.model import Experiment, Row, Verdict, agreement

_PAYLOADS = 4

# The store is down ----------------------------------------------------------------------------------------------------


def _outage(trial: Trial) -> list[Row]:
    fallbacks = list[Event]()

    def note(event: Event) -> None:
        if isinstance(event, FallbackEvent):
            fallbacks.append(event)

    with ClaimCheck(trial.config) as cc, without_stores(trial.config, hooks=[note]) as down:
        trial.send(cc, range(_PAYLOADS))
        results = trial.try_to_send(down, range(_PAYLOADS, 2 * _PAYLOADS))
        sent = sum(not isinstance(each, Exception) for each in results)
        during, after = (_read(trial, each, _PAYLOADS + sent) for each in (down, cc))
    readable, read_after = _PAYLOADS + sent, len(set(numbers_of(after)))
    row = {
        "mode": trial.mode,
        "tried while down": _PAYLOADS,
        "sent while down": sent,
        "of these as chunks": len(fallbacks),
        "in the topic": readable,
        "read while down": len(set(numbers_of(during))),
        "read afterwards": read_after,
        "lost": readable - read_after,
        "wrong": sum(each.is_wrong for each in (*during, *after)),
    }
    return [row]


def _read(trial: Trial, cc: ClaimCheck, expected: int) -> list[Delivery]:
    """Receive as many payloads or errors as there should be, and those that follow soon, without a commit."""
    with trial.consumer(cc, "services") as consumer:
        return trial.receive(consumer, lambda found: len(found) >= expected)


_LINE = (
    "store down: {sent while down} of {tried while down} sent ({of these as chunks} as chunks),"
    " {read while down} of {in the topic} read; afterwards {lost} lost, {wrong} wrong"
)


def services(lab: Lab) -> Experiment:
    """Send and receive before, during and after an outage of the store, in each mode."""
    tally = each_mode(lab, "services", _outage)

    def waits(mode: str) -> bool:
        found = tally[mode]
        return found["sent while down"] < found["tried while down"] or found["read while down"] < found["in the topic"]

    if "external" not in tally.modes:
        why = "The configuration has no store: sends and reads need the broker only."
        return tally.experiment("services", _LINE, "not measured", why)
    hybrid = "Hybrid sends {of these as chunks} of {tried while down} payloads as chunks".format_map(tally["hybrid"])
    why = f"A payload in the store has to wait for it, to be sent and to be read. {hybrid} while the store is down."
    return tally.experiment("services", _LINE, agreement(waits("external"), not waits("chunking")), why)


# A seek into a payload ------------------------------------------------------------------------------------------------

_INSIDE, _BEGIN = "into a payload", "to its beginning"


def _jumps(trial: Trial) -> list[Row]:
    """Move into the middle of each payload, to its last message, and back to its beginning.

    The last payload is not a target: receiving it shows that nothing else follows.
    """
    broker, ends, rows = trial.lab.broker, [0], list[Row]()
    with ClaimCheck(trial.config) as cc:
        for number in range(_PAYLOADS):
            trial.send(cc, [number])
            ends.append(len(broker.positions(trial.topic, 0)))
        positions = broker.positions(trial.topic, 0)
        with trial.consumer(cc, "seek") as consumer:
            for number, (begin, end) in enumerate(pairwise(ends[:-1])):
                inside = sorted({(begin + end) // 2, end - 1} - {begin})
                rows += [_jump(trial, consumer, positions[at], number, _INSIDE) for at in inside]
                rows.append(_jump(trial, consumer, positions[begin], number, _BEGIN))
    return rows


def _jump(trial: Trial, consumer: Consumer, position: int | str, payload: int, where: str) -> Row:
    """Move to a message of a payload, and receive what follows."""
    whole = set(range(payload + (where == _INSIDE), _PAYLOADS))  # those that begin at or behind the position
    consumer.seek(0, position)
    found = trial.receive(consumer, lambda found: whole <= set(numbers_of(found)), late=0.05)
    received = numbers_of(found)
    delivered = sum(number >= payload for number in set(received))
    skipped = int(where == _INSIDE and payload not in received)
    misplaced = len(received) - len(set(received)) + sum(number < payload for number in set(received))
    return {
        "mode": trial.mode,
        "seek": where,
        "seeks": 1,
        "payloads at or behind it": _PAYLOADS - payload,
        "delivered": delivered,
        "skipped": skipped,
        "lost": _PAYLOADS - payload - delivered - skipped,
        "wrong": sum(each.is_wrong for each in found) + misplaced,
    }


def seek(lab: Lab) -> Experiment:
    """Move a consumer into the middle of payloads and back to their beginning, in each mode."""
    tally = each_mode(lab, "seek", _jumps)
    inside = tally.where(mode="chunking", seek=_INSIDE)
    why = (
        "After {skipped} of {seeks} seeks into a chunked payload, this payload was not delivered, because its first"
        " chunks are before the position. A seek to its first chunk delivers it completely."
    )
    if not inside["skipped"]:
        why = "The consumer returns to the first chunk, which is still in the topic."
    verdict = agreement(inside["skipped"] == inside["seeks"], inside["skipped"] > 0)
    line = "{seeks} seeks: {skipped} payloads skipped, {delivered} delivered, {lost} lost, {wrong} wrong"
    return tally.experiment("seek", line, verdict, why.format_map(inside))


# Payloads without a key -----------------------------------------------------------------------------------------------

_PARTITIONS = 4
_SPREAD = 32
_PARTITIONS_FAULTS = ("split", "out of order", "lost", "repeated", "wrong")


def _spread(trial: Trial) -> list[Row]:
    with ClaimCheck(trial.config) as cc:
        sent = trial.send(cc, range(_SPREAD), together=True)  # without waiting, as an application does
        with trial.consumer(cc, "partitions") as consumer:
            found = trial.receive(
                consumer,
                lambda found: len(set(numbers_of(found))) >= len(sent),
            )
    messages = [len(trial.lab.broker.positions(trial.topic, partition)) for partition in range(_PARTITIONS)]
    numbers, counts, each = numbers_of(found), Counter(sent), sum(messages) / len(sent)
    late, latest, elsewhere = 0, dict[int, int](), 0
    for delivery in found:
        if delivery.number is not None:
            late += delivery.number < latest.get(delivery.partition, -1)
            latest[delivery.partition] = max(delivery.number, latest.get(delivery.partition, -1))
            elsewhere += sent[delivery.number] != delivery.partition
    row = {
        "mode": trial.mode,
        "payloads without a key": len(sent),
        "in each partition": "/".join(str(sent.count(partition)) for partition in range(_PARTITIONS)),
        "partitions used": len(set(sent)),
        "messages per payload": round(each, 2),
        "split": round(sum(abs(count - each * counts[number]) for number, count in enumerate(messages)) / 2),
        "out of order": late,
        "lost": len(sent) - len(set(numbers)),
        "repeated": len(numbers) - len(set(numbers)),
        "wrong": len(found) - len(numbers) + elsewhere,
    }
    return [row]


def partitions(lab: Lab) -> Experiment:
    """Send payloads without a key to a topic with several partitions, and receive them, in each mode."""
    tally = each_mode(lab, "partitions", _spread, partitions=_PARTITIONS)
    spread = {row["mode"]: row["in each partition"] for row in tally.rows}
    line = "{payloads without a key} payloads without a key: %s in 4 partitions; {out of order} out of order"
    chunking = tally["chunking"]
    why = (
        f"All chunks of a payload are in one partition ({chunking['messages per payload']:g} per payload), but the"
        " caller needs no key: claimcheck chooses the partition of each payload, and keeps the order within each."
    )
    if is_bound := chunking["partitions used"] < 2:
        why = "Chunked payloads without a key were all sent to the same partition."
    any_partition = "external" not in tally.modes or tally["external"]["partitions used"] > 1
    lines = {mode: line.replace("%s", spread[mode]) for mode in tally.modes}
    return tally.experiment("partitions", lines, agreement(any_partition, is_bound), why, faults=_PARTITIONS_FAULTS)


# A consumer is killed -------------------------------------------------------------------------------------------------

_KILLS = 20
_OTHER_KILLS = 5
_QUICK_KILLS = 2
_AT_ONCE = 10  # groups: each has to wait until its dead member is removed
_KILL_SECONDS = 60.0
_TAKEOVER_SECONDS = 60.0


def _kills(trial: Trial) -> list[Row]:
    """Send payloads, and kill one consumer in each of several groups."""
    with ClaimCheck(trial.config) as cc:
        trial.send(cc, range(_PAYLOADS))
    messages = len(trial.lab.broker.positions(trial.topic, 0))
    is_chunked = messages > _PAYLOADS
    count = _QUICK_KILLS if trial.lab.quick else _KILLS if is_chunked else _OTHER_KILLS
    points = kill_points(messages, _PAYLOADS, count, trial.lab.rng)
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        return list(threads.map(partial(_take_over, trial, is_chunked), range(count), points))


def kill_points(messages: int, payloads: int, count: int, rng: random.Random) -> list[int]:
    """Return after how many messages to kill: while a payload is incomplete, if payloads have several messages."""
    each = messages // payloads
    points = [number for number in range(1, messages + 1) if each == 1 or number % each]
    rng.shuffle(points)
    return [points[number % len(points)] for number in range(count)]


def _take_over(trial: Trial, is_chunked: bool, number: int, point: int) -> Row:
    """Let a group's first consumer receive until it is killed, and then another one; return what both received."""
    group = f"{trial.topic}-{number}"
    worker = trial.lab.worker("consumer", trial.mode, trial.topic, group=group, kill_after=point, config=trial.config)
    until_killed(worker, lambda: worker.ready().call("receive", count=_PAYLOADS, idle=_KILL_SECONDS))
    found = [trial.checked(each) for each in worker.delivered]

    def is_complete(more: list[Delivery]) -> bool:
        return trial.sent <= set(numbers_of([*found, *more]))

    with ClaimCheck(trial.config) as cc, trial.consumer(cc, group) as consumer:
        found += trial.receive(consumer, is_complete, seconds=_TAKEOVER_SECONDS, commit=True)
    counts = Counter(numbers_of(found))
    times = [counts[number] for number in trial.sent]
    return {
        "mode": trial.mode,
        "killed after messages": str(point),
        "inside a payload": "yes" if is_chunked else "no",
        "kills": 1,
        "once": times.count(1),
        "twice": sum(each > 1 for each in times),
        "lost": times.count(0),
        "wrong": sum(each.number is None for each in found),
    }


def rebalance(lab: Lab) -> Experiment:
    """Kill consumers at exact points, in each mode, and let others take over."""
    tally = each_mode(lab, "rebalance", _kills)
    inside = {row["mode"] for row in tally.rows if row["inside a payload"] == "yes"}
    line = "{kills} kills%s: {once} payloads received once, {twice} twice, {lost} lost, {wrong} wrong"
    lines = {mode: line.replace("%s", " inside a payload" if mode in inside else "") for mode in tally.modes}
    faulty = tally.faulty("lost", "wrong")
    verdict: Verdict = "agrees" if "chunking" in faulty and "external" not in faulty else "disagrees"
    why = (
        "The consumer never commits beyond the first chunk of an incomplete payload, so the new consumer reads all"
        " chunks again, and nothing is lost; what was not committed is received twice."
    )
    if faulty:
        why = f"After a consumer was killed, payloads were lost or wrong ({', '.join(faulty)})."
    return tally.experiment("rebalance", lines, verdict if "chunking" in inside else "not measured", why, faults=())
