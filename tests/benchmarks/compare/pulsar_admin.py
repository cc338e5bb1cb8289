"""Administration of Pulsar topics: creates and deletes them, sets their expiry, and reads their statistics."""

from __future__ import annotations

import contextlib
import ssl
import time
from typing import Any

from claimcheck.transports.pulsar._queries import AdminClient, AdminError, topic_path
from tests.benchmarks.compare.model import CompareError

_SECONDS = 15.0
_POLL_SECONDS = 0.05
_MAX_TEXT = 200


class TopicAdmin:
    """Requests to one web service.

    Args:
        url: The web service.
        token: Sent with every request, but not to another host.
        trust: For https.
    """

    def __init__(self, url: str, *, token: str | None, trust: ssl.SSLContext) -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        try:
            self._client = AdminClient(url, headers=headers, trust=trust, timeout_seconds=_SECONDS)
        except AdminError as error:
            raise CompareError(str(error)) from error

    # Topics ----------------------------------------------------------------------------------------------------

    def create(self, topic: str, partitions: int) -> None:
        """Create a topic, without partitions if there is to be one only."""
        path = topic_path(topic)
        if partitions == 1:
            self._change("PUT", path, what=f"create topic {topic}")
        else:
            self._change("PUT", f"{path}/partitions", partitions, what=f"create topic {topic}")

    def delete(self, topic: str) -> None:
        """Delete a topic with its subscriptions; a missing one is not an error."""
        partitions = "/partitions" if self.partitions(topic) else ""
        what = f"delete topic {topic}"
        self._change("DELETE", f"{topic_path(topic)}{partitions}?force=true", what=what, allowed=(404,))

    def partitions(self, topic: str) -> int:
        """Return the number of partitions; 0 for a topic without partitions."""
        found = self.get(f"{topic_path(topic)}/partitions")
        return int(found["partitions"]) if found else 0

    def check(self, namespace: str) -> None:
        """Raise `CompareError` if the web service does not answer, or the namespace does not exist."""
        if self.get(f"persistent/{namespace}") is None:
            raise CompareError(f"there is no namespace {namespace}: create it, or use another one")

    # Expiry ----------------------------------------------------------------------------------------------------

    def set_expiry(self, topic: str, seconds: int) -> None:
        """Make the broker acknowledge messages after a time, and delete what is acknowledged; waits until it does."""
        path, what = topic_path(topic), f"set the expiry of topic {topic}"
        self._change("POST", f"{path}/messageTTL?messageTTL={seconds}", what=what)
        no_retention = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
        self._change("POST", f"{path}/retention", no_retention, what=what)
        end = time.monotonic() + _SECONDS
        while self.get(f"{path}/messageTTL") != seconds or self.get(f"{path}/retention") != no_retention:
            if time.monotonic() > end:
                raise CompareError(f"the broker did not apply the expiry of topic {topic} within {_SECONDS:g} s")
            time.sleep(_POLL_SECONDS)

    def expire(self, topic: str) -> None:
        """Expire messages that are older than the topic's expiry, and delete what no subscription needs.

        Only closed ledgers are deleted; the unloading closes the current one and disconnects clients for a moment.
        """
        seconds = self.get(f"{topic_path(topic)}/messageTTL")
        for partition in self.partition_names(topic):
            path, what = topic_path(partition), f"expire the messages of topic {topic}"
            if seconds:
                # 409: an expiry is in progress already
                self._change("POST", f"{path}/all_subscription/expireMessages/{seconds}", what=what, allowed=(409,))
            self._change("PUT", f"{path}/unload", what=what)
            self._change("POST", f"{path}/trim", what=what)

    def partition_names(self, topic: str) -> list[str]:
        """Return the topics of the partitions, or the topic itself."""
        count = self.partitions(topic)
        return [f"{topic}-partition-{n}" for n in range(count)] if count else [topic]

    # Statistics ------------------------------------------------------------------------------------------------

    def get(self, path: str) -> Any:
        """Return the response to a GET request. Raises `CompareError`."""
        try:
            return self._client.get(path)
        except AdminError as error:
            raise CompareError(f"{error}: check --admin-url and the token's permissions") from error

    def version(self) -> str | None:
        """Return the broker's version; ``None`` if it is not told."""
        with contextlib.suppress(AdminError):
            return self._client.send("GET", "brokers/version").decode("ascii", "replace").strip('" \n')[:40] or None
        return None

    def max_message_bytes(self) -> int | None:
        """Return the broker's limit; ``None`` if this token may not read the broker's configuration."""
        with contextlib.suppress(CompareError):
            settings = self.get("brokers/configuration/runtime")
            return int(settings["maxMessageSize"]) if settings else None
        return None

    def internal_stats(self, partition: str) -> dict[str, Any]:
        """Return ledgers and cursors of one partition."""
        return self.get(f"{topic_path(partition)}/internalStats") or {}

    def _change(self, method: str, path: str, body: object = None, *, what: str, allowed: tuple[int, ...] = ()) -> None:
        try:
            self._client.send(method, path, body)
        except AdminError as error:
            if error.status in allowed:
                return
            if error.status is None:
                raise CompareError(f"{error}: check --admin-url") from error
            if error.status in (401, 403):
                advice = "give the token's role the permission, or use a namespace where it has it"
                raise CompareError(f"not permitted to {what} ({error.status}): {advice}") from error
            if error.status == 405:
                text = f"the broker does not {what} (405): enable topicLevelPoliciesEnabled on the broker"
                raise CompareError(text) from error
            raise CompareError(f"the broker did not {what} ({error.status}): {error.reason[:_MAX_TEXT]}") from error
