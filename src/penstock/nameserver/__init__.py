"""The name server: which broker has which topic."""

from penstock.nameserver.config import NameServerConfig
from penstock.nameserver.nameserver import NameServer

__all__ = ["NameServer", "NameServerConfig"]
