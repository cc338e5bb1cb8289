"""Administration of Pulsar topics: creates and deletes them, sets their expiry, and reads their statistics."""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

from claimcheck._compare._model import CompareError
from claimcheck.transports.pulsar._admin import AdminClient, AdminError, topic_path

__all__ = ["TopicAdmin"]

_SECONDS = 15.0
_POLL_SECONDS = 0.05
_MAX_REDIRECTS = 3
_MAX_TEXT = 200


class TopicAdmin:
    """Requests to one web service.

    Args:
        url: The web service.
        token: Sent with every request, but not to another host.
        trust: For https.

    Raises:
        CompareError: The URL cannot be used.
    """

    def __init__(self, url: str, *, token: str | None, trust: ssl.SSLContext) -> None:
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._trust = trust
        self._url = url.rstrip("/")
        try:
            self._reads = AdminClient(url, headers=self._headers, trust=trust, timeout_seconds=_SECONDS)
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

    def names(self, namespace: str) -> set[str]:
        """Return the full names of the topics in a namespace; a topic with partitions counts once."""
        single = self.get(f"persistent/{namespace}") or []
        partitioned = set(self.get(f"persistent/{namespace}/partitioned") or [])
        return partitioned | {name for name in single if name.rpartition("-partition-")[0] not in partitioned}

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
            return self._reads.get(path)
        except AdminError as error:
            raise CompareError(f"{error}: check --admin-url and the token's permissions") from error

    def version(self) -> str | None:
        """Return the broker's version; ``None`` if it is not told."""
        with contextlib.suppress(CompareError):
            return self._send("GET", "brokers/version", None)[1].decode("ascii", "replace").strip('" \n')[:40] or None
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

    # Requests --------------------------------------------------------------------------------------------------

    def _change(self, method: str, path: str, body: object = None, *, what: str, allowed: tuple[int, ...] = ()) -> None:
        status, text = self._send(method, path, body)
        if status < 300 or status in allowed:
            return
        if status in (401, 403):
            advice = "give the token's role the permission, or use a namespace where it has it"
            raise CompareError(f"not permitted to {what} ({status}): {advice}")
        if status == 405:
            raise CompareError(f"the broker does not {what} (405): enable topicLevelPoliciesEnabled on the broker")
        raise CompareError(f"the broker did not {what} ({status}): {_reason(text)}")

    def _send(self, method: str, path: str, body: object) -> tuple[int, bytes]:
        """Send a request; a redirect to the broker that owns the topic is followed, the token only to the same host."""
        url = f"{self._url}/admin/v2/{path}"
        data = None if body is None else json.dumps(body).encode()
        opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=self._trust), _NoRedirects())
        for _ in range(_MAX_REDIRECTS):
            headers = self._headers if _host(url) == _host(self._url) else {}
            request = urllib.request.Request(url, data, {"Content-Type": "application/json", **headers}, method=method)
            try:
                with opener.open(request, timeout=_SECONDS) as response:
                    return response.status, response.read()
            except urllib.error.HTTPError as error:
                with error:
                    location = error.headers.get("Location") if error.code in (307, 308) else None
                    if location is None:
                        return error.code, error.read(_MAX_TEXT)
                url = self._followed(url, location)
            except (OSError, ValueError, http.client.HTTPException) as error:
                raise CompareError(
                    f"the web service did not answer ({type(error).__name__}): check --admin-url"
                ) from error
        raise CompareError("the web service redirects in a circle: check --admin-url")

    def _followed(self, url: str, location: str) -> str:
        target = urllib.parse.urljoin(url, location)
        scheme = urllib.parse.urlsplit(target).scheme
        if scheme not in ("http", "https") or (scheme == "http" and self._url.startswith("https:")):
            raise CompareError("the web service redirects from https to an address without TLS")
        return target


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Makes a redirect an error: urllib does not follow those of PUT, POST and DELETE."""

    def redirect_request(self, *arguments: Any) -> None:
        return None


def _host(url: str) -> str:
    parts = urllib.parse.urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def _reason(text: bytes) -> str:
    """Return the reason in an error's body, which is usually JSON."""
    with contextlib.suppress(ValueError, TypeError):
        reason = json.loads(text)["reason"]
        return str(reason)[:_MAX_TEXT]
    return text.decode("utf-8", "replace").strip() or "no reason given"
