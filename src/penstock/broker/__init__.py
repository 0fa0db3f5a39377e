"""The broker: takes messages, keeps them, hands them out."""

from penstock.broker.broker import Broker
from penstock.broker.config import BrokerConfig

__all__ = ["Broker", "BrokerConfig"]
