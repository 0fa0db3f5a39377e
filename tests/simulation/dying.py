"""How a process dies on the virtual network, so that what is left of it can be cleaned up."""

from __future__ import annotations

from penstock.testing.virtual_time.network import Network


def lose_host(network: Network, host: str, *, silent: bool) -> None:
    """End every connection of a host, and listen there no more.

    The other ends see a reset, or nothing at all if ``silent``. Unlike with `Network.crash`
    the dead end sees it, too: its code is stopped right after, and must not wait for connections
    that never tell of their end.
    """
    for connection in list(network.connections.values()):
        is_client = connection.client.host_name == host
        if is_client or connection.server.host_name == host:
            connection.cut("both" if not silent else "client" if is_client else "server")
    network.stop_listening(host)
