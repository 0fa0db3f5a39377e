"""Connections that speak RocketMQ's remoting protocol, in both directions.

`Server` and `Pool` make `Peer`s, which share one `write_batch` per loop turn; `dispatch` finds the
handler of a request; `blocking_connection` serves threads without an event loop.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from penstock.remoting.addresses import format_address, parse_address
from penstock.remoting.limits import Limits
from penstock.remoting.peer import Handler, Peer, PeerHook
from penstock.remoting.pending import Done
from penstock.remoting.pool import Backoff, Pool
from penstock.remoting.promise import Promise
from penstock.remoting.tls import ServerTls, Tls, TlsMode

if TYPE_CHECKING:
    from penstock.remoting.server import Server, go_away

__all__ = [
    "Peer",
    "Handler",
    "PeerHook",
    "Done",
    "Promise",
    "Server",
    "go_away",
    "Pool",
    "Backoff",
    "Limits",
    "Tls",
    "ServerTls",
    "TlsMode",
    "parse_address",
    "format_address",
]


def __getattr__(name: str) -> object:
    # Clients need no server: load it on demand.
    if name in ("Server", "go_away"):
        return getattr(importlib.import_module("penstock.remoting.server"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
