"""``penstock up | nameserver | broker``: flags to a plan.

What serves is loaded only when it is asked for: ``penstock --help`` needs no broker.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

NAMESERVER_PORT = 9876
BROKER_PORT = 10911
DEFAULT_DATA = Path("penstock-data")


class Flush(StrEnum):
    """When a send is answered."""

    SYNC = "sync"
    ASYNC = "async"


DataOption = Annotated[
    Path, typer.Option("--data", metavar="DIR", help="Directory that keeps everything.")
]
BindOption = Annotated[
    str | None,
    typer.Option("--bind", metavar="HOST", help="Address to listen on.", show_default="127.0.0.1"),
]
AdvertiseOption = Annotated[
    str | None,
    typer.Option(
        "--advertise", metavar="HOST", help="Address clients are told (RocketMQ's brokerIP1)."
    ),
]
InsecureOption = Annotated[
    bool,
    typer.Option("--insecure", help="Listen beyond this machine although nobody is authenticated."),
]
NameServerPortOption = Annotated[
    int, typer.Option("--nameserver-port", min=0, max=65535, help="0 picks a free one.")
]
BrokerPortOption = Annotated[
    int | None,
    typer.Option(
        "--broker-port",
        min=0,
        max=65535,
        help="0 picks a free one; the VIP port is two below.",
        show_default=str(BROKER_PORT),
    ),
]
BrokerNameOption = Annotated[
    str | None, typer.Option("--broker-name", help="Name of the broker.", show_default="broker-a")
]
ClusterOption = Annotated[
    str | None,
    typer.Option(
        "--cluster", metavar="NAME", help="Name of the cluster.", show_default="DefaultCluster"
    ),
]
ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="A broker.conf with RocketMQ's keys."),
]
FlushOption = Annotated[
    Flush | None,
    typer.Option(
        "--flush", help="sync: a send is answered when it is on the disk.", show_default="async"
    ),
]
VerboseOption = Annotated[
    bool, typer.Option("--verbose", "-v", help="Tell on stderr what happens.")
]
ReadyJsonFlag = Annotated[
    bool, typer.Option("--json", help="Print the line that says it serves as JSON.")
]


def up(
    data: DataOption = DEFAULT_DATA,
    nameserver_port: NameServerPortOption = NAMESERVER_PORT,
    broker_port: BrokerPortOption = None,
    brokers: Annotated[
        int,
        typer.Option("--brokers", min=1, max=64, help="Broker processes under one name server."),
    ] = 1,
    broker_name: BrokerNameOption = None,
    cluster: ClusterOption = None,
    bind: BindOption = None,
    advertise: AdvertiseOption = None,
    config: ConfigOption = None,
    flush: FlushOption = None,
    insecure: InsecureOption = False,
    verbose: VerboseOption = False,
    as_json: ReadyJsonFlag = False,
) -> None:
    """Run a name server and a broker: all a client needs, in one command.

    Prints one line when it serves, and serves until Ctrl-C.

    Example: penstock up --data /var/lib/penstock
    """
    from penstock.cli import server_plan

    plan = server_plan.ServerPlan(
        data=data,
        nameserver_port=nameserver_port,
        broker_port=broker_port,
        brokers=brokers,
        broker_name=broker_name,
        cluster=cluster,
        bind=bind,
        advertise=advertise,
        config_file=config,
        flush=flush,
        insecure=insecure,
        verbose=verbose,
    )
    server_plan.serve(server_plan.everything(plan), verbose=verbose, as_json=as_json)


def nameserver(
    nameserver_port: NameServerPortOption = NAMESERVER_PORT,
    data: DataOption = DEFAULT_DATA,
    bind: BindOption = None,
    insecure: InsecureOption = False,
    verbose: VerboseOption = False,
    as_json: ReadyJsonFlag = False,
) -> None:
    """Run a name server alone.

    Example: penstock nameserver --nameserver-port 9876
    """
    from penstock.cli import server_plan

    plan = server_plan.ServerPlan(
        data=data, bind=bind, nameserver_port=nameserver_port, insecure=insecure
    )
    server_plan.serve(server_plan.name_server_alone(plan), verbose=verbose, as_json=as_json)


def broker(
    namesrv: Annotated[
        str | None,
        typer.Option(
            "--namesrv",
            metavar="HOST:PORT",
            envvar="NAMESRV_ADDR",
            help="Name servers to register with, host:port;host:port; also Apache RocketMQ's.",
            show_default=f"namesrvAddr of --config, else 127.0.0.1:{NAMESERVER_PORT}",
        ),
    ] = None,
    data: DataOption = DEFAULT_DATA,
    broker_port: BrokerPortOption = None,
    broker_name: BrokerNameOption = None,
    cluster: ClusterOption = None,
    bind: BindOption = None,
    advertise: AdvertiseOption = None,
    config: ConfigOption = None,
    flush: FlushOption = None,
    insecure: InsecureOption = False,
    verbose: VerboseOption = False,
    as_json: ReadyJsonFlag = False,
) -> None:
    """Run one broker under a name server that runs elsewhere.

    Example: penstock broker --namesrv 127.0.0.1:9876 --broker-name broker-b --broker-port 10921
    """
    from penstock.cli import server_plan

    plan = server_plan.ServerPlan(
        data=data,
        namesrv=namesrv,
        broker_port=broker_port,
        broker_name=broker_name,
        cluster=cluster,
        bind=bind,
        advertise=advertise,
        config_file=config,
        flush=flush,
        insecure=insecure,
        verbose=verbose,
    )
    server_plan.serve(server_plan.broker_alone(plan), verbose=verbose, as_json=as_json)
