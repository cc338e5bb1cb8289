"""What a consumer of payloads leaves to the client's own as it is."""

from __future__ import annotations

from typing import Any

__all__ = ["NativeConsumer"]


class NativeConsumer:
    """The methods of a `confluent_kafka.Consumer` that payloads change nothing about.

    Args:
        native: It.
    """

    def __init__(self, native: Any) -> None:
        self._native = native

    def assignment(self) -> Any:
        """The partitions that this consumer has."""
        return self._native.assignment()

    def consumer_group_metadata(self) -> Any:
        """For `KafkaProducer.send_offsets_to_transaction`."""
        return self._native.consumer_group_metadata()

    def memberid(self) -> Any:
        """This consumer's name within its group."""
        return self._native.memberid()

    def get_watermark_offsets(self, partition: Any, timeout: float = -1, cached: bool = False) -> Any:
        """The lowest offset of a partition, and the one behind its highest."""
        return self._native.get_watermark_offsets(partition, timeout=timeout, cached=cached)

    def offsets_for_times(self, partitions: list[Any], timeout: float = -1) -> Any:
        """The first offsets at or after given times; a payload may begin before one."""
        return self._native.offsets_for_times(partitions, timeout=timeout)

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Any:
        """What the cluster says of its topics."""
        return self._native.list_topics(*([] if topic is None else [topic]), timeout=timeout)

    def cluster_id(self, timeout: float = -1) -> Any:
        """The cluster's own name."""
        return self._native.cluster_id(timeout)

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """As the client has it."""
        self._native.set_sasl_credentials(username, password)
