"""Why a target is missed, by the key of its row; printed beside it. Filled in by whoever looked into it."""

REASONS: dict[str, str] = {}
