"""Names of topics: one form for all names that a broker's clients use for the same topic. No I/O."""

from __future__ import annotations

import re

__all__ = ["canonical"]

_PARTITION = re.compile(r"-partition-\d+$")
_DEFAULT = "public/default/"


def canonical(destination: str) -> str:
    """Return the name by which a destination is signed and compared.

    Pulsar's clients use several names for one topic: ``persistent://public/default/orders-partition-3``,
    ``persistent://public/default/orders``, ``public/default/orders`` and ``orders`` all become ``orders``. The number
    of a partition is only removed from a complete name, which clients report for received messages: a topic of Kafka
    may be called ``orders-partition-3``. All other names are returned unchanged. The name of the cluster is not in it.
    """
    scheme, separator, rest = destination.partition("://")
    if not separator:
        return destination.removeprefix(_DEFAULT)
    topic = _PARTITION.sub("", rest)
    return topic.removeprefix(_DEFAULT) if scheme == "persistent" else f"{scheme}://{topic}"
