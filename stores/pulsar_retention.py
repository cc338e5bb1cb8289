"""How long a topic of Pulsar keeps its messages, as the broker's web service reports it."""

from __future__ import annotations

import json
import ssl
import urllib.parse
import urllib.request
from dataclasses import dataclass, field
from typing import Any

__all__ = ["WebService"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WebService:
    """A broker's web service.

    Attributes:
        url: Its address.
        token: Sent to this host only.
        ca_file: Certificates of authorities; ``None`` for the system's.
        validate_hostname: Whether the certificate has to be for the host.
        timeout_seconds: For one answer.
    """

    url: str
    token: str | None = field(repr=False)
    ca_file: str | None
    validate_hostname: bool
    timeout_seconds: float

    def retention(self, topic: str) -> dict[str, int]:
        """Return the retention policy of a topic, else that of its namespace; empty where there is none."""
        scheme, found, rest = topic.partition("://")
        name = f"{scheme}/{rest}" if found else f"persistent/public/default/{topic}"
        namespace = "/".join(name.split("/")[1:3])
        for path in (f"{name}/retention", f"namespaces/{namespace}/retention"):
            if policy := self._get(path):
                return policy
        return {}

    def _get(self, path: str) -> dict[str, int]:
        request = urllib.request.Request(f"{self.url.rstrip('/')}/admin/v2/{urllib.parse.quote(path)}")
        if self.token:
            request.add_header("Authorization", f"Bearer {self.token}")
        context = ssl.create_default_context(cafile=self.ca_file)
        context.check_hostname = self.validate_hostname
        opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context), _TokenStays())
        with opener.open(request, timeout=self.timeout_seconds) as response:
            text = response.read()
        policy: dict[str, int] = json.loads(text) if text.strip() else {}
        return policy


class _TokenStays(urllib.request.HTTPRedirectHandler):
    """Follows redirects to another host, or to another port or scheme, without the token."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        redirected = super().redirect_request(req, fp, code, msg, headers, newurl)
        if redirected is not None and _origin(newurl) != _origin(req.full_url):
            redirected.remove_header("Authorization")
        return redirected


def _origin(url: str) -> tuple[str, str]:
    parts = urllib.parse.urlsplit(url)
    return parts.scheme, parts.netloc
