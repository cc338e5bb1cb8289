"""The names that the author of a strategy needs.

Subclass `Strategy` and name the class in the configuration: ``strategy: "mypackage:MyStrategy"``.
"""

from claimcheck._envelope import Envelope, Kind
from claimcheck._outbound import Outbound
from claimcheck._strategy import Message, Strategy, StrategyContext

__all__ = ["Envelope", "Kind", "Message", "Outbound", "Strategy", "StrategyContext"]
