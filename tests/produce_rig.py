"""What the tests of the produce side share: a configuration with a store of its own, and a broker that is a list."""

from __future__ import annotations

import uuid

import claimcheck
from claimcheck._wire.headers import TYPE
from claimcheck.testing._store_kit import SHAPES

BIG = bytes(range(256)) * 40
Unseekable = SHAPES["unseekable file"]


class Rig:
    """A configuration on a memory store of its own, and a broker that is a list."""

    def __init__(self, strategy="external", **config):
        self.cc = claimcheck.from_dict(
            {
                "strategy": strategy,
                "threshold_bytes": 2000,
                "stores": {"hot": {"type": "memory", "space": str(uuid.uuid4())}},
            }
            | config
        )
        self.sent: list[tuple] = []

    @property
    def stored(self):
        return len(self.cc.store("hot")._payloads)

    def publisher(self, error=None, after=0, **options):
        """A decorated function that sends, and fails with ``error`` once it has sent ``after`` messages."""

        @self.cc.offload(payload="value", destination="topic", key="key", headers="headers", **options)
        def publish(topic, value, key=None, headers=None):
            if error is not None and len(self.sent) >= after and (headers or {}).get(TYPE) != "abort":
                raise error
            self.sent.append((topic, value, key, headers))
            return len(self.sent) - 1

        return publish

    def received(self):
        resolver = self.cc.resolver()
        return [
            outcome
            for offset, (_, value, key, headers) in enumerate(self.sent)
            for outcome in resolver.feed("t", offset, value, headers=headers, key=key)
        ]


class QueueFullError(BufferError):
    """What confluent-kafka raises when its queue is full: the message is definitely not in the topic."""

    def __init__(self, *_):
        super().__init__("Local: Queue full")
