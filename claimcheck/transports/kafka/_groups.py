"""Consumer groups and their committed offsets, as an admin client sees them. Nothing here joins a group or commits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from functools import partial
from typing import Any

from claimcheck._registry import import_vendor
from claimcheck.errors import TransportError
from claimcheck.transports.kafka._client import vendor

NO_GROUP = "GROUP_AUTHORIZATION_FAILED"
"""The error that a consumer reports if it may not use its group. One that never joins it can ignore this."""

_SECONDS = 10.0


def committed_offsets(admin: Any, groups: Iterable[str]) -> dict[str, dict[tuple[str, int], int]]:
    """Return the committed offsets of groups by topic and partition."""
    requests = {name: vendor().ConsumerGroupTopicPartitions(name) for name in groups}
    ask = partial(admin.list_consumer_group_offsets, request_timeout=_SECONDS)
    futures = {name: ask([each])[name] for name, each in requests.items()}
    return {name: _offsets(future.result().topic_partitions) for name, future in futures.items()}


def group_names(admin: Any) -> list[str]:
    """Return the names of all groups."""
    listed = admin.list_consumer_groups(request_timeout=_SECONDS).result()
    if listed.errors:
        raise listed.errors[0]
    return sorted(each.group_id for each in listed.valid)


def assigned_topics(admin: Any, groups: Collection[str]) -> dict[str, set[str]]:
    """Return the topics of which members of each group have partitions."""
    described = admin.describe_consumer_groups(list(groups), request_timeout=_SECONDS) if groups else {}
    members = {name: future.result().members for name, future in described.items()}
    return {
        name: {place.topic for member in each for place in member.assignment.topic_partitions}
        for name, each in members.items()
    }


def groups_of(admin: Any, topic: str, names: Collection[str] = ()) -> dict[str, dict[int, int]]:
    """Return the groups that have committed offsets of a topic, with these offsets by partition."""
    found = committed_offsets(admin, names or group_names(admin))
    by_group: dict[str, dict[int, int]] = defaultdict(dict)
    for name, offsets in found.items():
        for (each, partition), offset in offsets.items():
            if each == topic:
                by_group[name][partition] = offset
    return dict(by_group)


def consumed_offsets(admin: Any, places: Collection[tuple[str, int]]) -> dict[tuple[str, int], int]:
    """Return the offset of each partition below which every group has read everything."""
    try:
        _check_all_visible(admin)
        names = group_names(admin)
        committed, assigned = committed_offsets(admin, names), assigned_topics(admin, names)
        ends = log_offsets(admin, places, "latest")
    except vendor().KafkaException as error:
        text = f"the committed offsets of all groups cannot be read: {error.args[0].str()}"
        raise TransportError(text) from error
    reads = {name: assigned[name] | {topic for topic, _ in committed[name]} for name in names}
    found = {
        place: min((committed[name].get(place, 0) for name in names if place[0] in reads[name]), default=0)
        for place in places
    }
    return {place: offset if offset <= ends[place] else 0 for place, offset in found.items()}


def log_offsets(admin: Any, places: Iterable[tuple[str, int]], which: str) -> dict[tuple[str, int], int]:
    """Return the ``earliest`` or ``latest`` offset of partitions."""
    spec = getattr(_admin_module().OffsetSpec, which)()
    requests = {vendor().TopicPartition(*each): spec for each in places}
    results = admin.list_offsets(requests, request_timeout=_SECONDS).items() if requests else ()
    return {(place.topic, place.partition): future.result().offset for place, future in results}


def _check_all_visible(admin: Any) -> None:
    """Raise an error unless the broker lists all groups: it leaves out those that the user may not describe."""
    describe = _admin_module().AclOperation.DESCRIBE
    cluster = admin.describe_cluster(include_authorized_operations=True, request_timeout=_SECONDS).result()
    if describe not in (cluster.authorized_operations or ()):
        text = "groups that this user may not describe are not listed: grant DESCRIBE on the cluster to see all groups"
        raise TransportError(text)


def _offsets(places: Iterable[Any]) -> dict[tuple[str, int], int]:
    offsets: dict[tuple[str, int], int] = {}
    for each in places:
        if each.error is not None:
            raise vendor().KafkaException(each.error)
        if each.offset >= 0:
            offsets[each.topic, each.partition] = each.offset
    return offsets


def _admin_module() -> Any:
    return import_vendor("confluent_kafka.admin", extra="kafka")
