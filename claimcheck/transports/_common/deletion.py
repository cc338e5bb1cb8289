"""Deletes stored payloads once the broker has confirmed that their messages are acknowledged (``delete_after_ack``).

A payload is deleted only if all of this holds:

- It was delivered to this application, which acknowledged it, or committed past it.
- Afterwards the broker confirmed the acknowledgement.
- Exactly one group or subscription reads the topic.
- No other message can point at it: its key was created by one write, for this topic, in the store of this topic.
- Its pointer is genuine: the payload was read and is whole, or the pointer's signature was verified.

In any other case the payload stays until it expires.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Set
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol

from claimcheck._key_lifetime import destination_of
from claimcheck._pointer import slug
from claimcheck.errors import SeveralGroupsError, StoreUnavailableError
from claimcheck.transports._common.stored_payload import PointerRead

if TYPE_CHECKING:
    from claimcheck._client import ClaimCheck

__all__ = ["Acknowledgements", "PayloadDeletion", "deletes", "may_delete"]

_log = logging.getLogger(__name__)

_ASK_SECONDS = 5.0  # between two questions to the broker
_CHECK_SECONDS = 60.0  # how long the number of groups is believed
_REMEMBERED = 10_000  # payloads; the oldest ones are forgotten, and expire
_THREADS = 4
_ROUNDS_AFTER_REVOKE = 2

Source = Hashable
Position = Any
"""Ordered within a source."""

_Place = tuple[Source, Position]


class Acknowledgements(Protocol):
    """What a broker knows about the groups of a topic. Called from several threads; may block."""

    def topic(self, source: Source) -> str:
        """Return the topic of a source, as `groups` takes it."""

    def destination(self, source: Source) -> str:
        """Return the topic of a source, as producers name it."""

    def groups(self, topic: str) -> Set[str]:
        """Return the names of all groups or subscriptions that read a topic, including this consumer's."""

    def confirmed(self, sources: Collection[Source]) -> Mapping[Source, Position]:
        """Return the first position of each source that this group has not acknowledged; none if unknown."""


def deletes(cc: ClaimCheck) -> bool:
    """Whether payloads of any destination are deleted after they are acknowledged."""
    return any(each.delete_after_ack for each in (cc.config, *(override for _, override in cc.config.destinations)))


def may_delete(cc: ClaimCheck, read: PointerRead, destination: str) -> bool:
    """Whether the message that carried a pointer is the only one that can point at its payload."""
    pointer, config = read.pointer, cc.config.for_destination(destination)
    is_signed = pointer.mac is not None and bool(cc.config.signing.keys)  # verified when it was accepted
    is_genuine = read.state == "verified" or (read.state == "unread" and is_signed)
    if not is_genuine or pointer.version == 1 or pointer.store is None or pointer.store != config.store:
        return False
    store = cc.store(pointer.store)
    known = store._lifetime_of(pointer.key)
    is_of_one_write = known is not None and known.created_ms is not None
    return is_of_one_write and destination_of(pointer.key[len(store.prefix) :]) == slug(destination)


