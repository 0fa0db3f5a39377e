"""``penstock console``: a web console for any cluster."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.cli import context_file, output
from penstock.cli.commands import PATH, Number, command, option
from penstock.cli.parent_watch import stop_with_parent
from penstock.cli.target import Target, on_cluster
from penstock.console.listening import DEFAULT_PORT, address_of, listen, require_installed
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock.client.cluster_access import ClusterAccess
    from penstock.console.options import ConsoleOptions

_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_REACH = "Reach and rules"


@command
@on_cluster
@option(
    "--port",
    type=Number(at_least=0, at_most=65535),
    default=DEFAULT_PORT,
    help="0 picks a free port.",
)
@option(
    "--bind",
    metavar="HOST",
    default="127.0.0.1",
    help="Address to listen on; another machine's browser needs --login or --insecure.",
    section=_REACH,
)
@option(
    "--console-host",
    "hosts",
    metavar="NAME",
    multiple=True,
    help="A name by which browsers address the console; may be repeated.",
    section=_REACH,
)
@option(
    "--base-path",
    default="",
    show_default="/",
    metavar="PATH",
    help="The path below which a proxy serves it, such as /mq.",
    section=_REACH,
)
@option("--read-only", is_flag=True, help="Offer nothing that changes the cluster.", section=_REACH)
@option("--hide-bodies", is_flag=True, help="Show no message bodies.", section=_REACH)
@option("--no-export", is_flag=True, help="Do not offer messages as files.", section=_REACH)
@option(
    "--login",
    is_flag=True,
    help="Ask for the access key of a user of the cluster; a context with keys always does.",
    section=_REACH,
)
@option(
    "--operator",
    "operators",
    metavar="USER",
    multiple=True,
    help="With --login: a user who may change things; others only look. May be repeated.",
    section=_REACH,
)
@option(
    "--insecure",
    is_flag=True,
    help="No login for other machines, and none for contexts with keys: every visitor uses them.",
    section=_REACH,
)
@option(
    "--trusted-proxy",
    "trusted_proxies",
    metavar="ADDRESS",
    multiple=True,
    help="A proxy whose X-Forwarded-For and X-Forwarded-Proto count; may be repeated.",
    section=_REACH,
)
@option(
    "--archive",
    "archives",
    metavar="DIR",
    multiple=True,
    help="An archive of `penstock spark archive` to show; may be repeated.",
)
@option(
    "--audit", "audit_file", type=PATH, metavar="FILE", help="Write a line here for each change."
)
@option("--fd", type=Number(at_least=3), hidden=True, help="A socket that listens already.")
@option("--json", "as_json", is_flag=True, help="Print the ready line as JSON.")
def console(
    target: Target,
    port: int,
    bind: str,
    hosts: tuple[str, ...],
    base_path: str,
    read_only: bool,
    hide_bodies: bool,
    no_export: bool,
    login: bool,
    operators: tuple[str, ...],
    insecure: bool,
    trusted_proxies: tuple[str, ...],
    archives: tuple[str, ...],
    audit_file: Path | None,
    fd: int | None,
    as_json: bool,
) -> None:
    """Serve a web console: topics, groups, messages, dead letters.

    Clusters saved with `penstock context add` can be chosen on its pages.

    Example: penstock console --namesrv mq.example.com:9876
    """
    require_installed()
    from penstock.console.options import LOOPBACK_HOSTS, ConsoleOptions

    if bind not in _LOOPBACK and not login and not insecure:
        raise ConfigError(
            f"--bind {bind} serves other machines, and the console asks for no login",
            expected="a loopback address, or --login",
            hint="--login, or --insecure if the network is trusted",
        )
    if base_path and (not base_path.startswith("/") or base_path.endswith("/")):
        raise ConfigError(f"--base-path {base_path!r}", expected="a path such as /mq")
    options = ConsoleOptions(
        contexts=_contexts(target),
        hosts=LOOPBACK_HOSTS | {bind} | frozenset(hosts),
        base_path=base_path,
        read_only=read_only,
        hide_bodies=hide_bodies,
        no_export=no_export,
        login=login,
        shares_keys=insecure,
        trusted_proxies=trusted_proxies,
        operators=frozenset(operators) if operators else None,
        archives=archives,
        audit_file=audit_file,
    )
    if operators and not options.asking:
        raise ConfigError(
            "--operator without --login", expected="--login, which says who a user is"
        )
    if fd is None:
        _note_logins(options)
    bound = listen(bind, port) if fd is None else socket.socket(fileno=fd)
    asyncio.run(_serve(options, bound, as_json=as_json))


def _note_logins(options: ConsoleOptions) -> None:
    """Say which clusters ask for a login although no option says so, and which do not."""
    with_keys = [name for name, access in options.contexts.items() if access.credentials]
    if options.login or not with_keys:
        return
    names = ", ".join(with_keys)
    if options.shares_keys:
        output.note(f"every visitor has the rights of the keys of: {names} (--insecure)")
    else:
        output.note(f"a login is needed, since there are keys for: {names}")


def _contexts(target: Target) -> dict[str, ClusterAccess]:
    """The chosen cluster first, then all saved ones."""
    origin = target.origin or ""
    name = origin.removeprefix("context ") if origin.startswith("context ") else "local"
    contexts = {name: target.access}
    for other in context_file.load().named:
        if other not in contexts:
            contexts[other] = Target.from_options(context=other).access
    return contexts


async def _serve(options: ConsoleOptions, bound: socket.socket, *, as_json: bool) -> None:
    from penstock.console.serving import serving

    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    watch = asyncio.ensure_future(stop_with_parent(stopped))
    async with serving(options, bound):
        address = address_of(bound, options.base_path)
        if as_json:
            output.say(json.dumps({"ready": True, "console": address, "pid": os.getpid()}))
        else:
            output.say(f"ready console={address}")
        await stopped.wait()
    watch.cancel()
