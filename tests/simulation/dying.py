"""The death of a process on the virtual network, with enough signals left for cleanup."""

from __future__ import annotations

from penstock.testing.virtual_time.network import Network


def lose_host(network: Network, host: str, *, silent: bool) -> None:
    """End every connection of a host and stop listening there.

    The remote ends see a reset, or nothing if ``silent``. Unlike with `Network.crash`, the dead
    end also sees the loss: its code is stopped right afterwards and must not wait for connections
    that never report their end.
    """
    for connection in list(network.connections.values()):
        is_client = connection.client.host_name == host
        if is_client or connection.server.host_name == host:
            connection.cut("both" if not silent else "client" if is_client else "server")
    network.stop_listening(host)
