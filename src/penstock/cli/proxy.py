"""``penstock proxy``: the gRPC endpoint in a process of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.commands import Number, command, option
from penstock.cli.serve import DEFAULT_DATA, NAMESERVER_PORT, SECURITY
from penstock.errors import ConfigError, MissingPackage

if TYPE_CHECKING:
    from penstock.cli.server_plan import Running, ServerPlan

GRPC_PORT = 8081


@command
@option(
    "--namesrv",
    metavar="HOST:PORT",
    envvar="NAMESRV_ADDR",
    default=f"127.0.0.1:{NAMESERVER_PORT}",
    help="Name servers of the cluster, host:port;host:port; also Apache RocketMQ's.",
)
@option(
    "--grpc-port",
    type=Number(at_least=0, at_most=65535),
    default=GRPC_PORT,
    help="0 picks a free port.",
)
@option("--bind", metavar="HOST", help="Address to listen on.", show_default="127.0.0.1")
@option(
    "--advertise", metavar="HOST", help="Address for clients that do not say how they connected."
)
@option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    envvar="PENSTOCK_LOG_FORMAT",
    default="text",
    help="json: one object per line.",
)
@option("--insecure", is_flag=True, help="Serve other machines.", section=SECURITY)
@option("--verbose", "-v", is_flag=True, help="Log what happens to stderr.")
@option("--json", "as_json", is_flag=True, help="Print the ready line as JSON.")
def proxy(*, as_json: bool, grpc_port: int, **options: Any) -> None:
    """Serve the official 5.x clients (gRPC) in front of any cluster.

    The brokers must support pop consumption: Penstock's, or Apache RocketMQ 5.x. `penstock up`
    needs no proxy; it serves these clients itself.

    Example: penstock proxy --namesrv mq1.example.com:9876
    """
    from penstock.cli import server_plan

    plan = server_plan.make_plan({**options, "data": DEFAULT_DATA, "grpc_port": str(grpc_port)})
    server_plan.serve(proxy_alone, plan, as_json=as_json)


@asynccontextmanager
async def proxy_alone(plan: ServerPlan) -> AsyncIterator[Running]:
    """An endpoint in front of the brokers that name servers know."""
    from penstock.cli.grpc_port import is_installed
    from penstock.cli.server_plan import Running
    from penstock.cli.server_security import check_bind
    from penstock.remoting.addresses import format_address, parse_address
    from penstock.runtime.clock import SystemClock

    if not is_installed():
        raise MissingPackage(
            "penstock proxy needs grpcio and protobuf", hint="pip install 'penstock[grpc]'"
        )
    from penstock.proxy.grpc_servers import ClusterServer

    host = plan.bind or "127.0.0.1"
    check_bind(host, plan.security)
    names = [name.strip() for name in (plan.namesrv or "").split(";") if name.strip()]
    if not names:
        raise ConfigError("--namesrv names no name server", expected="host:port;host:port")
    for name in names:
        parse_address(name)
    shown = plan.advertise or host
    port = int(plan.grpc_port or 0)
    async with ClusterServer(names, SystemClock(), host=host, port=port, shown=shown) as server:
        address = format_address((shown, server.port))
        yield Running([server], None, ";".join(names), grpc=address)
