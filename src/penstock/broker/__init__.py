"""The broker: receives, stores and delivers messages."""

from penstock.broker.broker import Broker
from penstock.broker.config import BrokerConfig

__all__ = ["Broker", "BrokerConfig"]
