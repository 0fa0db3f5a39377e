"""The endpoint with its server: in front of a broker of this process, or of a cluster."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.auth.user_file import UserFile
from penstock.auth.user_source import UserSource
from penstock.protocol.acl import Verifier
from penstock.proxy.access import Signer
from penstock.proxy.endpoint import Endpoint
from penstock.proxy.local_backend import LocalBackend
from penstock.proxy.remote_backend import RemoteBackend
from penstock.proxy.server import GrpcServer
from penstock.remoting.tls import ServerTls, Tls
from penstock.runtime.clock import Clock
from penstock.runtime.service import Service, wait_any

if TYPE_CHECKING:
    from penstock.broker import Broker


def local_server(
    broker: Broker, clock: Clock, *, host: str, port: int, tls: ServerTls | None = None
) -> GrpcServer:
    """A server that is not started yet; ``port`` 0 picks a free one."""

    def advertised() -> tuple[str, int]:
        return broker.address.rpartition(":")[0].strip("[]"), server.port

    endpoint = Endpoint(LocalBackend(broker), clock, advertised=advertised)
    server = GrpcServer(endpoint, clock, host=host, port=port, tls=tls)
    return server


class ClusterServer(Service):
    """A server in front of all brokers that name servers know."""

    def __init__(
        self,
        name_servers: Sequence[str],
        clock: Clock,
        *,
        host: str,
        port: int,
        shown: str | None = None,
        tls: ServerTls | None = None,
        client_tls: Tls | None = None,
        user_file: Path | None = None,
        account: tuple[str, str] | None = None,
        sockets: Sequence[socket.socket] = (),
    ) -> None:
        """``shown`` is the host for clients that do not say how they connected.

        ``user_file`` has the users of the brokers, ``account`` is the endpoint's own: its name and
        secret. ``sockets`` are listening already, instead of host and port.
        """
        self._backend = RemoteBackend(
            name_servers,
            clock,
            tls=client_tls,
            users=None if user_file is None else UserSource(UserFile(user_file), clock),
            own_signer=None if account is None else Signer(account[0], Verifier(account[1])),
        )
        self._shown = shown or host
        endpoint = Endpoint(self._backend, clock, advertised=lambda: (self._shown, self.port))
        self._server = GrpcServer(endpoint, clock, host=host, port=port, tls=tls, sockets=sockets)

    @property
    def port(self) -> int:
        """The port that is listened on, once it is started."""
        return self._server.port

    async def _run(self, ready: Callable[[], None]) -> None:
        async with self._backend, self._server:
            ready()
            await wait_any(self._backend, self._server)
