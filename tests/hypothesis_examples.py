"""How many examples a property test tries: all in the full profile, a tenth in `make test`."""

from __future__ import annotations

from typing import Any

from hypothesis import settings


def examples(count: int, **options: Any) -> settings:
    """Return settings with `count` examples; the profile ``fast`` tries a tenth of them, at least ten."""
    fast = settings.get_current_profile_name() == "fast"
    return settings(max_examples=max(10, count // 10) if fast else count, **options)
