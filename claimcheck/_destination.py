"""Names of topics: one form for all names that a broker's clients use for the same topic. No I/O."""

from __future__ import annotations

import re

_PARTITION = re.compile(r"-partition-\d+$")
_DEFAULT = "public/default/"


def canonical(destination: str) -> str:
    """Return the name by which a destination is signed and compared."""
    scheme, separator, rest = destination.partition("://")
    if not separator:
        return destination.removeprefix(_DEFAULT)
    topic = _PARTITION.sub("", rest)
    return topic.removeprefix(_DEFAULT) if scheme == "persistent" else f"{scheme}://{topic}"
