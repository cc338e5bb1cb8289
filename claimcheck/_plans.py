"""How messages are sent, by destination: the strategy, the threshold and the size limit of each."""

from __future__ import annotations

import functools
from collections.abc import Callable

from claimcheck._content.coder import ContentCoder
from claimcheck._registry import STRATEGIES, load_class
from claimcheck._send.decorator import Plan
from claimcheck._send.strategy import Breaker, Strategy, StrategyContext
from claimcheck._store.store import Store
from claimcheck._validation import Problems, fail
from claimcheck._wire import pointer as pointers
from claimcheck._wire.signing import Seal
from claimcheck._wire.sizes import DEFAULT_LIMIT, WireLimit
from claimcheck.config import Config
from claimcheck.hooks import Hooks

_REMEMBERED = 1000  # destinations; most programs have few


class Plans:
    """The plans of one process; thread-safe."""

    def __init__(
        self,
        config: Config,
        *,
        store: Callable[[str], Store],
        seal: Seal,
        content: ContentCoder,
        hooks: Callable[[], Hooks],
    ) -> None:
        self._config = config
        self._store = store
        self._seal = seal
        self._content = content
        self._hooks = hooks
        self._known: dict[tuple[str, WireLimit | None], Plan] = {}
        self._strategies: dict[int, Strategy] = {}
        self._breakers: dict[tuple[str | None, float], Breaker] = {}

    def of(self, destination: str, limit: WireLimit | None = None) -> Plan:
        """Return how messages for a destination are sent."""
        known = self._known.get((destination, limit))
        if known is None:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            known = self._known[destination, limit] = self._make(destination, limit)
        return known

    def strategy(self, config: Config) -> Strategy:
        """Return the strategy of the configuration of a destination."""
        if id(config) not in self._strategies:
            self._strategies.setdefault(id(config), strategy_class(config)(self._context(config)))
        return self._strategies[id(config)]

    def _make(self, destination: str, limit: WireLimit | None) -> Plan:
        config = self._config.for_destination(destination)
        wire, threshold = limit or DEFAULT_LIMIT, config.threshold_bytes
        if threshold == "auto":
            threshold = wire.max_message_bytes
        elif limit is None and threshold > wire.max_message_bytes:  # without a transport, the caller knows the limit
            wire = WireLimit(threshold, wire.overhead)
        strategy, most = self.strategy(config), min(threshold, wire.max_message_bytes)
        encrypts = self._content.encrypts_inline
        return Plan(strategy, most, wire, -1 if strategy.escapes_all else 0 if encrypts else most)

    def _context(self, config: Config) -> StrategyContext:
        name, pause = config.store, config.hybrid.retry_store_after_seconds
        signs = bool(config.signing.key_id)
        return StrategyContext(
            config=config,
            store=functools.partial(self._store, name or ""),
            seal=self._seal.sign if signs else pointers.encode,
            signer=self._seal if signs else None,
            breaker=self._breakers.setdefault((name, pause), Breaker(retry_after_seconds=pause)),
            content=self._content,
            hooks=self._hooks(),
        )


def strategy_class(config: Config, *, path: str = "strategy") -> type[Strategy]:
    """Return the class of the strategy of a configuration."""
    cls = load_class(config.strategy, STRATEGIES, group="claimcheck.strategies", path=path)
    if not issubclass(cls, Strategy):
        fail(path, found=repr(config.strategy), expected="a subclass of claimcheck.Strategy")
    return cls


def check_strategies(config: Config, problems: Problems) -> None:
    """Collect what is wrong with the strategies of a configuration and of its destinations."""
    with problems:
        _check(config, "")
    for pattern, override in config.destinations:
        inherited = override.strategy == config.strategy and "strategy" in problems.sections()
        with problems:
            if not inherited:
                _check(override, f"destinations.{pattern}.")


def _check(config: Config, prefix: str) -> None:
    strategy = strategy_class(config, path=f"{prefix}strategy")
    if strategy.needs_store and config.store is None:
        expected = f"the name of a store: strategy {config.strategy!r} writes to one"
        fail(f"{prefix}store", found="nothing", expected=expected)
