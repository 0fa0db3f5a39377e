"""Connections that speak RocketMQ's remoting protocol, in both directions."""

from penstock.remoting.addresses import format_address, parse_address
from penstock.remoting.limits import Limits
from penstock.remoting.peer import Handler, Peer, PeerHook
from penstock.remoting.pending import Done
from penstock.remoting.pool import Backoff, Pool
from penstock.remoting.promise import Promise
from penstock.remoting.server import Server, go_away
from penstock.remoting.tls import ClientTls, ServerTls, TlsMode

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
    "ClientTls",
    "ServerTls",
    "TlsMode",
    "parse_address",
    "format_address",
]
