"""``penstock proxy``: the gRPC endpoint in a process of its own."""

from __future__ import annotations

import functools
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from penstock.cli.commands import PATH, Number, command, option
from penstock.cli.serve import DEFAULT_DATA, NAMESERVER_PORT, SECURITY
from penstock.cli.target import WHICH_CLUSTER, access_key_option, secret_key_option
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
@option(
    "--tls-client-ca",
    type=PATH,
    metavar="FILE",
    help="Clients need a certificate of this authority.",
    section=SECURITY,
)
@option(
    "--tls",
    metavar="DIR",
    help="Directory with server.pem and server.key: serve TLS connections.",
    section=SECURITY,
)
@option(
    "--users",
    type=PATH,
    metavar="FILE",
    help="The user file of the brokers: clients must sign, and have the rights of their user.",
    section=SECURITY,
)
@option(
    "--cluster-ca",
    type=PATH,
    metavar="FILE",
    help="Certificates to trust; connects to the cluster by TLS.",
    section=WHICH_CLUSTER,
)
@secret_key_option
@access_key_option
@option("--verbose", "-v", is_flag=True, help="Log what happens to stderr.")
@option("--json", "as_json", is_flag=True, help="Print the ready line as JSON.")
def proxy(
    *,
    as_json: bool,
    grpc_port: int,
    users: Path | None,
    access_key: str | None,
    secret_key_file: Path | None,
    cluster_ca: Path | None,
    **options: Any,
) -> None:
    """Serve the official 5.x clients (gRPC) in front of any cluster.

    The brokers must support pop consumption: Penstock's, or Apache RocketMQ 5.x. `penstock up`
    needs no proxy; it serves these clients itself. Brokers with users need an access key of the
    proxy. Without --users, all clients have the rights of that key.

    Example: penstock proxy --namesrv mq1.example.com:9876
    """
    from penstock.cli import server_plan

    options |= {"data": DEFAULT_DATA, "grpc_port": str(grpc_port), "auth": users is not None}
    plan = server_plan.make_plan(options)
    cluster = _Cluster(users, _account(access_key, secret_key_file), cluster_ca)
    server_plan.serve(functools.partial(proxy_alone, cluster), plan, as_json=as_json)


class _Cluster(NamedTuple):
    """How the cluster is reached, and whose users clients are."""

    users: Path | None
    account: tuple[str, str] | None
    authority: Path | None


def _account(access_key: str | None, secret_key_file: Path | None) -> tuple[str, str] | None:
    from penstock.cli.secret_files import read_secret

    name = access_key or os.environ.get("PENSTOCK_ACCESS_KEY")
    secret = os.environ.get("PENSTOCK_SECRET_KEY")
    if secret_key_file is not None:
        secret = read_secret(secret_key_file, "--secret-key-file")
    if (name is None) != (secret is None):
        raise ConfigError(
            "only one of the access key and its secret is given",
            expected="--access-key and --secret-key-file",
        )
    return None if name is None or secret is None else (name, secret)


@asynccontextmanager
async def proxy_alone(cluster: _Cluster, plan: ServerPlan) -> AsyncIterator[Running]:
    """An endpoint in front of the brokers that name servers know."""
    from penstock.auth.user_file import FILE_NAME
    from penstock.cli.grpc_port import is_installed
    from penstock.cli.server_plan import Running
    from penstock.cli.server_security import check_bind, server_tls
    from penstock.remoting.addresses import format_address, parse_address
    from penstock.remoting.tls import Tls
    from penstock.runtime.clock import SystemClock

    if not is_installed():
        raise MissingPackage("penstock proxy needs protobuf", hint="pip install 'penstock[grpc]'")
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
    if cluster.users is not None:
        if not cluster.users.is_file():
            raise ConfigError(
                f"--users {cluster.users} is no file",
                expected=f"{FILE_NAME} of the data directory of a broker",
            )
        if cluster.account is None:
            raise ConfigError(
                "--users without a key of the proxy itself",
                expected="a user that may read topics and groups",
                hint="add --access-key and --secret-key-file",
            )
    endpoint = ClusterServer(
        names,
        SystemClock(),
        host=host,
        port=port,
        shown=shown,
        tls=server_tls(plan.security),
        client_tls=None if cluster.authority is None else Tls(ca_file=cluster.authority),
        user_file=cluster.users,
        account=cluster.account,
    )
    async with endpoint as server:
        address = format_address((shown, server.port))
        yield Running([server], None, ";".join(names), grpc=address)
