"""``penstock up | nameserver | broker``: from options to a `ServerPlan`.

`server_plan` loads the broker, so it is imported only when a server is started.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from penstock.cli import broker_config
from penstock.cli.commands import PATH, F, Number, ServingGroup, command, option, was_given
from penstock.console.listening import DEFAULT_PORT, require_installed

NAMESERVER_PORT = 9876
BROKER_PORT = 10911
DEFAULT_DATA = Path("penstock-data")
SECURITY = "Security"
_PORT = Number(at_least=0, at_most=65535)


class ConsolePort(click.ParamType):  # type: ignore[type-arg]  # generic only in the newest click
    """A port, or ``off``, which becomes None."""

    name = "port"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | None:
        return None if value in (None, "off") else int(_PORT.convert(value, param, ctx))


nameserver_port_option = option(
    "--nameserver-port", type=_PORT, default=NAMESERVER_PORT, help="0 picks a free port."
)


def server_options(function: F) -> F:
    """Add the options of every server."""
    for added in (
        option("--json", "as_json", is_flag=True, help="Print the ready line as JSON."),
        option("--verbose", "-v", is_flag=True, help="Log what happens to stderr."),
        option(
            "--insecure",
            is_flag=True,
            help="Serve other machines without --auth and --tls.",
            section=SECURITY,
        ),
        option(
            "--tls-client-ca",
            type=PATH,
            metavar="FILE",
            help="Clients need a certificate of this authority.",
            section=SECURITY,
        ),
        option(
            "--tls-mode",
            type=click.Choice(["enforcing", "permissive"]),
            default="enforcing",
            help="permissive: accept plain connections, too.",
            section=SECURITY,
        ),
        option(
            "--tls",
            metavar="DIR|auto",
            help="Directory with server.pem and server.key; auto makes certificates.",
            section=SECURITY,
        ),
        option(
            "--audit-all",
            is_flag=True,
            help="Write sends and pulls to audit.jsonl, too.",
            section=SECURITY,
        ),
        option(
            "--admin-secret-file",
            type=PATH,
            metavar="FILE",
            help="Secret of the user admin; without it one is made and shown.",
            section=SECURITY,
        ),
        option(
            "--auth",
            is_flag=True,
            help="Every request needs a user; the first start makes the user admin.",
            section=SECURITY,
        ),
        option(
            "--log-format",
            type=click.Choice(["text", "json"]),
            envvar="PENSTOCK_LOG_FORMAT",
            default="text",
            help="json: one object per line.",
        ),
        option("--bind", metavar="HOST", help="Address to listen on.", show_default="127.0.0.1"),
        option(
            "--data",
            type=PATH,
            default=DEFAULT_DATA,
            metavar="DIR",
            help="Directory of messages and settings.",
        ),
    ):
        function = added(function)
    return function


def broker_options(function: F) -> F:
    """Add the options of commands that run a broker."""
    for added in (
        option(
            "--flush",
            type=click.Choice(["sync", "async"]),
            help="sync: answer a send when the message is on disk.",
            show_default="async",
        ),
        option(
            "--config", "config_file", type=PATH, metavar="FILE", help="A RocketMQ broker.conf."
        ),
        option(
            "--advertise", metavar="HOST", help="Address given to clients (RocketMQ's brokerIP1)."
        ),
        option(
            "--cluster", metavar="NAME", help="Name of the cluster.", show_default="DefaultCluster"
        ),
        option("--broker-name", help="Name of the broker.", show_default="broker-a"),
        option(
            "--metrics",
            "metrics_port",
            type=_PORT,
            metavar="PORT",
            help="Serve /metrics for Prometheus, /healthz and /readyz; 0 picks a free port.",
            show_default="off; RocketMQ uses 5557",
        ),
        option(
            "--broker-port",
            type=_PORT,
            help="0 picks a free port; the VIP port is two below.",
            show_default=str(BROKER_PORT),
        ),
    ):
        function = added(function)
    return function


@command
@nameserver_port_option
@option(
    "--brokers",
    type=Number(at_least=1, at_most=64),
    default=1,
    help="Broker processes under one name server.",
)
@option(
    "--console",
    type=ConsolePort(),
    default=str(DEFAULT_PORT),
    metavar="PORT|off",
    help="Port of the web console on this machine; if it is taken, a free one.",
    show_default=f"{DEFAULT_PORT}; needs penstock[console]",
)
@option(
    "--other-brokers",
    is_flag=True,
    help="Let brokers that are started elsewhere register with this name server.",
)
@option(
    "--grpc-port",
    metavar="PORT|off",
    help="Port for the official 5.x clients; 0 picks a free port.",
    show_default="8081, or a free one if that is taken; needs penstock[grpc]",
)
@broker_options
@server_options
def up(*, as_json: bool, **options: Any) -> None:
    """Run a name server and a broker: all a client needs, in one command.

    Prints one line when it is ready, and serves until Ctrl-C.

    Example: penstock up --data /var/lib/penstock
    """
    from penstock.cli import server_plan

    if options["console"] is not None and was_given("console"):
        require_installed()
    plan = server_plan.make_plan(options)
    server_plan.serve(server_plan.everything, plan, as_json=as_json)


@command
@nameserver_port_option
@server_options
def nameserver(*, as_json: bool, **options: Any) -> None:
    """Run a name server alone.

    Example: penstock nameserver --nameserver-port 9876
    """
    from penstock.cli import server_plan

    plan = server_plan.make_plan(options)
    server_plan.serve(server_plan.name_server_alone, plan, as_json=as_json)


@click.group(cls=ServingGroup)
@option(
    "--namesrv",
    metavar="HOST:PORT",
    envvar="NAMESRV_ADDR",
    help="Name servers to register with, host:port;host:port; also Apache RocketMQ's.",
    show_default=f"namesrvAddr of --config, else 127.0.0.1:{NAMESERVER_PORT}",
)
@broker_options
@server_options
def broker(*, as_json: bool, **options: Any) -> None:
    """Run one broker under a name server that runs elsewhere.

    Example: penstock broker --namesrv 127.0.0.1:9876 --broker-name broker-b --broker-port 10921
    """
    from penstock.cli import server_plan

    plan = server_plan.make_plan(options)
    server_plan.serve(server_plan.broker_alone, plan, as_json=as_json)


broker.add_command(broker_config.app, "config")