class PayloadDeletion:
    """Remembers the payloads that were delivered, and deletes them in a thread once they are confirmed. Thread-safe.

    Args:
        cc: The configuration.
        broker: Knows what is acknowledged.
        clock: Seconds, monotonic.
        start_thread: Whether to ask in a thread; otherwise only `run` does.
    """

    def __init__(
        self,
        cc: ClaimCheck,
        broker: Acknowledgements,
        *,
        clock: Callable[[], float] = time.monotonic,
        start_thread: bool = True,
    ) -> None:
        self._cc = cc
        self._broker = broker
        self._clock = clock
        self._lock = threading.Lock()
        self._running = threading.Lock()  # held during a round
        self._delivered: dict[_Place, PointerRead] = {}
        self._acknowledged: dict[_Place, PointerRead] = {}
        self._up_to: dict[Source, Position] = {}  # acknowledged cumulatively, not applied to `_delivered` yet
        self._ended: dict[Source, int] = {}  # revoked: how many rounds are left
        self._deleting: dict[Source, bool] = {}  # whether payloads of the source are deleted
        self._checked: set[str] = set()  # topics
        self._groups: dict[str, tuple[float, Set[str]]] = {}  # by topic, and since when they are known
        self._failing: set[str] = set()  # for which a warning was logged: stores, topics, the broker
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        if not start_thread:
            self._stop.set()

    # For consumers ---------------------------------------------------------------------------------------------

    def is_on(self, source: Source) -> bool:
        """Whether payloads of a source are deleted."""
        found = self._deleting.get(source)
        if found is None:
            config = self._cc.config.for_destination(self._broker.destination(source))
            found = self._deleting[source] = config.delete_after_ack
        return found

    def check(self, source: Source) -> None:
        """Make sure, before the first payload of a topic, that one group reads it. Asks the broker once per topic.

        Raises:
            SeveralGroupsError: Several groups read it. No payload of the topic is deleted while that is so.
        """
        topic = self._broker.topic(source)
        if topic in self._checked or not self.is_on(source):
            return
        self._checked.add(topic)
        if self._is_shared(topic):
            raise _several(topic, self._groups[topic][1])

    def begin(self, sources: Collection[Source]) -> Mapping[Source, Position] | None:
        """Return what is confirmed before a source is read; ``None`` if the broker does not answer."""
        with self._lock:
            for source in sources:
                self._ended.pop(source, None)
        return self._ask([source for source in sources if self.is_on(source)])

    def delivered(self, source: Source, position: Position, read: PointerRead) -> None:
        """Remember a payload that the application receives; if it was acknowledged before, that is forgotten."""
        if not self.is_on(source):
            return
        place = source, position
        with self._lock:
            if source in self._up_to and position <= self._up_to[source]:
                self._apply()
            self._acknowledged.pop(place, None)
            self._delivered[place] = read
            if len(self._delivered) + len(self._acknowledged) > _REMEMBERED:
                oldest = self._delivered if len(self._delivered) > 1 else self._acknowledged
                del oldest[next(iter(oldest))]
        if self._thread is None and not self._stop.is_set():
            self._start()

    def acknowledged(self, source: Source, position: Position) -> None:
        """Record that the application acknowledged one message."""
        with self._lock:
            read = self._delivered.pop((source, position), None)
            if read is not None:
                self._acknowledged[source, position] = read

    def acknowledged_up_to(self, source: Source, position: Position) -> None:
        """Record that the application acknowledged, or asked to commit, everything up to a position."""
        with self._lock:
            if source not in self._up_to or self._up_to[source] < position:
                self._up_to[source] = position

    def keep(self, source: Source, position: Position) -> None:
        """Forget a payload that is still needed: it is redelivered, or is in a dead-letter topic."""
        with self._lock:
            self._apply()
            self._delivered.pop((source, position), None)
            self._acknowledged.pop((source, position), None)

    def forget_delivered(self) -> None:
        """Forget what was not acknowledged: it is delivered again."""
        with self._lock:
            self._apply()
            self._delivered.clear()

    def forget_all(self) -> None:
        """Forget everything: it may be delivered again."""
        with self._lock:
            self._up_to.clear()
            self._delivered.clear()
            self._acknowledged.clear()

    def forget(self, source: Source, *, since: Position | None = None) -> None:
        """Forget a source, or what comes from a position on: it is delivered again."""
        with self._lock:
            self._apply()
            for known in (self._delivered, self._acknowledged):
                for place in [each for each in known if each[0] == source and (since is None or each[1] >= since)]:
                    del known[place]

    def end(self, source: Source) -> None:
        """Forget a source that another consumer reads now; what was acknowledged may be confirmed a little later."""
        with self._lock:
            self._apply()
            for place in [place for place in self._delivered if place[0] == source]:
                del self._delivered[place]
            self._ended[source] = _ROUNDS_AFTER_REVOKE

    def close(self) -> None:
        """Ask once more, delete what is confirmed, and stop the thread. Call it after the last commit."""
        self._stop.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
        self.run()
        with self._lock:
            self._delivered.clear()
            self._acknowledged.clear()

    # The thread ------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Ask the broker once, and delete the payloads that are confirmed."""
        with self._running:
            with self._lock:
                self._apply()
                sources = {source for source, _ in self._acknowledged}
            confirmed = self._ask(sources)
            if confirmed is None:
                return
            shared = {source: self._is_shared(self._broker.topic(source)) for source in sources}
            with self._lock:
                due = self._take({source: confirmed[source] for source in confirmed if shared[source] is not None})
                self._end_round()
            self._delete_all((source, read) for source, read in due if not shared[source])

    def _take(self, confirmed: Mapping[Source, Position]) -> list[tuple[Source, PointerRead]]:
        """Remove and return what is confirmed."""
        due = [place for place in self._acknowledged if place[0] in confirmed and place[1] < confirmed[place[0]]]
        return [(place[0], self._acknowledged.pop(place)) for place in due]

    def _end_round(self) -> None:
        for source in list(self._ended):
            self._ended[source] -= 1
            if not self._ended[source]:
                del self._ended[source]
                for place in [place for place in self._acknowledged if place[0] == source]:
                    del self._acknowledged[place]

    def _apply(self) -> None:
        """Apply cumulative acknowledgements."""
        if self._up_to:
            up_to, self._up_to = self._up_to, {}
            for place in [each for each in self._delivered if each[0] in up_to and each[1] <= up_to[each[0]]]:
                self._acknowledged[place] = self._delivered.pop(place)

    def _start(self) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._loop, name="claimcheck-deletion", daemon=True)
                self._thread.start()

    def _loop(self) -> None:
        while not self._stop.wait(_ASK_SECONDS):
            try:
                self.run()
            except Exception:
                _log.exception("deleting acknowledged payloads failed")

    # Questions -------------------------------------------------------------------------------------------------

    def _ask(self, sources: Collection[Source]) -> Mapping[Source, Position] | None:
        if not sources:
            return {}
        try:
            confirmed = self._broker.confirmed(sources)
        except Exception as error:
            self._warn("broker", "acknowledgements are not confirmed, so nothing is deleted: %s", error)
            return None
        self._failing.discard("broker")
        return confirmed

    def _is_shared(self, topic: str) -> bool | None:
        """Whether several groups read a topic; ``None`` if the broker does not answer."""
        since, groups = self._groups.get(topic, (None, frozenset[str]()))
        if since is None or self._clock() - since >= _CHECK_SECONDS:
            try:
                groups = self._broker.groups(topic)
            except Exception as error:
                self._warn(f"topic {topic}", "the groups of %s are not known, so nothing is deleted: %s", topic, error)
                self._groups.pop(topic, None)
                return None
            self._groups[topic] = self._clock(), groups
            if len(groups) > 1:
                self._warn(f"topic {topic}", "nothing is deleted: %s", _several(topic, groups))
            else:
                self._failing.discard(f"topic {topic}")
        return len(groups) > 1

    # Deletions -------------------------------------------------------------------------------------------------

    def _delete_all(self, due: Iterable[tuple[Source, PointerRead]]) -> None:
        payloads, down = list(due), set[str]()
        if len(payloads) == 1:
            self._delete(payloads[0], down)
        elif payloads:
            with ThreadPoolExecutor(_THREADS, thread_name_prefix="claimcheck-deletion") as threads:
                list(threads.map(lambda payload: self._delete(payload, down), payloads))

    def _delete(self, payload: tuple[Source, PointerRead], down: set[str]) -> None:
        """Delete one payload; after an error it stays until it expires. ``down`` has the stores not to try again."""
        source, read = payload
        name = read.pointer.store or ""
        if name in down:
            return
        try:
            if may_delete(self._cc, read, self._broker.destination(source)):
                self._cc.store(name)._delete_one(read.pointer, "delete")
                self._failing.discard(f"store {name}")
        except Exception as error:
            if isinstance(error, StoreUnavailableError):
                down.add(name)
            text = "store %r: payloads are not deleted and stay until they expire: %s"
            self._warn(f"store {name}", text, name, error)

    def _warn(self, about: str, text: str, *arguments: object) -> None:
        """Log a warning, once until it works again."""
        if about not in self._failing:
            self._failing.add(about)
            _log.warning(text, *arguments)


def _several(topic: str, groups: Set[str]) -> SeveralGroupsError:
    names = tuple(sorted(groups))
    text = (
        f"delete_after_ack is on, and {len(names)} groups or subscriptions read {topic}: {', '.join(names)}. "
        "A payload that one of them deletes is lost for the others: turn delete_after_ack off for this topic, or "
        "delete the groups that are not used"
    )
    return SeveralGroupsError(text, destination=topic, groups=names)
