"""``penstock up | nameserver | broker``: flags to a plan.

What serves is loaded only when it is asked for: ``penstock --help`` needs no broker.
"""

from __future__ import annotations

from pathlib import Path

import click

from penstock.cli.commands import PATH, Number, command, option

NAMESERVER_PORT = 9876
BROKER_PORT = 10911
DEFAULT_DATA = Path("penstock-data")


data_option = option(
    "--data",
    type=PATH,
    default=DEFAULT_DATA,
    metavar="DIR",
    help="Directory that keeps everything.",
)
bind_option = option(
    "--bind", metavar="HOST", help="Address to listen on.", show_default="127.0.0.1"
)
advertise_option = option(
    "--advertise", metavar="HOST", help="Address clients are told (RocketMQ's brokerIP1)."
)
insecure_option = option(
    "--insecure", is_flag=True, help="Listen beyond this machine although nobody is authenticated."
)
name_server_port_option = option(
    "--nameserver-port",
    type=Number(at_least=0, at_most=65535),
    default=NAMESERVER_PORT,
    help="0 picks a free one.",
)
broker_port_option = option(
    "--broker-port",
    type=Number(at_least=0, at_most=65535),
    help="0 picks a free one; the VIP port is two below.",
    show_default=str(BROKER_PORT),
)
broker_name_option = option("--broker-name", help="Name of the broker.", show_default="broker-a")
cluster_option = option(
    "--cluster", metavar="NAME", help="Name of the cluster.", show_default="DefaultCluster"
)
config_option = option(
    "--config", type=PATH, metavar="FILE", help="A broker.conf with RocketMQ's keys."
)
flush_option = option(
    "--flush",
    type=click.Choice(["sync", "async"]),
    help="sync: a send is answered when it is on the disk.",
    show_default="async",
)
verbose_option = option("--verbose", "-v", is_flag=True, help="Tell on stderr what happens.")
ready_json_flag = option(
    "--json", "as_json", is_flag=True, help="Print the line that says it serves as JSON."
)


@command
@data_option
@name_server_port_option
@broker_port_option
@option(
    "--brokers",
    type=Number(at_least=1, at_most=64),
    default=1,
    help="Broker processes under one name server.",
)
@broker_name_option
@cluster_option
@bind_option
@advertise_option
@config_option
@flush_option
@insecure_option
@verbose_option
@ready_json_flag
def up(
    data: Path,
    nameserver_port: int,
    broker_port: int | None,
    brokers: int,
    broker_name: str | None,
    cluster: str | None,
    bind: str | None,
    advertise: str | None,
    config: Path | None,
    flush: str | None,
    insecure: bool,
    verbose: bool,
    as_json: bool,
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


@command
@name_server_port_option
@data_option
@bind_option
@insecure_option
@verbose_option
@ready_json_flag
def nameserver(
    nameserver_port: int,
    data: Path,
    bind: str | None,
    insecure: bool,
    verbose: bool,
    as_json: bool,
) -> None:
    """Run a name server alone.

    Example: penstock nameserver --nameserver-port 9876
    """
    from penstock.cli import server_plan

    plan = server_plan.ServerPlan(
        data=data, bind=bind, nameserver_port=nameserver_port, insecure=insecure
    )
    server_plan.serve(server_plan.name_server_alone(plan), verbose=verbose, as_json=as_json)


@command
@option(
    "--namesrv",
    metavar="HOST:PORT",
    help="Name servers to register with, host:port;host:port; also Apache RocketMQ's.",
    show_default=f"namesrvAddr of --config, else 127.0.0.1:{NAMESERVER_PORT}",
    envvar="NAMESRV_ADDR",
)
@data_option
@broker_port_option
@broker_name_option
@cluster_option
@bind_option
@advertise_option
@config_option
@flush_option
@insecure_option
@verbose_option
@ready_json_flag
def broker(
    namesrv: str | None,
    data: Path,
    broker_port: int | None,
    broker_name: str | None,
    cluster: str | None,
    bind: str | None,
    advertise: str | None,
    config: Path | None,
    flush: str | None,
    insecure: bool,
    verbose: bool,
    as_json: bool,
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
