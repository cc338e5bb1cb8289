"""The names that the author of a strategy needs.

Subclass `Strategy` and name the class in the configuration: ``strategy: "mypackage:MyStrategy"``.
"""

from claimcheck._send.outbound import Outbound
from claimcheck._send.strategy import Message, Strategy, StrategyContext
from claimcheck._wire.envelope import Envelope, Kind

__all__ = ["Envelope", "Kind", "Message", "Outbound", "Strategy", "StrategyContext"]
