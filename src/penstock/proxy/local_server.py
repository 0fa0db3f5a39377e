"""The endpoint with its server in front of a broker of this process."""

from __future__ import annotations

from penstock.broker import Broker
from penstock.proxy.endpoint import Endpoint
from penstock.proxy.local_backend import LocalBackend
from penstock.proxy.server import GrpcServer
from penstock.remoting.tls import ServerTls
from penstock.runtime.clock import Clock


def local_server(
    broker: Broker, clock: Clock, *, host: str, port: int, tls: ServerTls | None = None
) -> GrpcServer:
    """A server that is not started yet; ``port`` 0 picks a free one."""

    def advertised() -> tuple[str, int]:
        return broker.address.rpartition(":")[0].strip("[]"), server.port

    endpoint = Endpoint(LocalBackend(broker), clock, advertised=advertised)
    server = GrpcServer(endpoint, clock, host=host, port=port, tls=tls)
    return server
