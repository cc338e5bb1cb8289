"""An admin client that remembers why it cannot connect."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from claimcheck._registry import import_vendor
from claimcheck.errors import ConfigError, TransportError
from claimcheck.transports.kafka._client import vendor

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

_quiet = logging.getLogger(__name__)  # the client would write to standard error
_quiet.addHandler(logging.NullHandler())
_quiet.propagate = False

_CHECK = "check that it runs, the address, and the security settings of the client (security.protocol, sasl.*, ssl.*)"
_REASONS = {
    "_AUTHENTICATION": "it refuses the user name or the password (sasl.*)",
    "_RESOLVE": "the name of its host cannot be resolved",
    "_SSL": "TLS failed, check its certificate and the client's settings (ssl.*)",
}


class Cluster:
    """A Kafka cluster, as an admin client sees it. The client connects at first use."""

    def __init__(self, settings: Mapping[str, Any], *, path: str) -> None:
        self._problems: list[str] = []
        module = import_vendor("confluent_kafka.admin", extra="kafka")
        options = {**settings, "error_cb": partial(_keep, self._problems)}
        try:
            self.admin: AdminClient = module.AdminClient(options, logger=_quiet)
        except Exception:
            raise ConfigError(f"the Kafka client refuses its settings: check {path}", path=path) from None

    def metadata(self, *, timeout: float) -> Any:
        """Return the brokers and topics of the cluster."""
        try:
            return self.admin.list_topics(timeout=timeout)
        except vendor().KafkaException as error:
            raise TransportError(self.explain(error)) from error

    def name(self, *, timeout: float) -> str:
        """Return the cluster's id, with ``kafka:`` before it; raises as `metadata`."""
        found = self.metadata(timeout=timeout).cluster_id
        if not found:
            raise TransportError("the Kafka cluster has no id")
        return f"kafka:{found}"

    def explain(self, error: BaseException) -> str:
        """Return why no broker answered."""
        self.admin.poll(0)  # notes what happened meanwhile, such as a refused password
        name = self._problems[-1] if self._problems else error.args[0].name()
        return f"no Kafka broker answered ({name}): {_REASONS.get(name, _CHECK)}"


def _keep(problems: list[str], error: Any) -> None:
    if error.name() != "_ALL_BROKERS_DOWN":  # it follows the error that explains it
        problems[:] = [error.name()]
